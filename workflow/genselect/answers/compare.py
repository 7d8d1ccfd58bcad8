r"""Compare two shapes: EQUAL and DIFFERENT are claims, UNKNOWN is "not decided by the text alone"."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import mpmath

from genselect.answers.expression import Node, symbols_of
from genselect.answers.numeric import Match, compare_nodes, evaluate, rational_value
from genselect.answers.reading import is_closed
from genselect.answers.relations import compare_relations
from genselect.answers.shapes import (
    Based,
    BigO,
    Bracket,
    Listing,
    Matrix,
    Opaque,
    Ratio,
    Relation,
    Scalar,
    SetOf,
    Shape,
    Union,
    Words,
)
from genselect.answers.spans import bracket_span, compare_unions, union_of
from genselect.answers.tokens import Unreadable
from genselect.answers.units import NUMBER_WORDS, SCALE_WORDS, conversion

__all__ = ["compare_shapes"]

# A decimal stands for an exact value only when it is its correct rounding to at least this many decimal places and
# significant digits (math-verify's documented `float_rounding`).
ROUNDING_DIGITS = 6
_SPECIAL_WORDS = frozenset(
    "infinity infinite infinitely none no zero half quarter third dozen never impossible all".split()
)
_SYNONYMS = {"yes": "true", "no": "false", "correct": "true", "incorrect": "false"}


def compare_shapes(gold: Shape, pred: Shape) -> Match:
    """Whether ``pred`` says the same as ``gold``. Kinds that cannot be weighed against each other are UNKNOWN."""
    if isinstance(gold, Opaque) or isinstance(pred, Opaque):
        return Match.UNKNOWN
    gold, pred = _collapse(gold), _collapse(pred)
    if type(gold) is type(pred):
        return _SAME_KIND[type(gold)](gold, pred)
    if isinstance(gold, Relation):
        return _relation_and_value(gold, pred)
    if isinstance(pred, Relation):
        return _relation_and_value(pred, gold)
    for first, second in ((gold, pred), (pred, gold)):
        for kinds, rule in _MIXED:
            if isinstance(first, kinds[0]) and isinstance(second, kinds[1]):
                return rule(first, second)
    return Match.DIFFERENT


def _all(matches: Iterable[Match]) -> Match:
    """EQUAL when all are, DIFFERENT when one is."""
    found = set(matches)
    if Match.DIFFERENT in found:
        return Match.DIFFERENT
    return Match.UNKNOWN if Match.UNKNOWN in found else Match.EQUAL


def _doubt(match: Match) -> Match:
    """The same value in a dress that may matter: never EQUAL."""
    return Match.UNKNOWN if match is Match.EQUAL else match


def _unordered(gold: Sequence[Shape], pred: Sequence[Shape]) -> Match:
    """Whether the items pair off. One without any possible partner makes the lists different."""
    if len(gold) != len(pred):
        return Match.DIFFERENT
    left = list(pred)
    unmatched = []
    for item in gold:
        partner = next((other for other in left if compare_shapes(item, other) is Match.EQUAL), None)
        if partner is None:
            unmatched.append(item)
        else:
            left.remove(partner)
    if not unmatched:
        return Match.EQUAL
    hopeless = any(all(compare_shapes(item, other) is Match.DIFFERENT for other in left) for item in unmatched)
    return Match.DIFFERENT if hopeless else Match.UNKNOWN


def _ordered(gold: Sequence[Shape], pred: Sequence[Shape]) -> Match:
    if len(gold) != len(pred):
        return Match.DIFFERENT
    return _all(compare_shapes(a, b) for a, b in zip(gold, pred, strict=True))


def _collapse(shape: Shape) -> Shape:
    """``x=2 or x=-1`` is one name with a list of values."""
    if not isinstance(shape, Listing):
        return shape
    relations = [item for item in shape.items if isinstance(item, Relation) and item.op == "=" and item.name]
    if len(relations) == len(shape.items) and len({relation.name for relation in relations}) == 1:
        values = Listing(tuple(relation.right for relation in relations), shape.joiner)
        return Relation(relations[0].left, "=", values, relations[0].name)
    return shape


# --- scalars -----------------------------------------------------------------------------------------------------


def _scalars(gold: Scalar, pred: Scalar) -> Match:
    if gold.unit == pred.unit or gold.unit.rstrip("s") == pred.unit.rstrip("s"):
        return compare_values(gold.node, pred.node)
    if not gold.unit or not pred.unit:
        return _one_unit(*((gold.node, pred.node, pred.unit) if not gold.unit else (pred.node, gold.node, gold.unit)))
    values = compare_values(gold.node, pred.node)
    try:
        factor = conversion(gold.unit, pred.unit)
    except (KeyError, ValueError):
        return Match.UNKNOWN
    if factor is None:
        return Match.DIFFERENT
    converted = compare_values(gold.node, Node("mul", (Node("number", value=factor), pred.node)))
    return Match.DIFFERENT if values is Match.EQUAL and converted is not Match.EQUAL else converted


def _one_unit(bare: Node, measured: Node, unit: str) -> Match:
    """A number against a number with a unit: the unit is decoration unless it changes the number."""
    values = compare_values(bare, measured)
    if unit in {"%", "percent"}:
        share = Node("div", (measured, Node("number", value=Fraction(100))))
        as_share = compare_values(bare, share)
        return as_share if values is Match.DIFFERENT or as_share is Match.EQUAL else Match.UNKNOWN
    if unit == "cents":
        return Match.UNKNOWN if values is Match.EQUAL else values
    if unit == "°":
        radians = Node(
            "div", (Node("mul", (measured, Node("constant", text="pi"))), Node("number", value=Fraction(180)))
        )
        if values is Match.EQUAL:
            size = rational_value(measured)
            # No one writes angles beyond a full turn in radians as plain numbers.
            return Match.EQUAL if size is not None and abs(size) > Fraction(63, 10) else Match.UNKNOWN
        return _doubt(compare_values(bare, radians))
    return values


def compare_values(gold: Node, pred: Node) -> Match:
    """Compare two expressions, with the rule on decimals (docs/answers.md, "Tolerance")."""
    match = compare_nodes(gold, pred)
    if match is not Match.DIFFERENT or symbols_of(gold) or symbols_of(pred):
        return match
    gold_places, pred_places = _decimal_places(gold), _decimal_places(pred)
    if gold_places and pred_places:
        # More digits than the expected answer gives may be the unrounded value; fewer are a loss.
        return Match.UNKNOWN if pred_places > gold_places and _rounds_to(pred, gold, gold_places) else match
    if not gold_places and not pred_places:
        return match
    exact, decimal, places = (pred, gold, gold_places) if gold_places else (gold, pred, pred_places)
    if not _rounds_to(exact, decimal, places):
        return match
    value = rational_value(exact)
    significant = len(str(abs((rational_value(decimal) or Fraction(0)) * 10**places)))
    terminating = value is not None and not _repeats(value)
    long_enough = places >= ROUNDING_DIGITS and significant >= ROUNDING_DIGITS
    return Match.EQUAL if long_enough and not terminating else Match.UNKNOWN


def _decimal_places(node: Node) -> int:
    """Digits after the point of a decimal literal, 0 for any other expression."""
    if node.op == "neg":
        return _decimal_places(node.args[0])
    return len(node.text.split(".")[1]) if node.op == "number" and "." in node.text and "\\" not in node.text else 0


def _rounds_to(exact: Node, decimal: Node, places: int) -> bool:
    target = rational_value(decimal)
    value = evaluate(exact, digits=places + 60)
    if target is None or value is None or isinstance(value, mpmath.mpc):
        return False
    with mpmath.workdps(places + 60):
        number = mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value
        goal = mpmath.mpf(target.numerator) / target.denominator
        return bool(abs(number - goal) <= mpmath.mpf(10) ** -places / 2 * (1 + mpmath.mpf(10) ** -40))


def _repeats(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest != 1


# --- one kind against itself -------------------------------------------------------------------------------------


def _words(gold: Words, pred: Words) -> Match:
    left, right = (_SYNONYMS.get(w.text.lower(), w.text) for w in (gold, pred))
    if gold.text == pred.text or (left == right and gold.text.lower() == pred.text.lower() in _SYNONYMS):
        return Match.EQUAL
    if {left, right} == {"true", "false"}:
        return Match.DIFFERENT
    single = " " not in left + right
    alike = sorted(left.lower()) == sorted(right.lower()) or difflib.SequenceMatcher(None, left, right).ratio() > 0.6
    special = left in _SPECIAL_WORDS or right in _SPECIAL_WORDS
    return Match.DIFFERENT if single and not alike and left != right and not special else Match.UNKNOWN


def _brackets(gold: Bracket, pred: Bracket) -> Match:
    items = _ordered(gold.items, pred.items)
    if (gold.left, gold.right) == (pred.left, pred.right):
        return items
    interval = len(gold.items) == 2 and {gold.left, pred.left, gold.right, pred.right} <= set("()[]")
    return Match.DIFFERENT if interval and items is Match.EQUAL else _doubt(items)


def _matrices(gold: Matrix, pred: Matrix) -> Match:
    if gold.determinant != pred.determinant:
        return Match.UNKNOWN
    if [len(row) for row in gold.rows] != [len(row) for row in pred.rows]:
        flat = [entry for row in gold.rows for entry in row], [entry for row in pred.rows for entry in row]
        if len(flat[0]) != len(flat[1]):
            return Match.DIFFERENT
        return _doubt(_all(compare_values(a, b) for a, b in zip(*flat, strict=True)))
    pairs = [(a, b) for x, y in zip(gold.rows, pred.rows, strict=True) for a, b in zip(x, y, strict=True)]
    return _all(compare_values(a, b) for a, b in pairs)


def _ratios(gold: Ratio, pred: Ratio) -> Match:
    if len(gold.items) != len(pred.items):
        return Match.DIFFERENT
    same = _all(compare_nodes(a, b) for a, b in zip(gold.items, pred.items, strict=True))
    if gold.suffix != pred.suffix:
        return Match.DIFFERENT if gold.suffix and pred.suffix else _doubt(same)
    if same is Match.EQUAL or (gold.clock and pred.clock):
        return same
    cross = _all(
        compare_nodes(Node("mul", (a, pred.items[0])), Node("mul", (b, gold.items[0])))
        for a, b in zip(gold.items[1:], pred.items[1:], strict=True)
    )
    return _doubt(cross) if gold.clock or pred.clock else cross


def _big_o(gold: BigO, pred: BigO) -> Match:
    if gold.head != pred.head:
        return Match.DIFFERENT
    match = compare_nodes(gold.argument, pred.argument)
    return match if match is Match.EQUAL else Match.UNKNOWN  # O(2n) is O(n)


def _bases(gold: Based, pred: Based) -> Match:
    if gold.base == pred.base:
        return Match.EQUAL if gold.digits == pred.digits else Match.DIFFERENT
    try:
        same = int(gold.digits, gold.base) == int(pred.digits, pred.base)
    except ValueError:
        return Match.UNKNOWN
    return Match.UNKNOWN if same else Match.DIFFERENT


# --- different kinds ---------------------------------------------------------------------------------------------


def _relation_and_value(relation: Relation, value: Shape) -> Match:
    """``x=5`` against ``5``: the name may go when what it names is closed, or when it is a function."""
    if relation.op != "=" or not relation.name:
        return Match.UNKNOWN
    if isinstance(value, Words):
        return Match.UNKNOWN
    if isinstance(value, Union):
        single = any(span.low is not None and span.low_closed and span.high_closed for span in value.spans)
        return (
            Match.UNKNOWN if single or not is_closed(relation.right) else _doubt(compare_shapes(relation.right, value))
        )
    match = compare_shapes(relation.right, value)
    return match if relation.left.op == "unknown" or is_closed(relation.right) else _doubt(match)


def _words_and_scalar(words: Words, scalar: Scalar) -> Match:
    spoken = set(words.text.lower().replace("-", " ").split())
    if spoken & (_SPECIAL_WORDS | set(NUMBER_WORDS) | set(SCALE_WORDS)) or symbols_of(scalar.node):
        return Match.UNKNOWN
    return Match.DIFFERENT


def _set_and_list(first: SetOf, second: Listing) -> Match:
    return _unordered(first.items, second.items)


def _set_and_scalar(first: SetOf, second: Scalar) -> Match:
    return _doubt(_unordered(first.items, [second]))


def _group_and_bracket(group: SetOf | Listing, bracket: Bracket) -> Match:
    values = [item.right if isinstance(item, Relation) else item for item in group.items]
    match = _unordered(values, bracket.items)
    return Match.DIFFERENT if isinstance(group, SetOf) and match is Match.EQUAL and group.items else _doubt(match)


def _list_and_scalar(listing: Listing, scalar: Scalar) -> Match:
    """A list is not one of its items; but ``3,5`` and ``1, 234`` may be one number with a comma in it."""
    digits = [item.node.text for item in listing.items if isinstance(item, Scalar) and item.node.text.isdigit()]
    if len(digits) == len(listing.items) and listing.joiner == ",":
        value = rational_value(scalar.node)
        if value in {Fraction("".join(digits)), Fraction(f"{digits[0]}.{''.join(digits[1:])}")}:
            return Match.UNKNOWN
    if any(isinstance(item, Words) for item in listing.items):
        return Match.UNKNOWN
    return Match.DIFFERENT


def _union_and_bracket(union: Union, bracket: Bracket) -> Match:
    try:
        return compare_unions(union, union_of([bracket_span(bracket)]))
    except Unreadable:
        return Match.DIFFERENT


def _union_and_set(union: Union, group: SetOf) -> Match:
    if not group.items or not union.spans:
        return Match.DIFFERENT if bool(group.items) != bool(union.spans) else Match.UNKNOWN
    points = all(span.low is not None and span.low_closed and span.high_closed for span in union.spans)
    return Match.UNKNOWN if points else Match.DIFFERENT


def _ratio_and_scalar(ratio: Ratio, scalar: Scalar) -> Match:
    if len(ratio.items) != 2:
        return Match.DIFFERENT
    return _doubt(compare_nodes(Node("div", ratio.items), scalar.node))


def _based_and_scalar(based: Based, scalar: Scalar) -> Match:
    value = rational_value(scalar.node)
    try:
        options = {Fraction(based.digits), Fraction(int(based.digits, based.base))}
    except ValueError:
        return Match.UNKNOWN
    return Match.UNKNOWN if value is None or value in options else Match.DIFFERENT


def _matrix_and_bracket(matrix: Matrix, bracket: Bracket) -> Match:
    entries = [Scalar(entry) for row in matrix.rows for entry in row]
    return _doubt(_ordered(entries, bracket.items))


def _unknown(_first: Shape, _second: Shape) -> Match:
    return Match.UNKNOWN


_Rule = Callable[..., Match]
_SAME_KIND: dict[type, _Rule] = {
    Scalar: _scalars,
    Words: _words,
    Listing: lambda gold, pred: _unordered(gold.items, pred.items),
    SetOf: lambda gold, pred: _unordered(gold.items, pred.items),
    Bracket: _brackets,
    Union: compare_unions,
    Relation: lambda gold, pred: compare_relations(gold, pred, compare_shapes),
    Matrix: _matrices,
    Ratio: _ratios,
    BigO: _big_o,
    Based: _bases,
}
# Pairs of kinds that can be weighed against each other; any other pair of kinds is a difference.
_MIXED: list[tuple[tuple[type | tuple[type, ...], type | tuple[type, ...]], _Rule]] = [
    ((Words, Scalar), _words_and_scalar),
    ((Words, (Listing, SetOf, Bracket, Union, Matrix, Ratio, BigO, Based)), _unknown),
    ((SetOf, Listing), _set_and_list),
    ((SetOf, Scalar), _set_and_scalar),
    (((SetOf, Listing), Bracket), _group_and_bracket),
    ((Listing, Scalar), _list_and_scalar),
    ((Union, Bracket), _union_and_bracket),
    ((Union, SetOf), _union_and_set),
    ((Ratio, Scalar), _ratio_and_scalar),
    ((Based, Scalar), _based_and_scalar),
    ((Matrix, Bracket), _matrix_and_bracket),
]

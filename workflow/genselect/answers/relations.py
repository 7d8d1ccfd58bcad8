r"""Compare two equations or two inequalities: the same named value, or one a multiple of the other."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from genselect.answers.expression import Node, symbols_of
from genselect.answers.numeric import Match, compare_nodes, evaluate
from genselect.answers.shapes import Relation, Scalar, Shape

__all__ = ["compare_relations"]

_POINTS = [Fraction(*pair) for pair in ((23, 7), (-31, 9), (57, 11), (13, 17), (-45, 8), (101, 19))]


def compare_relations(gold: Relation, pred: Relation, compare: Callable[[Shape, Shape], Match]) -> Match:
    """EQUAL for the same name and value, or for two sides that are proportional; ``compare`` weighs named values."""
    if gold.op != pred.op:
        return Match.DIFFERENT
    if gold.name and pred.name:
        values = compare(gold.right, pred.right)
        if gold.name == pred.name or values is not Match.EQUAL:
            rearranged = gold.name != pred.name and _multiples(gold, pred) is Match.EQUAL
            return Match.EQUAL if rearranged else values
        # Unequal names with equal values: y=5 is not x=5; f(x)=x+1 and y=x+1 may well be meant alike.
        return (
            Match.DIFFERENT
            if _plain_symbol(gold) and _plain_symbol(pred) and not _symbols(gold.right)
            else Match.UNKNOWN
        )
    return _multiples(gold, pred)


def _plain_symbol(relation: Relation) -> bool:
    return relation.left.op == "symbol" and len(relation.name) == 1


def _symbols(shape: Shape) -> frozenset[str]:
    return symbols_of(shape.node) if isinstance(shape, Scalar) else frozenset()


def _multiples(gold: Relation, pred: Relation) -> Match:
    """Whether left minus right of one is a constant multiple of the other's (a positive one for inequalities)."""
    if not isinstance(gold.right, Scalar) or not isinstance(pred.right, Scalar) or gold.right.unit or pred.right.unit:
        return Match.UNKNOWN
    one = Node("add", (gold.left, Node("neg", (gold.right.node,))))
    two = Node("add", (pred.left, Node("neg", (pred.right.node,))))
    names = sorted(symbols_of(one) | symbols_of(two))
    if symbols_of(one) != symbols_of(two) or not names:
        return Match.UNKNOWN
    env = {name: _POINTS[i % len(_POINTS)] + i // len(_POINTS) for i, name in enumerate(names)}
    at_one, at_two = _substitute(one, env), _substitute(two, env)
    values = evaluate(at_one), evaluate(at_two)
    if any(value is None or value == 0 for value in values):
        return Match.UNKNOWN
    match = compare_nodes(Node("mul", (one, at_two)), Node("mul", (two, at_one)))
    if match is Match.EQUAL and gold.op not in {"=", r"\neq"}:
        return Match.EQUAL if (values[0] > 0) == (values[1] > 0) else Match.DIFFERENT
    # Polynomial equations that are no multiples have different solutions (but for powers of one another).
    polynomial = _is_polynomial(one) and _is_polynomial(two)
    return match if match is not Match.DIFFERENT or polynomial else Match.UNKNOWN


def _substitute(node: Node, env: dict[str, Fraction]) -> Node:
    if node.op == "symbol":
        return Node("number", value=env[node.text])
    return Node(node.op, tuple(_substitute(arg, env) for arg in node.args), node.value, node.text)


def _is_polynomial(node: Node) -> bool:
    if node.op in {"number", "symbol", "constant"}:
        return True
    if node.op == "pow":
        base, exponent = node.args
        return _is_polynomial(base) and exponent.value is not None and exponent.value.denominator == 1
    if node.op in {"div", "root"}:
        return (
            _is_polynomial(node.args[0])
            and not symbols_of(node.args[1])
            and (node.op == "div" or not symbols_of(node.args[0]))
        )
    return node.op in {"add", "mul", "neg"} and all(_is_polynomial(arg) for arg in node.args)

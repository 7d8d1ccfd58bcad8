r"""Real intervals and their unions, read from brackets and inequalities."""

from __future__ import annotations

from functools import cmp_to_key
from typing import Any

import mpmath

from genselect.answers.expression import Node, symbols_of
from genselect.answers.numeric import Match, compare_nodes, evaluate
from genselect.answers.shapes import Bracket, Scalar, Span, Union
from genselect.answers.tokens import Unreadable

__all__ = ["bracket_span", "combine", "compare_unions", "relation_union", "union_of", "without_points"]


def bracket_span(bracket: Bracket) -> Span:
    """The interval that two items in round or square brackets name. Raises Unreadable for any other bracket."""
    if len(bracket.items) != 2 or bracket.left not in "([" or bracket.right not in ")]":
        raise Unreadable("brackets that are no interval")
    low, high = bracket.items
    if not isinstance(low, Scalar) or not isinstance(high, Scalar) or low.unit or high.unit:
        raise Unreadable("an interval between other things than numbers")
    return _span(low.node, high.node, bracket.left == "[", bracket.right == "]")


def union_of(spans: list[Span], variable: str = "") -> Union:
    """The union in canonical form: sorted, overlapping and touching intervals merged (symbolic ends stay as written)."""
    if any(_has_symbols(span) for span in spans):
        return Union(tuple(spans), variable)
    merged: list[Span] = []
    for span in sorted(_nonempty(spans), key=_BY_LOW_END):
        if merged and _touches(merged[-1], span):
            merged[-1] = _joined(merged[-1], span)
        else:
            merged.append(span)
    return Union(tuple(merged), variable)


def combine(unions: list[Union], joiner: str) -> Union:
    """Conditions side by side: 'or' joins them; else they hold together, unless they exclude each other.

    ``x<-1, x>1`` is how people write the union of two rays.
    """
    names = {union.variable for union in unions}
    if len(names) > 1 or any(_has_symbols(span) for union in unions for span in union.spans):
        raise Unreadable("conditions on several variables")
    name = names.pop()
    if joiner == "or":
        return union_of([span for union in unions for span in union.spans], name)
    common = list(unions[0].spans)
    for union in unions[1:]:
        common = _nonempty([_meet(a, b) for a in common for b in union.spans])
    if common:
        if joiner == "," and not name:
            raise Unreadable("intervals side by side")
        return union_of(common, name)
    if joiner == "and":
        raise Unreadable("conditions that exclude each other, joined by 'and'")
    return union_of([span for union in unions for span in union.spans], name)


def without_points(points: list[Node]) -> Union:
    """The reals without some points, as a union of open intervals."""
    spans = [Span(None, None)]
    for point in points:
        rays = (Span(None, point), Span(point, None))
        spans = _nonempty([_meet(span, ray) for span in spans for ray in rays])
    return union_of(spans)


def relation_union(operators: list[str], nodes: list[Node]) -> Union | None:
    """The solution set when one side of an inequality is a single symbol and the others are closed."""
    for index, node in enumerate(nodes):
        if node.op == "symbol" and not any(symbols_of(other) for k, other in enumerate(nodes) if k != index):
            break
    else:
        return None
    span = Span(None, None)
    for k, operator in enumerate(operators):
        bound = nodes[k] if nodes[k] is not node else nodes[k + 1]
        if operator == r"\neq":
            return union_of([Span(None, bound), Span(bound, None)], node.text) if len(operators) == 1 else None
        below = (nodes[k] is node) == (operator in {"<", r"\leq"})  # the symbol is below the bound
        closed = operator in {r"\leq", r"\geq"}
        ray = _span(None, bound, False, closed) if below else _span(bound, None, closed, False)
        span = _meet(span, ray)
    if len(operators) == 2 and (index != 1 or len({operator in {"<", r"\leq"} for operator in operators}) > 1):
        return None
    return union_of([span], node.text)


def compare_unions(gold: Union, pred: Union) -> Match:
    """Same intervals with the same end points, open and closed alike."""
    symbolic = any(_has_symbols(span) for span in (*gold.spans, *pred.spans))
    if len(gold.spans) != len(pred.spans):
        return Match.UNKNOWN if symbolic else Match.DIFFERENT
    worst = Match.EQUAL
    for left, right in zip(gold.spans, pred.spans, strict=True):
        for a, b, a_closed, b_closed in (
            (left.low, right.low, left.low_closed, right.low_closed),
            (left.high, right.high, left.high_closed, right.high_closed),
        ):
            if (a is None) != (b is None) or a_closed != b_closed:
                return Match.DIFFERENT
            match = Match.EQUAL if a is None or b is None else compare_nodes(a, b)
            if match is Match.DIFFERENT:
                return match
            worst = match if match is not Match.EQUAL else worst
    if worst is Match.EQUAL and gold.variable and pred.variable and gold.variable != pred.variable:
        return Match.DIFFERENT
    return worst


def _span(low: Node | None, high: Node | None, low_closed: bool, high_closed: bool) -> Span:
    low = None if low is not None and _infinite(low) == -1 else low
    high = None if high is not None and _infinite(high) == 1 else high
    if any(end is not None and _infinite(end) for end in (low, high)):
        raise Unreadable("an interval that ends at the wrong infinity")
    # [-oo, 3] is a slip for (-oo, 3].
    return Span(low, high, low_closed and low is not None, high_closed and high is not None)


def _infinite(node: Node) -> int:
    if node.op == "neg":
        return -_infinite(node.args[0])
    return 1 if node.op == "constant" and node.text == "infty" else 0


def _has_symbols(span: Span) -> bool:
    return any(end is not None and bool(symbols_of(end)) for end in (span.low, span.high))


def _number(node: Node) -> Any:
    value = evaluate(node)
    if value is None or isinstance(value, mpmath.mpc):
        raise Unreadable("an interval whose end has no real value")
    return value


def _order_spans(a: Span, b: Span) -> int:
    return _order(a.low, b.low, low=True)


_BY_LOW_END = cmp_to_key(_order_spans)


def _order(a: Node | None, b: Node | None, *, low: bool) -> int:
    """-1, 0, 1 as ``a`` is below, at or above ``b``; None is minus infinity for low ends, plus infinity for high ones."""
    if a is None or b is None:
        return 0 if a is b else (-1 if (a is None) == low else 1)
    if compare_nodes(a, b) is Match.EQUAL:
        return 0
    left, right = _number(a), _number(b)
    return (
        -1
        if mpmath.mpf(left.numerator if hasattr(left, "numerator") else left) * _den(right)
        < mpmath.mpf(right.numerator if hasattr(right, "numerator") else right) * _den(left)
        else 1
    )


def _den(value: Any) -> Any:
    return value.denominator if hasattr(value, "denominator") else 1


def _nonempty(spans: list[Span]) -> list[Span]:
    kept = []
    for span in spans:
        if span.low is not None and span.high is not None:
            order = _order(span.low, span.high, low=True)
            if order > 0 or (order == 0 and not (span.low_closed and span.high_closed)):
                continue
        kept.append(span)
    return kept


def _touches(left: Span, right: Span) -> bool:
    if left.high is None or right.low is None:
        return True
    order = _order(right.low, left.high, low=True)
    return order < 0 or (order == 0 and (left.high_closed or right.low_closed))


def _joined(left: Span, right: Span) -> Span:
    low_order = _order(left.low, right.low, low=True)
    high_order = _order(left.high, right.high, low=False)
    low_closed = left.low_closed or (low_order == 0 and right.low_closed)
    if high_order == 0:
        return Span(left.low, left.high, low_closed, left.high_closed or right.high_closed)
    last = left if high_order > 0 else right
    return Span(left.low, last.high, low_closed, last.high_closed)


def _meet(left: Span, right: Span) -> Span:
    low_order = _order(left.low, right.low, low=True)
    high_order = _order(left.high, right.high, low=False)
    low = left if low_order > 0 else right
    high = left if high_order < 0 else right
    low_closed = left.low_closed and right.low_closed if low_order == 0 else low.low_closed
    high_closed = left.high_closed and right.high_closed if high_order == 0 else high.high_closed
    return Span(low.low, high.high, low_closed, high_closed)

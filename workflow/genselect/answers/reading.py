r"""Read an answer's text into a ``Shape``: decide its kind, then read each scalar strictly."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from genselect.answers import readers
from genselect.answers.expression import Node, read_expression, symbols_of
from genselect.answers.normal import normal_form
from genselect.answers.shapes import (
    Bracket,
    Listing,
    Opaque,
    Relation,
    Scalar,
    SetOf,
    Shape,
    Union,
    Words,
)
from genselect.answers.spans import bracket_span, combine, relation_union, union_of
from genselect.answers.tokens import CLOSERS, Guarded, Token, Unreadable, split_top, text_of, tokenize, top_level
from genselect.answers.units import number_from_words

__all__ = ["read_shape"]

_PHRASE = re.compile(
    r"^(?:\\text\{)?(?:so |thus |hence |therefore,? )?(?:the )?(?:final |correct )?(?:answer|result)\s*(?:is|:|=)\s*:?\s*\}?\s*",
    re.IGNORECASE,
)
# Kinds on which a comparison by pieces has been seen to accept falsely, or whose meaning is not in the text alone.
_GUARDED = {
    r"\ldots": "an ellipsis", r"\forall": "a quantifier", r"\exists": "a quantifier", r"\mid": "a condition",
    r"\pmod": "a congruence", r"\bmod": "a congruence", r"\mod": "a congruence", r"\equiv": "a congruence",
    r"\Rightarrow": "a deduction", r"\implies": "a deduction", r"\iff": "a deduction", r"\Leftrightarrow": "a deduction",
    r"\approx": "an approximation", r"\sim": "an approximation", r"\simeq": "an approximation", r"\to": "an arrow",
    r"\land": "logic", r"\lor": "logic", r"\wedge": "logic", r"\vee": "logic", r"\neg": "logic", r"\lnot": "logic",
    r"\sum": "a sum, product, integral or limit", r"\prod": "a sum, product, integral or limit",
    r"\int": "a sum, product, integral or limit", r"\lim": "a sum, product, integral or limit", r"\cap": "an intersection",
    "≈": "an approximation", "~": "an approximation",
}  # fmt: skip
_RELATIONS = {"=", "<", ">", r"\leq", r"\geq", r"\neq", r"\in"}
_FLIP = {">": "<", r"\geq": r"\leq"}
_SEPARATORS = {",", ";", "or", "and"}


def read_shape(answer: str) -> Shape:
    """The kind and content of ``answer``; ``Opaque`` with the reason where it is guarded or not understood."""
    text = _PHRASE.sub("", normal_form(answer))
    text = normal_form(text)
    if not text:
        return Opaque("", "an empty answer")
    number = number_from_words(text.split()) if re.fullmatch(r"[A-Za-z][A-Za-z -]*", text) else None
    if number is not None:
        return Scalar(Node("number", value=Fraction(number), text=str(number)))
    if re.fullmatch(r"-?\d+(?:\.\d+)?[eE][+-]?\d{1,4}", text):
        if not re.search(r"[.+]|e-", text, re.IGNORECASE):
            return Opaque(text, "2e3 is a power of ten or a product", guarded=True)
        return Scalar(Node("number", value=Fraction(text)))
    tokens = tokenize(text)
    try:
        return _read(tokens, "\\" not in text)
    except (ValueError, IndexError, RecursionError) as error:
        return _words(text, tokens) or Opaque(text, str(error), isinstance(error, Guarded))


def _words(text: str, tokens: list[Token]) -> Words | None:
    """The text as prose, when it is nothing but words and punctuation."""
    wordy = [token for token in tokens if token.kind in {"word", "text"}]
    plain = all(
        t.kind in {"word", "text", "letter"} or t.text in {",", ".", "'", "-", ";", ":", "!", "?"} for t in tokens
    )
    if not wordy or not plain or any(char.isdigit() for char in text):
        return None
    spoken = " ".join(re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text).split()).rstrip(".!")
    # Short runs of letters are labels (AB, xy), whose case matters; names and prose do not depend on it.
    return Words(spoken if len(spoken) <= 3 else spoken.lower())


def _read(tokens: list[Token], plain: bool) -> Shape:
    if not tokens:
        raise Unreadable("an empty part")
    for index, token in enumerate(tokens):
        if token.text in _GUARDED:
            raise Guarded(_GUARDED[token.text])
        if token.text == "." and index + 1 < len(tokens) and tokens[index + 1].text == ".":
            raise Guarded("an ellipsis")
    matrix = readers.read_matrix(tokens, plain)
    if matrix is not None:
        return matrix
    if tokens[0].text == "]" and tokens[-1].text == "[":  # ]2,5[ for the open interval
        tokens = [Token("symbol", "("), *tokens[1:-1], Token("symbol", ")")]
    parts = split_top(tokens, _SEPARATORS)
    if len(parts) > 1:
        return _read_list(tokens, parts, plain)
    if any(token.text in {r"\pm", r"\mp"} for token in tokens):
        return _read_plus_minus(tokens, plain)
    return _read_single(tokens, plain)


def _read_list(tokens: list[Token], parts: list[list[Token]], plain: bool) -> Shape:
    joiners = {token.text for token, depth in top_level(tokens) if depth == 0 and token.text in _SEPARATORS}
    if {"or", "and"} <= joiners:
        raise Unreadable("'and' together with 'or'")
    joiner = "or" if "or" in joiners else "and" if "and" in joiners else ","
    kept = [part for part in parts if part]
    if len(kept) + (1 if joiner != "," else 0) < len(parts) or len(kept) < 2:  # ", and" leaves one empty part
        raise Unreadable("a list with an empty place")
    items: list[Shape] = []
    for part in kept:
        try:
            item = _read(part, plain)
        except Unreadable:
            words = _words(text_of(part), part)
            if words is None:
                raise
            item = words
        items.extend(item.items if isinstance(item, Listing) else [item])
    if all(isinstance(item, Union) for item in items):
        return combine([item for item in items if isinstance(item, Union)], joiner)
    if any(isinstance(item, Union) for item in items):
        raise Unreadable("a condition beside a value")
    return Listing(tuple(_spread_name(items)), joiner)


def _spread_name(items: list[Shape]) -> list[Shape]:
    """``n=2, 3, 4`` names every value of the list, not only the first."""
    head = items[0]
    if (
        isinstance(head, Relation)
        and head.op == "="
        and head.name
        and not any(isinstance(i, Relation) for i in items[1:])
    ):
        return [head, *(replace(head, right=item) for item in items[1:])]
    return items


def _read_plus_minus(tokens: list[Token], plain: bool) -> Shape:
    if sum(token.text == r"\pm" for token in tokens) > 1:
        raise Unreadable("two plus-minus signs")
    readings: list[Shape] = []
    for plus, minus in (("+", "-"), ("-", "+")):
        signs = {r"\pm": plus, r"\mp": minus}
        readings.append(_read([Token("symbol", signs[t.text]) if t.text in signs else t for t in tokens], plain))
    return Listing(tuple(readings), "or")


def _read_single(tokens: list[Token], plain: bool) -> Shape:
    operators = [token.text for token, depth in top_level(tokens) if depth == 0 and token.text in _RELATIONS]
    if operators:
        return _read_relation(operators, split_top(tokens, _RELATIONS), plain)
    pieces = split_top(tokens, {r"\cup"})
    if len(pieces) > 1:
        return _read_union([_read_single(piece, plain) for piece in pieces])
    real = readers.read_reals(tokens, plain)
    if real is not None:
        return real
    bracket = _read_bracket(tokens, plain)
    if bracket is not None:
        return bracket
    return readers.read_special(tokens, plain) or readers.read_scalar(tokens, plain)


def _read_union(parts: list[Shape]) -> Shape:
    if all(isinstance(part, SetOf) for part in parts):
        # Members are compared as a set, so a repeated member must go: {1,3} u {3,4}.
        members: dict[str, Shape] = {repr(m): m for part in parts if isinstance(part, SetOf) for m in part.items}
        return SetOf(tuple(members.values()))
    spans = []
    for part in parts:
        if isinstance(part, Bracket):
            spans.append(bracket_span(part))
        elif isinstance(part, Union):
            spans.extend(part.spans)
        else:
            raise Unreadable("a union of other things than intervals")
    return union_of(spans)


def _read_bracket(tokens: list[Token], plain: bool) -> Shape | None:
    """A set, tuple or interval when one pair of brackets holds everything and a comma stands inside."""
    if len(tokens) < 2 or tokens[0].text not in CLOSERS or top_level(tokens)[-1][1] != 1:
        return None
    if any(depth == 0 for _, depth in top_level(tokens)) or _closes_early(tokens):
        return None
    left, inner, right = tokens[0].text, tokens[1:-1], tokens[-1].text
    if left == r"\{":
        if any(token.text in {"|", ":"} for token in inner):
            raise Unreadable("a set given by a condition")
        return SetOf(tuple(_flat(_read(part, plain) for part in split_top(inner, {",", ";"})))) if inner else SetOf(())
    parts = split_top(inner, {",", ";"})
    if len(parts) < 2 or left in {r"\lfloor", r"\lceil"}:
        return None
    if any(token.text in {r"\pm", r"\mp"} for token in inner):
        raise Unreadable("a plus-minus inside brackets")
    items = tuple(_read(part, plain) for part in parts)
    if any(isinstance(item, Relation) for item in items):
        raise Unreadable("a relation inside brackets")
    return SetOf(items) if left == "{" else Bracket(left, items, right)


def _closes_early(tokens: list[Token]) -> bool:
    """Whether the first bracket closes before the end: ``(1,2)(3,4)``."""
    closers = set(CLOSERS.values())
    return any(depth == 1 and token.text in closers for token, depth in top_level(tokens)[:-1])


def _flat(shapes: Iterable[Shape]) -> list[Shape]:
    out: list[Shape] = []
    for shape in shapes:
        out.extend(shape.items if isinstance(shape, Listing) else [shape])
    return out


def _read_relation(operators: list[str], sides: list[list[Token]], plain: bool) -> Shape:
    if r"\in" in operators:
        return _read_membership(operators, sides, plain)
    if set(operators) == {"="}:
        return _read_equation(sides, plain)
    if len(operators) > 2 or "=" in operators:
        raise Unreadable("a chain of relations")
    nodes = [read_expression(side, plain=plain) for side in sides]
    union = relation_union(operators, nodes)
    if union is not None:
        return union
    if len(operators) == 2:
        raise Unreadable("a chain of relations")
    operator = operators[0]
    if operator in _FLIP:
        operator, nodes = _FLIP[operator], nodes[::-1]
    return Relation(nodes[0], operator, Scalar(nodes[1]))


def _read_membership(operators: list[str], sides: list[list[Token]], plain: bool) -> Shape:
    if len(operators) > 1 or len(sides[0]) != 1:
        raise Unreadable("a membership among other relations")
    members = _read_single(sides[1], plain)
    if isinstance(members, Bracket):
        members = union_of([bracket_span(members)])
    if isinstance(members, Union):
        return replace(members, variable=sides[0][0].text)
    if isinstance(members, SetOf):
        return members
    raise Guarded("a parametric family")


def _read_equation(sides: list[list[Token]], plain: bool) -> Shape:
    if any(not side for side in sides):
        raise Unreadable("an equation with an empty side")
    if len(sides) == 2 and not _name_of(sides[0], plain) and _name_of(sides[1], plain):
        sides = sides[::-1]  # 5 = x
    name = _name_of(sides[0], plain)
    if len(sides) > 2:
        values = [read_expression(side, plain=plain) for side in sides[1:]]
        if not name or any(not readers.same_value(values[0], value) for value in values[1:]):
            raise Unreadable("a chain of equations")
        return Relation(Node("symbol", text=name), "=", Scalar(values[-1]), name)
    if not name:
        return Relation(read_expression(sides[0], plain=plain), "=", Scalar(read_expression(sides[1], plain=plain)))
    try:
        left = read_expression(sides[0], plain=plain)
    except Unreadable:
        left = Node("symbol", text=name)
    return Relation(left, "=", _read(sides[1], plain), name)


def _name_of(side: list[Token], plain: bool) -> str:
    r"""The side as a name: ``x``, ``x_1``, ``f(x)``, ``AB``, ``\angle A``, ``(x,y)``, ``\text{Area}``; '' for any other."""
    texts = [token.text for token in side]
    if len(side) == 1 and side[0].kind in {"word", "text"}:
        return texts[0]
    if texts[:1] == ["("] and len(side) > 4 and all(t.kind == "letter" or t.text in {"(", ")", ","} for t in side):
        return "".join(texts)
    try:
        node = read_expression(side, plain=plain)
    except Unreadable:
        return ""
    if node.op == "symbol" or (node.op == "unknown" and node.args[0].op != "unknown"):
        return "".join(texts)
    return ""


def is_closed(shape: Shape) -> bool:
    """Whether a shape holds no free symbol, as far as it is made of scalars."""
    if isinstance(shape, Scalar):
        return not symbols_of(shape.node)
    if isinstance(shape, Listing | SetOf | Bracket):
        return all(is_closed(item) for item in shape.items)
    return not isinstance(shape, Relation)

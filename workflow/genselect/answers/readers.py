r"""Readers of single answers that are no list, bracket or relation: matrices, ratios, numbers with units ..."""

from __future__ import annotations

import re
from fractions import Fraction

from genselect.answers.expression import Node, read_expression
from genselect.answers.numeric import Match, compare_nodes
from genselect.answers.shapes import Based, BigO, Matrix, Ratio, Scalar, SetOf, Shape, Span, Union
from genselect.answers.spans import without_points
from genselect.answers.tokens import FUNCTIONS, Guarded, Token, Unreadable, split_top, top_level
from genselect.answers.units import SCALE_WORDS, canonical_unit, is_unit_word

__all__ = ["read_matrix", "read_reals", "read_scalar", "read_special", "same_value"]

_MATRICES = frozenset("matrix pmatrix bmatrix Bmatrix smallmatrix vmatrix array".split())
_UNIT_PIECE = re.compile(r"[A-Za-z¢]+|/|\^-?\d+|\^\{-?\d+\}|\S")
_PERCENT = frozenset({"%", r"\%"})
_CURRENCY = {r"\$": "dollars", "€": "euros", "£": "british pounds", r"\pounds": "british pounds"}


def same_value(left: Node, right: Node) -> bool:
    """Whether two expressions certainly have the same value."""
    return compare_nodes(left, right) is Match.EQUAL


def read_matrix(tokens: list[Token], plain: bool) -> Matrix | None:
    r"""``\begin{pmatrix}..\end{pmatrix}``, round brackets around it allowed; None when the tokens are no matrix."""
    texts = [token.text for token in tokens]
    if texts[:2] == ["(", r"\begin"] and texts[-1] == ")":
        tokens, texts = tokens[1:-1], texts[1:-1]
    if texts[0] != r"\begin" or texts.count(r"\begin") != 1 or len(texts) < 9 or texts[-4] != r"\end":
        return None
    name = texts[2]
    if name not in _MATRICES or texts[-2] != name:
        raise Unreadable(f"the environment {name}")
    start = 4
    if name == "array" and texts[start] == "{":
        start = texts.index("}", start) + 1
    rows = [row for row in split_top(tokens[start:-4], {r"\\"}) if row]
    entries = tuple(tuple(read_expression(cell, plain=plain) for cell in split_top(row, {"&"})) for row in rows)
    if len({len(row) for row in entries}) != 1:
        raise Unreadable("a matrix with ragged rows")
    return Matrix(entries, determinant=name == "vmatrix")


def read_reals(tokens: list[Token], plain: bool) -> Shape | None:
    r"""``\mathbb{R}``, with points taken out by ``\setminus``, and ``\emptyset``."""
    texts = [token.text for token in tokens]
    if texts in ([r"\emptyset"], [r"\{", r"\}"]):
        return SetOf(())
    if texts[:4] != [r"\mathbb", "{", "R", "}"]:
        return None
    if len(texts) == 4:
        return Union((Span(None, None),))
    if texts[4] not in {r"\setminus", r"\backslash", "-"} or texts[5:6] != [r"\{"] or texts[-1] != r"\}":
        raise Unreadable("a set of other numbers")
    ends = [read_expression(part, plain=plain) for part in split_top(tokens[6:-1], {","})]
    return without_points(ends)


def read_special(tokens: list[Token], plain: bool) -> Shape | None:
    """Ratios and times, asymptotic classes, numbers in a base; None for anything else."""
    texts = [token.text for token in tokens]
    head = texts[0].lstrip("\\")
    if head in {"O", "o", "Theta", "Omega"} and texts[1:2] == ["("] and texts[-1] == ")" and len(texts) > 3:
        return BigO(head, read_expression(tokens[2:-1], plain=plain))
    if len(tokens) >= 3 and tokens[0].kind == "number" and texts[1] == "_":
        base = "".join(texts[2:]).strip("{}")
        if base in {r"\text10", "ten"}:
            base = "10"
        if not base.isdigit() or not texts[0].isdigit() or len(texts) > 5:
            raise Unreadable("a number with a subscript that is no base")
        return Based(texts[0].lstrip("0") or "0", int(base))
    if any(token.text == ":" and depth == 0 for token, depth in top_level(tokens)):
        return _read_ratio(tokens, plain)
    return None


def read_scalar(tokens: list[Token], plain: bool) -> Scalar:
    """One value with an optional currency sign before it or a unit behind it."""
    unit = ""
    start = 1 if tokens[0].text == "-" else 0
    if start < len(tokens) - 1 and tokens[start].text in _CURRENCY:
        unit = _CURRENCY[tokens[start].text]
        tokens = tokens[:start] + tokens[start + 1 :]
    cut = next((k for k, token in enumerate(tokens) if k and _starts_unit(token, tokens[k + 1 :])), len(tokens))
    body, tail = tokens[:cut], tokens[cut:]
    if tail and any(token.kind == "word" for token in body):
        raise Unreadable("words before a unit")
    if tail and tail[0].text == "°" and any(token.text[1:] in FUNCTIONS for token in body):
        body, tail = tokens, []  # the argument of \\sin 30°, not a unit
    if (
        len(body) == 2
        and body[0].kind == "number"
        and body[1].kind == "letter"
        and body[1].spaced
        and is_unit_word(body[1].text, in_text=True)
    ):
        raise Guarded("a letter that may be a unit or a variable")
    if len(body) > 3 and _is_measure(body):
        body, tail = body[:1], [Token("text", body[1].text), *body[2:]]  # 9.8 m/s^2
    factor = 1
    if tail and tail[0].text.lower() in SCALE_WORDS:
        factor = SCALE_WORDS[tail[0].text.lower()]
        tail = tail[1:]
        if not factor or len(body) != 1 or body[0].kind != "number":
            raise Unreadable("a word for a scale without a number")
    if tail:
        named = _read_unit(tail)
        if unit and named != unit:
            raise Unreadable("two units")
        unit = named
    node = read_expression(body, plain=plain)
    return Scalar(node if factor == 1 else Node("mul", (node, Node("number", value=Fraction(factor)))), unit)


def _read_ratio(tokens: list[Token], plain: bool) -> Ratio:
    suffix = ""
    if tokens[-1].kind in {"word", "text"}:
        suffix = tokens[-1].text.lower().replace(".", "").replace(" ", "")
        tokens = tokens[:-1]
        if suffix not in {"am", "pm"}:
            raise Unreadable("words after a ratio")
    parts = split_top(tokens, {":"})
    clock = len(parts) in {2, 3} and all(len(p) == 1 and p[0].text.isdigit() and len(p[0].text) == 2 for p in parts[1:])
    clock = clock and len(parts[0]) == 1 and parts[0][0].text.isdigit() and len(parts[0][0].text) <= 2
    return Ratio(tuple(read_expression(part, plain=plain) for part in parts), clock, suffix)


def _is_measure(body: list[Token]) -> bool:
    number, letter, slash = body[:3]
    measure = number.kind == "number" and letter.kind == "letter" and letter.spaced and slash.text == "/"
    return measure and is_unit_word(letter.text, in_text=True)


def _starts_unit(token: Token, rest: list[Token]) -> bool:
    if token.kind == "text":
        return True
    if token.kind == "word":
        word = token.text.lower()
        return is_unit_word(token.text, in_text=False) or word in SCALE_WORDS or word in {"square", "cubic", "sq"}
    return token.text in _PERCENT or token.text in {"¢", "€"} or (token.text == "°" and not rest)


def _read_unit(tail: list[Token]) -> str:
    words: list[str] = []
    for token in tail:
        if token.text in _PERCENT:
            words.append("%")
        elif token.text == "°":
            words.append("°")
        elif token.kind == "text":
            words.extend(_UNIT_PIECE.findall(token.text))
        elif (
            token.text in {"^", "{", "}"} or token.kind in {"word", "letter", "number"} or token.text in {"/", "¢", "€"}
        ):
            words.append(token.text)
        else:
            raise Unreadable(f"{token.text!r} in a unit")
    words = re.sub(r"\^ \{? ?(-?\d+) ?\}?", r"^\1", " ".join(words)).split()
    connectors = {"/", "per", "square", "squared", "cubic", "cubed", "sq", "a", "an", "each"}
    after_slash = False
    for word in words:
        known = word in connectors or re.fullmatch(r"\^-?\d+", word) or word in {"%", "°", "¢", "€"}
        if not known and not is_unit_word(word, in_text=after_slash or any(t.kind == "text" for t in tail)):
            raise Unreadable(f"the word {word!r} after a number")
        after_slash = word == "/"
    return canonical_unit(["%" if w == "percent" else w for w in words])

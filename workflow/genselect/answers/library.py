r"""The part of stage 2 that rests on ``math-verify``: LaTeX beyond the strict reader's notation.

``math-verify`` (Hugging Face, Apache-2.0) parses with latex2sympy2_extended. Its grammar recovers from what it does not
understand by skipping it, and its comparison tolerates rounding; both are behind its known false accepts. So its parse
is taken only when every numeral and letter of the text is found again in it, and its "equal" only when the values of
both sides agree to many digits.
"""

from __future__ import annotations

import functools
import logging
import re
import string
from typing import Any

import mpmath

from genselect.answers.expression import symbols_of
from genselect.answers.numeric import Match, evaluate
from genselect.answers.shapes import Opaque, Scalar, Shape
from genselect.answers.tokens import tokenize

__all__ = ["library_match", "quiet_library"]

_DIGITS = 30


def library_match(gold: Shape, pred: Shape) -> Match:
    """Verdict of math-verify on two closed values, guarded; UNKNOWN for everything that is no closed value."""
    values = [_value(shape) for shape in (gold, pred)]
    if any(value is None for value in values):
        return Match.UNKNOWN
    left, right = values
    gap, scale = abs(left - right), max(abs(left), abs(right), mpmath.mpf(1))
    if gap <= scale * mpmath.mpf(10) ** (5 - _DIGITS):
        return Match.EQUAL if _verify(gold, pred) else Match.UNKNOWN
    return Match.DIFFERENT if gap > scale * mpmath.mpf(10) ** -10 else Match.UNKNOWN


def quiet_library() -> None:
    """Import math-verify and silence its loggers, which report every text that does not parse."""
    import math_verify  # noqa: F401  (sympy takes a second to import: workers pay it once, before their first pair)

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _value(shape: Shape) -> Any:
    if isinstance(shape, Scalar):
        if shape.unit or symbols_of(shape.node):
            return None
        value = evaluate(shape.node, _DIGITS + 10)
        return mpmath.mpf(value.numerator) / value.denominator if hasattr(value, "numerator") else value
    if not isinstance(shape, Opaque) or (shape.guarded and "integral" not in shape.reason):
        return None
    expression = _parse(shape.text)
    if expression is None or not hasattr(expression, "doit") or expression.free_symbols:
        return None
    try:
        value = expression.doit().evalf(_DIGITS + 10)
        return mpmath.mpmathify(value._to_mpmath((_DIGITS + 10) * 4)) if value.is_number else None
    except Exception:  # sympy raises what it likes on expressions it cannot do; every failure means "no value"
        return None


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> Any:
    """The sympy expression for the whole text, or None when a part of the text is not found again in it."""
    if any(token.kind == "text" or (token.kind == "word" and len(token.text) > 4) for token in tokenize(text)):
        return None
    quiet_library()
    import math_verify

    try:
        # No time limit of its own (it needs signals in the main thread): the pool around this kills what takes too long.
        parsed = math_verify.parse(f"${text}$", [math_verify.LatexExtractionConfig()], parsing_timeout=None)
    except Exception:
        return None
    if not parsed or isinstance(parsed[0], str) or parsed[-1] != text:
        return None
    expression: Any = parsed[0]
    letters = set(re.sub(r"\\[A-Za-z]+", "", text)) & set(string.ascii_letters) - {"d", "e", "i"}
    numerals = {int(digits) for digits in re.findall(r"\d+", text)} - {0, 1}
    names = {str(symbol) for symbol in expression.atoms() if getattr(symbol, "is_Symbol", False)}
    found = {
        abs(int(part))
        for atom in expression.atoms()
        if getattr(atom, "is_Rational", False)
        for part in (atom.p, atom.q)
    }
    return expression if letters <= names and numerals <= found else None


def _verify(gold: Shape, pred: Shape) -> bool:
    import math_verify

    left, right = (_parse(shape.text) if isinstance(shape, Opaque) else None for shape in (gold, pred))
    if left is None or right is None:
        return True  # one side was read strictly; the agreement of the values to many digits stands alone
    return bool(math_verify.verify(left.doit(), right.doit(), timeout_seconds=None))

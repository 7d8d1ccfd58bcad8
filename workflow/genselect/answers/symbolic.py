r"""Stage 2: are two answers equivalent by symbols and numbers alone?

Two readers must not be fooled at once. The strict reader (``reading``, ``compare``) decides the kinds of answer it
understands completely. What lies beyond its notation (sums, integrals, limits and other LaTeX) goes to ``math-verify``,
whose acceptance counts only when both parses are shown to have used the whole text and when their values agree to many
digits: its tolerant grammar skips what it does not understand, which is where its known false accepts come from.
"""

from __future__ import annotations

import enum
import re

from genselect.answers.compare import compare_shapes
from genselect.answers.library import library_match
from genselect.answers.normal import normal_form
from genselect.answers.numeric import Match
from genselect.answers.reading import read_shape
from genselect.answers.shapes import Listing, Opaque, Ratio, Scalar, Shape

__all__ = ["SymbolicVerdict", "symbolic_verdict"]


class SymbolicVerdict(enum.StrEnum):
    """EQUAL accepts. DIFFERENT is a clear difference. The others prove nothing either way."""

    EQUAL = "equal"
    DIFFERENT = "different"
    GUARDED = "guarded"  # understood, but the texts alone do not settle it (20 and 20%, a rounded decimal)
    UNPARSABLE = "unparsable"
    TIMEOUT = "timeout"  # over the time limit, or the worker died


def symbolic_verdict(gold: str, pred: str) -> SymbolicVerdict:
    """Verdict on one pair of bare answers (no box). Never raises; may be slow on hostile input: see SymbolicChecker."""
    if not gold.strip() or not pred.strip():
        return SymbolicVerdict.UNPARSABLE
    if normal_form(gold) == normal_form(pred):
        return SymbolicVerdict.EQUAL
    left, right = read_shape(gold), read_shape(pred)
    left, right = _as_measure(gold, left, right), _as_measure(pred, right, left)
    if isinstance(left, Opaque) or isinstance(right, Opaque):
        return _beyond_reading(left, right)
    try:
        match = compare_shapes(left, right)
    except (ValueError, RecursionError, OverflowError):
        match = Match.UNKNOWN
    return _VERDICTS[match]


_VERDICTS = {
    Match.EQUAL: SymbolicVerdict.EQUAL,
    Match.DIFFERENT: SymbolicVerdict.DIFFERENT,
    Match.UNKNOWN: SymbolicVerdict.GUARDED,
}
# `5 m` is five metres or five times m.
_LETTER_UNIT = re.compile(r"(-?\d+(?:\.\d+)?) ?([mgshLlNJWVAK])")
_TRAILING_ELLIPSIS = re.compile(r"[,:]?\s*\\ldots$")


def _as_measure(answer: str, shape: Shape, other: Shape) -> Shape:
    """``shape``, but with its one letter read as a unit when the other answer has a unit or such a letter too."""
    match = _LETTER_UNIT.fullmatch(normal_form(answer))
    partner = (isinstance(other, Scalar) and bool(other.unit)) or (
        isinstance(other, Opaque) and _LETTER_UNIT.fullmatch(other.text) is not None
    )
    return read_shape(rf"{match.group(1)}\text{{{match.group(2)}}}") if match and partner else shape


def _beyond_reading(left: Shape, right: Shape) -> SymbolicVerdict:
    """The pair when the strict reader does not read one side at least."""
    texts = [shape.text if isinstance(shape, Opaque) else "" for shape in (left, right)]
    if sum(r"\forall" in text for text in texts) == 1:
        return SymbolicVerdict.DIFFERENT  # a claim about all values against one without
    if all(text.count(r"\ldots") == 1 and text.endswith(r"\ldots") for text in texts):
        return _open_ended(*texts)
    match = library_match(left, right)
    if match is not Match.UNKNOWN:
        return _VERDICTS[match]
    guarded = any(isinstance(shape, Opaque) and shape.guarded for shape in (left, right))
    return SymbolicVerdict.GUARDED if guarded else SymbolicVerdict.UNPARSABLE


def _open_ended(gold: str, pred: str) -> SymbolicVerdict:
    """Lists and ratios that go on: the members shown can prove a difference, never that the rest agrees."""
    shown = [read_shape(_TRAILING_ELLIPSIS.sub("", text)) for text in (gold, pred)]
    left, right = shown
    alike = isinstance(left, Listing | Ratio) and isinstance(right, type(left)) and len(left.items) == len(right.items)
    return (
        SymbolicVerdict.DIFFERENT
        if alike and compare_shapes(left, right) is Match.DIFFERENT
        else SymbolicVerdict.GUARDED
    )

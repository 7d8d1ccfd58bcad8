r"""What kind of answer a text is: a number with its unit, a list, a tuple or interval, an inequality, a matrix, words ...

``read_shape`` never guesses: a text that it cannot place wholly becomes ``Opaque``, about which no claim is made.
"""

from __future__ import annotations

from dataclasses import dataclass

from genselect.answers.expression import Node

__all__ = [
    "Based", "BigO", "Bracket", "Listing", "Matrix", "Opaque", "Ratio", "Relation", "Scalar", "SetOf", "Shape", "Span",
    "Union", "Words",
]  # fmt: skip


@dataclass(frozen=True)
class Scalar:
    """One value: an expression, with ``unit`` in canonical words ('' for none; '%' and '°' included)."""

    node: Node
    unit: str = ""


@dataclass(frozen=True)
class Words:
    """Prose, a name or a choice letter, in lower case with single spaces (a single letter keeps its case)."""

    text: str


@dataclass(frozen=True)
class Listing:
    """Unordered items: "1, -2", "2 or -1", both values of a plus-minus. ``joiner`` is ',', 'and' or 'or'."""

    items: tuple[Shape, ...]
    joiner: str = ","


@dataclass(frozen=True)
class SetOf:
    r"""A set in braces; ``\emptyset`` has no items."""

    items: tuple[Shape, ...]


@dataclass(frozen=True)
class Bracket:
    """Ordered items between brackets: a tuple, a vector, or (two items) an interval."""

    left: str
    items: tuple[Shape, ...]
    right: str


@dataclass(frozen=True)
class Span:
    """A real interval: end points (None for infinity) and whether each belongs to it."""

    low: Node | None
    high: Node | None
    low_closed: bool = False
    high_closed: bool = False


@dataclass(frozen=True)
class Union:
    """A union of intervals from low to high, for the named variable ('' when the text names none)."""

    spans: tuple[Span, ...]
    variable: str = ""


@dataclass(frozen=True)
class Relation:
    """``left op right`` with op one of = < <= != ~ (greater-than is turned round); ``name`` when left is one name."""

    left: Node
    op: str
    right: Shape
    name: str = ""


@dataclass(frozen=True)
class Matrix:
    """Rows of entries; ``determinant`` for vertical bars."""

    rows: tuple[tuple[Node, ...], ...]
    determinant: bool = False


@dataclass(frozen=True)
class Ratio:
    """a:b:c; ``clock`` when the spelling is that of a time of day."""

    items: tuple[Node, ...]
    clock: bool
    suffix: str = ""


@dataclass(frozen=True)
class BigO:
    """Asymptotic class: head O, o, Theta or Omega."""

    head: str
    argument: Node


@dataclass(frozen=True)
class Based:
    """Digits in an explicit base."""

    digits: str
    base: int


@dataclass(frozen=True)
class Opaque:
    """A text of a guarded kind (``reason``) or one the reader does not understand; ``text`` is its normal form."""

    text: str
    reason: str
    guarded: bool = False


Shape = Scalar | Words | Listing | SetOf | Bracket | Union | Relation | Matrix | Ratio | BigO | Based | Opaque

"""The questions of the miniature: kinds of answers, each with its right notations and its slips."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["OTHER_KINDS", "Question", "integer"]

_FRACTIONS = ("Add {a}/{b} and {c}/{d}.", "{a}/{b} + {c}/{d} = ?", "What part is {a}/{b} with {c}/{d} more?")
_DECIMALS = (
    "{a} and {b} hundredths, as a decimal?",
    "Put {a} + {b}/100 with a point.",
    "{b} cents and {a} coins: how much?",
)
_TUPLES = ("Solve x+y={sum}, x-y={difference}.", "Which (x, y) sums to {sum} and differs by {difference}?",
           "Pair: sum {sum}, first less second {difference}.", "Where do the lines x+y={sum} and x-y={difference} meet?")  # fmt: skip
_SURDS = ("Simplify the root of {0}.", "Take squares out of sqrt({0}).", "Shortest form of the root of {0}?")
_INTERVALS = ("All x with {low} <= x < {high}?", "Numbers from {low} (taken in) up to {high} (left out)?",
              "Write as an interval: x below {high}, not below {low}.")  # fmt: skip
_DATES = (
    "It is {day}. Which day comes {ahead} days on?",
    "{ahead} days after a {day}?",
    "From {day} count {ahead} days: day?",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True)
class Question:
    """A statement with its answer, in the notations of right candidates, and how to draw a wrong one."""

    kind: str
    statement: str
    notations: tuple[str, ...]
    wrong: Callable[[random.Random], str]


def integer(rng: random.Random) -> Question:
    """Arithmetic with an answer from 0 to 99, as a few tokens of varied length."""
    a, b, c, m = (rng.randrange(2, 100) for _ in range(4))
    m = max(m, 11)
    asked, answer = rng.choice(
        [
            (f"({a}*{b}+{c}) mod 100?", (a * b + c) % 100),
            (f"last 2 digits of {a}*{b}+{c}?", (a * b + c) % 100),
            (f"{a}*{b} mod {m}?", a * b % m),
            (f"rest of {a}*{b}-{c} over {m}?", (a * b - c) % m),
            (f"|{a}-{b}|?", abs(a - b)),
            (f"({a}+{b}*{c}) mod {m}?", (a + b * c) % m),
        ]
    )
    statement = rng.choice(("", "", "find ", "find the ", "now find ", "what is ")) + asked

    def wrong(rng: random.Random) -> str:
        slips = [answer - 1, answer + 1, answer + 10, answer - 10, int(str(answer)[::-1]), rng.randrange(100)]
        return str(rng.choice([slip for slip in slips if 0 <= slip < 100 and slip != answer]))

    return Question("integer", statement, (str(answer),), wrong)


def _fraction(rng: random.Random) -> Question:
    a, c = rng.randrange(1, 9), rng.randrange(1, 9)
    b, d = rng.sample((3, 4, 5, 7, 8, 9, 11, 13), 2)
    total = Fraction(a, b) + Fraction(c, d)
    if total.denominator == 1:
        return _fraction(rng)
    p, q = total.numerator, total.denominator

    def wrong(rng: random.Random) -> str:
        slip = rng.choice([Fraction(a + c, b + d), Fraction(p + 1, q), Fraction(p, q + 1), Fraction(q, p)])
        return f"\\frac{{{slip.numerator}}}{{{slip.denominator}}}" if slip != total else wrong(rng)

    notations = (f"\\frac{{{p}}}{{{q}}}", f"\\dfrac{{{p}}}{{{q}}}", f"{p}/{q}", f"\\frac{{{2 * p}}}{{{2 * q}}}")
    return Question("fraction", rng.choice(_FRACTIONS).format(a=a, b=b, c=c, d=d), notations, wrong)


def _decimal(rng: random.Random) -> Question:
    hundredths = rng.choice([value for value in range(5, 96) if value % 10])
    tenths = rng.randrange(1, 10)
    value = f"{hundredths / 100 + tenths:.2f}"

    def wrong(rng: random.Random) -> str:
        return f"{hundredths / 100 + tenths + rng.choice((-0.9, -0.1, 0.1, 0.9, 1)):.2f}"

    notations = (value, f"{value}0", f"\\frac{{{hundredths + 100 * tenths}}}{{100}}")
    return Question("decimal", rng.choice(_DECIMALS).format(a=tenths, b=hundredths), notations, wrong)


def _tuple(rng: random.Random) -> Question:
    x, y = rng.randrange(-49, 50), rng.randrange(-49, 50)

    def wrong(rng: random.Random) -> str:
        slips = [(y, x), (-x, y), (x, -y), (x + 1, y), (x, y - 1)]
        u, v = rng.choice([slip for slip in slips if slip != (x, y)])
        return f"({u}, {v})"

    statement = rng.choice(_TUPLES).format(sum=x + y, difference=x - y)
    return Question("tuple", statement, (f"({x}, {y})", f"({x},{y})", f"\\left({x}, {y}\\right)"), wrong)


def _surd(rng: random.Random) -> Question:
    k, n = rng.randrange(2, 10), rng.choice((2, 3, 5, 6, 7, 10, 11))

    def wrong(rng: random.Random) -> str:
        return rng.choice((f"{k + 1}\\sqrt{{{n}}}", f"{n}\\sqrt{{{k + n}}}", f"{k * k}\\sqrt{{{n}}}"))

    statement = rng.choice(_SURDS).format(k * k * n)
    notations = (f"{k}\\sqrt{{{n}}}", f"{k} \\sqrt {{{n}}}", f"\\sqrt{{{n}}} \\cdot {k}")
    return Question("surd", statement, notations, wrong)


def _interval(rng: random.Random) -> Question:
    low = rng.randrange(-99, 99)
    high = low + rng.randrange(2, 99)

    def wrong(rng: random.Random) -> str:
        return rng.choice((f"({low}, {high}]", f"[{low}, {high}]", f"({low}, {high})", f"[{low + 1}, {high})"))

    statement = rng.choice(_INTERVALS).format(low=low, high=high)
    notations = (f"[{low}, {high})", f"[{low},{high})", f"\\left[{low}, {high}\\right)")
    return Question("interval", statement, notations, wrong)


def _day(rng: random.Random) -> Question:
    start, ahead = rng.randrange(7), rng.randrange(8, 400)
    day = _DAYS[(start + ahead) % 7]

    def wrong(rng: random.Random) -> str:
        return f"\\text{{{rng.choice([other for other in _DAYS if other != day])}}}"

    statement = rng.choice(_DATES).format(day=_DAYS[start], ahead=ahead)
    return Question("text", statement, (f"\\text{{{day}}}", day, f"\\textbf{{{day}}}"), wrong)


#: Each draws a question of another kind.
OTHER_KINDS = (_fraction, _decimal, _tuple, _surd, _interval, _day)

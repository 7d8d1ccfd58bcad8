r"""Compare two expressions by value: exactly where both are rational, else to many digits at two precisions.

Free symbols are given fixed rational values: positive, negative, integer and large ones. Equality must hold at every
point where both sides are real; two expressions that agree only on part of the domain are ``UNKNOWN``.
"""

from __future__ import annotations

import enum
import math
import zlib
from fractions import Fraction
from typing import Any

import mpmath

from genselect.answers.expression import Node, symbols_of
from genselect.answers.tokens import Unreadable

__all__ = ["Match", "compare_nodes", "evaluate", "rational_value"]


class Match(enum.Enum):
    """What a comparison showed. UNKNOWN proves nothing either way."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


DIGITS = 60
_MAX_BITS = 200_000
_MAX_DIGITS = 3_000
_POSITIVE = [Fraction(*p) for p in ((37, 17), (5, 7), (113, 31), (17, 13), (71, 23), (29, 11), (3, 19))]
_NEGATIVE = [
    -value for value in (Fraction(19, 13), Fraction(41, 12), Fraction(6, 17), Fraction(97, 29), Fraction(8, 3))
]
_INTEGERS = [Fraction(n) for n in (5, 2, 7, 4, 9, 3, 11)]
_LARGE = [Fraction(n) for n in (12347, 3001, 791, 100003, 5003)]


class _Undefined(Exception):
    """The expression has no value here, or none that can be computed in bounds."""


def compare_nodes(gold: Node, pred: Node) -> Match:
    """Whether two expressions have the same value wherever both are real."""
    match = _compare(gold, pred)
    if match is Match.DIFFERENT and _has_bare_log(gold) != _has_bare_log(pred):
        return Match.UNKNOWN  # `\\log 100` is 2 or 4.6
    return match


def _compare(gold: Node, pred: Node) -> Match:
    names = sorted(symbols_of(gold) | symbols_of(pred))
    if not names:
        return _compare_at(gold, pred, {})
    outcomes: dict[str, list[Match]] = {"core": [], "negative": []}
    for kind, pool in (("core", _POSITIVE), ("core", _INTEGERS), ("negative", _NEGATIVE), ("core", _LARGE)):
        for shift in range(3 if kind == "core" else 2):
            env = {name: pool[(i + 2 * shift) % len(pool)] + (i // len(pool)) for i, name in enumerate(names)}
            outcomes[kind].append(_compare_at(gold, pred, env))
    if Match.DIFFERENT in outcomes["core"]:
        return Match.DIFFERENT
    if Match.DIFFERENT in outcomes["negative"] or outcomes["core"].count(Match.EQUAL) < 3:
        return Match.UNKNOWN
    return Match.EQUAL


def rational_value(node: Node) -> Fraction | None:
    """The exact value of a closed expression that is built from rational operations, else ``None``."""
    if symbols_of(node):
        return None
    try:
        value = _Evaluator({}).value(node)
    except (_Undefined, Unreadable, ArithmeticError, ValueError, TypeError):
        return None
    return value if isinstance(value, Fraction) else None


def evaluate(node: Node, digits: int = DIGITS, env: dict[str, Fraction] | None = None) -> Any:
    """Value as a Fraction, an mpmath number to about ``digits`` digits, or ``None`` where there is none."""
    with mpmath.workdps(digits):
        try:
            value = _Evaluator(env or {}).value(node)
            return value if isinstance(value, Fraction) else +value
        except (_Undefined, ArithmeticError, ValueError, TypeError, NotImplementedError):
            return None


def _compare_at(gold: Node, pred: Node, env: dict[str, Fraction]) -> Match:
    digits = DIGITS
    previous: Any = None
    for _ in range(5):
        left, right = evaluate(gold, digits, env), evaluate(pred, digits, env)
        if left is None or right is None:
            return Match.UNKNOWN
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return Match.EQUAL if left == right else Match.DIFFERENT
        with mpmath.workdps(digits):
            left, right = _number(left), _number(right)
            if mpmath.isinf(left) or mpmath.isinf(right):
                return Match.EQUAL if left == right else Match.DIFFERENT
            if mpmath.isnan(left) or mpmath.isnan(right):
                return Match.UNKNOWN
            scale = max(abs(left), abs(right))
            gap = abs(left - right)
            if scale > mpmath.mpf(10) ** (digits // 3) and digits < _MAX_DIGITS:
                # Too few digits to see a unit in the last place of a huge number.
                digits = min(_MAX_DIGITS, 3 * int(mpmath.log10(scale)) + DIGITS)
                if digits == _MAX_DIGITS and scale > mpmath.mpf(10) ** (_MAX_DIGITS // 2):
                    return Match.DIFFERENT if gap > scale * mpmath.mpf(10) ** -20 else Match.UNKNOWN
                continue
            close = gap <= scale * mpmath.mpf(10) ** (15 - digits)
            if not close and gap > scale * mpmath.mpf(10) ** -20 and scale > mpmath.mpf(10) ** -20:
                both_complex = env and _is_complex(left) and _is_complex(right)
                return Match.UNKNOWN if both_complex and not _has_i(gold) and not _has_i(pred) else Match.DIFFERENT
            # Nearly equal, or nearly zero: a true equality gets closer with more digits, a near miss stays put.
            if previous is not None and (gap == 0 or gap <= previous * mpmath.mpf(10) ** (-DIGITS // 2)):
                return Match.EQUAL
            if previous is not None and not close:
                return Match.DIFFERENT
            previous = gap
        digits *= 2
    return Match.UNKNOWN


def _number(value: Any) -> Any:
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _is_complex(value: Any) -> bool:
    return isinstance(value, mpmath.mpc) and abs(value.imag) > abs(value.real) * mpmath.mpf(10) ** -40


def _has_i(node: Node) -> bool:
    return (node.op == "constant" and node.text == "i") or any(_has_i(arg) for arg in node.args)


def _has_bare_log(node: Node) -> bool:
    return (node.op == "call" and node.text == "log" and len(node.args) == 1) or any(map(_has_bare_log, node.args))


class _Evaluator:
    """Evaluates at mpmath's current precision; stays with exact fractions as long as it can."""

    def __init__(self, env: dict[str, Fraction]) -> None:
        self.env = env

    def value(self, node: Node) -> Any:
        if node.op == "number":
            return node.value
        if node.op == "symbol":
            return self.env[node.text]
        if node.op == "constant":
            return {"pi": +mpmath.pi, "e": +mpmath.e, "i": mpmath.mpc(0, 1), "infty": mpmath.inf}[node.text]
        arguments = [self.value(arg) for arg in node.args]
        if node.op == "unknown":
            return self.unknown(node.text, arguments[0])
        result = getattr(self, node.op)(*arguments) if node.op != "call" else self.call(node.text, arguments)
        if isinstance(result, Fraction) and result.numerator.bit_length() + result.denominator.bit_length() > _MAX_BITS:
            raise _Undefined
        return result

    def add(self, *terms: Any) -> Any:
        total = terms[0]
        for term in terms[1:]:
            total = total + term if _both_exact(total, term) else _number(total) + _number(term)
        return total

    def neg(self, value: Any) -> Any:
        return -value

    def mul(self, *factors: Any) -> Any:
        product = factors[0]
        for factor in factors[1:]:
            product = product * factor if _both_exact(product, factor) else _number(product) * _number(factor)
        return product

    def div(self, above: Any, below: Any) -> Any:
        if below == 0:
            raise _Undefined
        return above / below if _both_exact(above, below) else _number(above) / _number(below)

    def pow(self, base: Any, exponent: Any) -> Any:
        if isinstance(exponent, Fraction) and abs(exponent) > 10**7:
            raise _Undefined
        if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
            power = int(exponent)
            if base == 0 and power <= 0:
                raise _Undefined
            if abs(power) * (base.numerator.bit_length() + base.denominator.bit_length()) <= _MAX_BITS:
                return base**power
        if (
            isinstance(exponent, Fraction)
            and exponent.denominator % 2
            and not isinstance(base, mpmath.mpc)
            and base < 0
        ):
            # x^{2/3} as the square of the real cube root, like \sqrt[3]{x}^2 in root().
            magnitude = self.pow(-base, exponent)
            return -magnitude if exponent.numerator % 2 else magnitude
        base, exponent = _number(base), _number(exponent)
        if abs(exponent) * (abs(mpmath.log(abs(base))) if base else 1) > 10**7:
            raise _Undefined
        return base**exponent

    def root(self, radicand: Any, index: Any) -> Any:
        if index == 0:
            raise _Undefined
        radicand, index = _number(radicand), _number(index)
        # The real cube root, as in school mathematics; even roots of negatives are complex.
        if mpmath.im(radicand) == 0 and radicand < 0 and mpmath.im(index) == 0 and index % 2 == 1:
            return -((-radicand) ** (1 / index))
        return radicand ** (1 / index)

    def unknown(self, name: str, argument: Any) -> Any:
        # An unknown function is some fixed value of its argument: equal arguments give equal values.
        key = f"{name}{mpmath.nstr(_number(argument), 25)}".encode()
        return Fraction(zlib.crc32(key) % 99991 + 1, 7919)

    def call(self, name: str, arguments: list[Any]) -> Any:
        if name in {"factorial", "doublefactorial"}:
            return _factorial(name, arguments[0])
        if name == "abs":
            return abs(arguments[0])
        if name in {"floor", "ceil"} and not isinstance(arguments[0], mpmath.mpc):
            rounder = math.floor if name == "floor" else math.ceil
            return Fraction(rounder(arguments[0]))
        if name in {"max", "min"}:
            pick = max if name == "max" else min
            return pick(arguments, key=_number)
        if name in {"gcd", "lcm"}:
            if any(not isinstance(a, Fraction) or a.denominator != 1 for a in arguments):
                raise _Undefined
            return Fraction((math.gcd if name == "gcd" else math.lcm)(*(int(a) for a in arguments)))
        if name == "binomial":
            top, bottom = arguments
            if all(isinstance(a, Fraction) and a.denominator == 1 and 0 <= a <= 3000 for a in arguments):
                return Fraction(math.comb(int(top), int(bottom)))
            if any(abs(_number(a)) > 5000 for a in arguments):
                raise _Undefined
            return mpmath.binomial(_number(top), _number(bottom))
        return _elementary(name, [_number(argument) for argument in arguments])


def _both_exact(left: Any, right: Any) -> bool:
    return isinstance(left, Fraction) and isinstance(right, Fraction)


def _factorial(name: str, value: Any) -> Any:
    if isinstance(value, Fraction) and value.denominator == 1 and 0 <= value <= 5000:
        n = int(value)
        return Fraction(math.factorial(n) if name == "factorial" else math.prod(range(n, 0, -2)))
    if isinstance(value, Fraction) and value.denominator == 1 and value < 0:
        raise _Undefined
    value = _number(value)
    if abs(value) > 10**7 or (name == "doublefactorial" and abs(value) > 5000):
        raise _Undefined
    if abs(value) > 1000:
        return mpmath.exp(mpmath.loggamma(value + 1))  # mpmath would multiply large integers out
    return mpmath.factorial(value) if name == "factorial" else mpmath.fac2(value)


def _elementary(name: str, arguments: list[Any]) -> Any:
    value = arguments[0]
    if name in {"ln", "log", "lg"}:
        if value == 0:
            raise _Undefined
        if len(arguments) == 2:
            return mpmath.log(value) / mpmath.log(arguments[1])
        # `\log` without a base means e or 10 depending on the field: only the same spelling compares equal.
        return (
            mpmath.log(value)
            if name == "ln"
            else mpmath.log(value) * (mpmath.sqrt(3) if name == "log" else 1 / mpmath.log(10))
        )
    if name == "exp" and abs(value) > 10**7:
        raise _Undefined
    names = {
        "arcsin": mpmath.asin, "arccos": mpmath.acos, "arctan": mpmath.atan, "arccot": lambda x: mpmath.pi / 2 - mpmath.atan(x),
        "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan, "cot": mpmath.cot, "sec": mpmath.sec, "csc": mpmath.csc,
        "sinh": mpmath.sinh, "cosh": mpmath.cosh, "tanh": mpmath.tanh, "coth": mpmath.coth, "exp": mpmath.exp,
    }  # fmt: skip
    return names[name](value)

"""Random values in many spellings: every spelling of one value is accepted, no spelling of a near miss ever is."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from genselect.answers import SymbolicVerdict, symbolic_verdict


def _integer(rng: random.Random) -> tuple[list[str], list[str]]:
    n = rng.choice([rng.randrange(2, 100), rng.randrange(1000, 10**6), rng.randrange(10**9, 10**12)])
    same = [
        str(n),
        f"{n:,}",
        f"{n:,}".replace(",", "{,}"),
        f"${n}$",
        f"x={n}",
        f"{n}.0",
        rf"\frac{{{2 * n}}}{{2}}",
        f"0{n}",
        rf"{n - 1}+1",
        rf"{n}\text{{ cm}}",
        rf"\left({n}\right)",
        rf"\boldsymbol{{{n}}}",
        rf"\sqrt{{{n * n}}}",
    ]
    miss = [
        str(n + 1),
        str(-n),
        str(10 * n),
        f"{n}.1",
        f"{n}, {n + 1}",
        f"{n}x",
        f"{n}!",
        rf"\pm {n}",
        f"{n}i",
        f"{n} 1/2",
        rf"{n}\sqrt{{2}}",
        f"x>{n}",
        f"({n},{n})",
        f"{n}:1:1",
        rf"{n}\pi",
        f"{n}, \\ldots",
        f"1/{n}",
        str(n)[:-1] or "0",
    ]
    return same, miss


def _fraction(rng: random.Random) -> tuple[list[str], list[str]]:
    value = Fraction(rng.randrange(2, 60), rng.choice([3, 7, 8, 9, 11, 16, 20]))
    p, q = value.numerator, value.denominator
    if q == 1:
        return _integer(rng)
    same = [
        rf"\frac{{{p}}}{{{q}}}",
        rf"\dfrac{{{p}}}{{{q}}}",
        f"{p}/{q}",
        rf"\frac{{{3 * p}}}{{{3 * q}}}",
        rf"-\frac{{-{p}}}{{{q}}}",
        f"k = {p}/{q}",
    ]
    whole, rest = divmod(p, q)
    if whole:
        same += [f"{whole} {rest}/{q}", rf"{whole}\frac{{{rest}}}{{{q}}}"]
    if q in {8, 16, 20}:
        same.append(str(float(value)))
    miss = [
        rf"\frac{{{p + 1}}}{{{q}}}",
        rf"\frac{{{q}}}{{{p}}}",
        f"-{p}/{q}",
        str(p),
        str(whole),
        f"{whole + 1} {rest or 1}/{q}",
        rf"\frac{{{p}}}{{{q}}}\pi",
        f"{p}, {q}",
        f"({p},{q})",
        f"{p}+{q}",
        f"{p}/{q}x",
        rf"\frac{{{p}}}{{{q}",
        f"{p}/{q}!",
    ]
    return same, [text for text in miss if text != f"{whole + 1} 1/{q}" or rest]


def _surd(rng: random.Random) -> tuple[list[str], list[str]]:
    a, b = rng.randrange(2, 9), rng.choice([2, 3, 5, 6, 7, 10])
    same = [
        rf"{a}\sqrt{{{b}}}",
        rf"\sqrt{{{a * a * b}}}",
        rf"\frac{{{a * b}}}{{\sqrt{{{b}}}}}",
        rf"{a}\cdot {b}^{{1/2}}",
        f"{a}*sqrt({b})",
        rf"{a}\sqrt({b})",
    ]
    miss = [
        rf"\sqrt{{{a * b}}}",
        rf"{a}\sqrt{{{b + 1}}}",
        str(a),
        rf"{a}\sqrt[3]{{{b}}}",
        rf"-{a}\sqrt{{{b}}}",
        rf"{a}+\sqrt{{{b}}}",
        rf"\sqrt{{{b}}}",
        str(a * b),
    ]
    return same, miss


def _interval(rng: random.Random) -> tuple[list[str], list[str]]:
    low = rng.randrange(-9, 5)
    high = low + rng.randrange(2, 9)
    same = [
        f"[{low},{high})",
        rf"{low} \le x < {high}",
        rf"x \in [{low}, {high})",
        rf"\left[{low},{high}\right)",
        rf"x\geq {low} \text{{ and }} x<{high}",
        rf"{high} > x \geq {low}",
        f"[{low},{low + 1}]\\cup[{low + 1},{high})",
    ]
    miss = [
        f"({low},{high})",
        f"[{low},{high}]",
        f"({low},{high}]",
        rf"{low} < x \le {high}",
        f"[{low},{high + 1})",
        f"{low}, {high}",
        rf"\{{{low},{high}\}}",
        rf"x\geq {low}",
        rf"[{low},\infty)",
        f"[{low},{low + 1})\\cup({low + 1},{high})",
        rf"x\geq {low} \text{{ or }} x<{high}",
    ]
    return same, miss


def _collection(rng: random.Random) -> tuple[list[str], list[str]]:
    a, b, c = rng.sample(range(2, 30), 3)
    same = [
        f"{a}, {b}, {c}",
        f"{c},{b}, {a}",
        rf"\{{{b},{a},{c}\}}",
        f"x={a}, {b}, {c}",
        f"x={a} or x={c} or x={b}",
        rf"{a}, {b} \text{{ and }} {c}",
        f"{a}.0; {b}; {c}",
    ]
    miss = [
        f"{a}, {b}",
        f"{a}",
        f"({a},{b},{c})",
        f"{a},{b},{c + 1}",
        f"{a},{b},{-c}",
        f"{a}+{b}+{c}",
        f"{a}, {b}, {c}, {c + 1}",
        f"{a}, {b}, \\ldots, {c}",
        f"{a}:{b}:{c}",
    ]
    return same, miss


def _tuple(rng: random.Random) -> tuple[list[str], list[str]]:
    a, b = rng.sample(range(2, 30), 2)
    same = [
        f"({a},{b})",
        f"( {a} , {b} )",
        rf"\left({a},\, {b}\right)",
        f"(x,y)=({a},{b})",
        rf"(\frac{{{2 * a}}}{{2}},{b}.0)",
        f"({a};{b})",
    ]
    miss = [
        f"({b},{a})",
        f"[{a},{b}]",
        f"({a},{b}]",
        rf"\{{{a},{b}\}}",
        f"({a},{-b})",
        f"({a},{b},{b})",
        str(a),
        f"({a},{b}), ({b},{a})",
        f"{a}/{b}",
    ]
    return same, miss


def _polynomial(rng: random.Random) -> tuple[list[str], list[str]]:
    a, b = rng.sample(range(1, 9), 2)
    s, p = a + b, a * b
    same = [
        f"(x+{a})(x+{b})",
        f"x^2+{s}x+{p}",
        f"{p} + {s}x + x^{{2}}",
        f"x(x+{s})+{p}",
        rf"x^2+{s}\cdot x+{p}",
        f"f(x)=x^2+{s}x+{p}",
    ]
    miss = [
        f"(x-{a})(x+{b})",
        f"x^2+{s}x-{p}",
        f"x^2+{s}x",
        f"x^3+{s}x+{p}",
        f"y^2+{s}y+{p}",
        f"x^2+{s + 1}x+{p}",
        str(p),
        f"x=-{a}, -{b}",
        f"x^2+{s}x+{p}=1",
    ]
    return same, miss


def _complex(rng: random.Random) -> tuple[list[str], list[str]]:
    a, b = rng.sample(range(2, 12), 2)
    same = [f"{a}+{b}i", f"{b}i+{a}", f"{a}.0 + {b}.0i", f"z={a}+{b}i", f"{a} - -{b}i", f"i({b}-{a}i)"]
    miss = [
        f"{a}-{b}i",
        f"{a}+{b}",
        f"{b}+{a}i",
        f"-{a}+{b}i",
        f"{a}",
        f"{b}i",
        rf"\sqrt{{{a * a + b * b}}}",
        f"({a},{b})",
        f"{a}\\pm {b}i",
    ]
    return same, miss


def _matrix(rng: random.Random) -> tuple[list[str], list[str]]:
    a, b, c, d = rng.sample(range(2, 40), 4)
    body = rf"{a}&{b}\\{c}&{d}"
    same = [
        rf"\begin{{pmatrix}}{body}\end{{pmatrix}}",
        rf"\begin{{bmatrix}} {a} & {b} \\ {c} & {d} \\ \end{{bmatrix}}",
        rf"A=\begin{{pmatrix}}{body}\end{{pmatrix}}",
    ]
    miss = [
        rf"\begin{{pmatrix}}{a}&{c}\\{b}&{d}\end{{pmatrix}}",
        rf"\begin{{pmatrix}}{a}&{b}&{c}&{d}\end{{pmatrix}}",
        rf"\begin{{pmatrix}}{a}{b}\\{c}{d}\end{{pmatrix}}",
        rf"\begin{{vmatrix}}{body}\end{{vmatrix}}",
        rf"\begin{{pmatrix}}{a}&{b}\\{c}&-{d}\end{{pmatrix}}",
        str(a * d - b * c),
        f"({a},{b},{c},{d})",
    ]
    return same, miss


FAMILIES = [_integer, _fraction, _surd, _interval, _collection, _tuple, _polynomial, _complex, _matrix]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.strip("_"))
def test_every_spelling_is_accepted_and_no_near_miss(family):
    for seed in range(5):
        same, miss = family(random.Random(seed))
        for gold, pred in itertools.product(same, same):
            assert symbolic_verdict(gold, pred) is SymbolicVerdict.EQUAL, (gold, pred)
        for right, wrong in itertools.product(same, miss):
            assert symbolic_verdict(right, wrong) is not SymbolicVerdict.EQUAL, (right, wrong)
            assert symbolic_verdict(wrong, right) is not SymbolicVerdict.EQUAL, (wrong, right)

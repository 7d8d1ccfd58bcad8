"""Stage 1 and the normal form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genselect.answers import identical, normal_form

PAIRS = [json.loads(line) for line in (Path(__file__).parent / "pairs.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("gold", "pred", "same"),
    [
        ("5", " $5$ ", True),
        (r"\(x\)", "x", True),
        ("x", "$$x$$", True),
        ("5", "5.", False),
        ("1/2", r"\frac12", False),
        ("x y", "xy", False),
        (r"\$5", "5", False),
        ("", "", False),
        ("$", "", False),
        ("$a$ and $b$", "a$ and $b", False),
    ],
)
def test_identical_strips_outer_wrappers_and_nothing_else(gold, pred, same):
    assert identical(gold, pred) is same


@pytest.mark.parametrize(
    "group",
    [
        [r"\frac{1}{2}", r"\dfrac12", r"\tfrac 1 2", r"\frac 12", "½"],
        ["1234567", "1,234,567", "1{,}234{,}567", r"1,\!234,\!567", r"1\,234\,567"],
        ["A", r"\text{A}", "(A)", r"\textbf{(A)}", "A.", r"\mathrm{A}", "$A$"],
        [r"(1, 2)", "(1,2)", r"\left(1,\ 2\right)", r"\bigl( 1 ,2 \bigr)"],
        [r"x\leq 2", r"x \le 2", r"x\leqslant2", "x≤2"],
        [r"90^\circ", "90°", r"90^{\circ}"],
        [r"\sqrt{2}", r"\sqrt2", r"\sqrt 2"],
        [r"\{1, 2\}", r"\left\{1,2\right\}", r"\lbrace 1,2 \rbrace"],
        [r"\pi r", r"\pi  r", r"\pi\,r"],
    ],
)
def test_spellings_of_one_answer_share_a_normal_form(group):
    assert {normal_form(text) for text in group} == {normal_form(group[0])}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("12", "1 2"),
        ("2 1/4", "21/4"),
        ("1, 234", "1,234"),
        ("(1,234)", "1234"),
        (r"\sqrt{12}", r"\sqrt12"),
        ("x_{12}", "x_12"),
        ("a", "A"),
        ("-5", "5"),
        ("5!", "5"),
        (r"\begin{pmatrix}1 \\ -2\end{pmatrix}", r"\begin{pmatrix}1 -2\end{pmatrix}"),
        ("[1,2)", "(1,2)"),
        ("5%", "5"),
        (r"\$5", "5"),
        ("x^{12}", "x^12"),
    ],
)
def test_answers_that_differ_keep_different_normal_forms(one, other):
    assert normal_form(one) != normal_form(other)


@pytest.mark.parametrize(
    "pair", [p for p in PAIRS if p["expect"] != "equal"], ids=lambda p: f"{p['gold']} | {p['pred']}"
)
def test_no_pair_of_unequal_answers_shares_a_normal_form(pair):
    assert normal_form(pair["gold"]) != normal_form(pair["pred"])


@pytest.mark.parametrize("text", sorted({p[side] for p in PAIRS for side in ("gold", "pred")}))
def test_normal_form_is_idempotent_on_answers(text):
    assert normal_form(normal_form(text)) == normal_form(text)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="\\{}()[]$^_,.;:0123456789abx +-/%!fractextsqrt"))
def test_normal_form_never_raises_and_keeps_every_digit(text):
    digits = [ch for ch in text if ch.isdigit()]
    assert [ch for ch in normal_form(text) if ch.isdigit()] == digits

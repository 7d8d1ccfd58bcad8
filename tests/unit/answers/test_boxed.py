r"""Box extraction: the decision for every awkward form, 100,000 random strings, and linear time."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from pathlib import Path

import pytest

from genselect.answers import extract_boxed, final_answer

SHARED = Path(__file__).parents[4] / "shared" / "data" / "boxed_behaviour.jsonl"

DECISIONS = {
    r"The answer is \boxed{42}.": "42",
    r"\boxed{\frac{1}{2}}": r"\frac{1}{2}",
    r"so \fbox{42}": "42",
    r"\boxed 5": "5",
    r"$\boxed 5$ is it": "5",
    r"\boxed {5}": "5",
    r"\boxed{}": "",
    r"\boxed{ 7 }": " 7 ",
    r"First \boxed{5}, wrong; finally \boxed{7}": "7",
    r"\boxed{3}, \boxed{5}, \boxed{7}": "7",
    r"\boxed{\frac{1}{2": None,
    r"\boxed{3} and then the text was cut at \boxed{\frac{1}{": "3",
    r"\boxed{\{1,2,3\}}": r"\{1,2,3\}",
    r"\boxed{\left\{1,2\right.}": r"\left\{1,2\right.",
    r"\boxed{(-\infty, 3]}": r"(-\infty, 3]",
    r"\boxed{\text{The answer is } 5}": r"\text{The answer is } 5",
    r"\boxed{x=5}": "x=5",
    r"\boxed{5\text{ cm}}": r"5\text{ cm}",
    r"\boxed{50\%}": r"50\%",
    r"\boxed{\$12}": r"\$12",
    r"\boxed{90^\circ}": r"90^\circ",
    r"\boxed{1{,}234}": "1{,}234",
    r"\boxed{\boxed{7}}": "7",
    r"\boxed{5}. I put it in \boxed as asked.": "5",
    r"\\boxed{5}": "5",
    r"\boxed{a}\n\boxed{b}": "b",
    "\\boxed{\n42\n}": "\n42\n",
    "**Answer:** 4.": None,
    r"\framebox{9}": None,
    r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}": r"\begin{pmatrix}1\\2\end{pmatrix}",
    r"\boxed{\text{A}}": r"\text{A}",
    r"\boxed{2\text{ or }-1}": r"2\text{ or }-1",
    "boxed{8}": None,
    # Forms beyond the shared list.
    r"\boxed{1} then a stray } and { \boxed{2}": "2",
    r"\boxed{\frac{1}{2} and then, whole, \boxed{7}": "7",
    r"\boxed{a \\}": r"a \\",
    r"Mark it with \boxed ": None,
    r"\boxed{5} or \boxed{ }": " ",
    r"\boxedfoo{5}": None,
    r"\boxed B.": "B",
    r"\boxed A nice box": None,
    r"\boxed{x} \boxed 12.5 apples": "12.5",
    r"\fbox{\boxed{3} m}": "3",
    "": None,
}


@pytest.mark.parametrize(("text", "content"), DECISIONS.items(), ids=range(len(DECISIONS)))
def test_decided_forms(text, content):
    assert extract_boxed(text) == content


@pytest.mark.skipif(not SHARED.exists(), reason="the shared extraction traps are not beside this checkout")
def test_every_shared_form_is_decided():
    for line in SHARED.read_text(encoding="utf-8").splitlines():
        text = json.loads(line)["text"]
        assert extract_boxed(text) == DECISIONS[text]


def test_a_box_around_any_balanced_content_is_read_back():
    rng = random.Random(1)
    pieces = ["{", "}", r"\{", r"\}", r"\frac", "1", " ", "\n", r"\\", "x", "é"]
    found = 0
    for _ in range(3000):
        content = "".join(rng.choices(pieces, k=rng.randrange(12)))
        if _balanced(content):
            found += 1
            assert extract_boxed(rf"so \boxed{{{content}}} is it }}") == content
    assert found > 300


def test_a_hundred_thousand_random_strings_neither_raise_nor_invent_text():
    rng = random.Random(0)
    pieces = [
        r"\boxed",
        r"\fbox",
        "{",
        "}",
        "\\",
        " ",
        "5",
        "as",
        r"\{",
        r"\}",
        "\n",
        "$",
        "é",
        "\x00",
        "{,}",
        r"\boxed{",
        "A",
    ]
    boxes = 0
    for _ in range(100_000):
        text = "".join(rng.choices(pieces, k=rng.randrange(1, 16)))
        content = extract_boxed(text)
        boxes += content is not None
        assert content is None or content in text
        final_answer(text)
    assert boxes > 10_000


@pytest.mark.parametrize(
    "unit",
    [
        r"\boxed{",
        r"\boxed",
        r"\boxed ",
        "{",
        "}",
        "\\",
        r"\boxed{1}",
        r"\boxed{}",
        r"\boxed 1,",
        " ",
        "\\boxed{" + " " * 50,
        "Answer:\n",
    ],
)
def test_time_grows_linearly(unit):
    small, large = (_best_time(unit * n) for n in (12_500, 200_000))
    assert large < 64 * small + 0.05  # linear growth is 16 times, quadratic 256; the rest is for a busy machine


def _balanced(content: str) -> bool:
    braces = re.sub(r"\\[\s\S]", "", content)
    depths = list(itertools.accumulate({"{": 1, "}": -1}.get(char, 0) for char in braces))
    return "\\" not in braces and (not depths or (min(depths) >= 0 and depths[-1] == 0))


def _best_time(text: str) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        final_answer(text)
        extract_boxed(text)
        times.append(time.perf_counter() - start)
    return min(times)

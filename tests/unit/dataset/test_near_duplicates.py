"""Statements that say the same are found; others are left apart."""

from __future__ import annotations

import random
import string

from genselect.config.models import NearDuplicates
from genselect.dataset.near_duplicates import find_duplicates

SETTINGS = NearDuplicates()
LONG = (
    "Let $ABC$ be an acute triangle with circumcenter $O$ and let $D$ be the foot of the altitude from $A$. "
    "Given that $AB = 13$, $BC = 14$ and $CA = 15$, find the distance from $D$ to $O$."
)


def test_layout_case_and_latex_spacing_do_not_hide_a_repetition() -> None:
    variants = [
        LONG,
        LONG.upper(),
        LONG.replace(" ", "\n  "),
        LONG.replace("$", ""),
        LONG.replace("= ", r"=\, "),
        LONG + " ",
    ]
    assert set(find_duplicates(variants, SETTINGS).group) == {0}


def test_a_small_edit_is_near_and_another_problem_is_not() -> None:
    edited = LONG.replace("find the distance", "compute the distance")
    other = "How many positive integers less than 1000 are divisible by neither 5 nor 7, and have exactly three digits?"
    found = find_duplicates([LONG, other, edited], SETTINGS)
    assert found.group[0] == found.group[2] != found.group[1]
    assert (found.pairs, found.duplicated) == (1, 2)


def test_at_threshold_one_only_equal_statements_are_duplicates() -> None:
    strict = NearDuplicates(threshold=1.0)
    found = find_duplicates([LONG, LONG.replace("13", "16"), LONG], strict)
    assert found.group[0] == found.group[2] != found.group[1]


def test_planted_pairs_are_found_among_many() -> None:
    generator = random.Random(5)
    words = ["".join(generator.choices(string.ascii_lowercase, k=7)) for _ in range(400)]
    statements = [" ".join(generator.choices(words, k=30)) for _ in range(600)]
    planted = [(position, len(statements) + number) for number, position in enumerate(range(0, 600, 20))]
    statements += [statements[position].replace("e", "e ", 1) + " indeed" for position, _ in planted]
    found = find_duplicates(statements, SETTINGS)
    assert all(found.group[left] == found.group[right] for left, right in planted)
    assert found.pairs == len(planted)


def test_short_and_empty_statements_are_compared_too() -> None:
    assert find_duplicates([], SETTINGS).group == ()
    found = find_duplicates(["", "1+1", "1 + 1", "2+2"], SETTINGS)
    assert found.group[1] == found.group[2]
    assert len(set(found.group)) == 3

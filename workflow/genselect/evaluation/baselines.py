"""What the candidates are worth without a policy: first, mean, majority of k, oracle, adaptive consistency.

A *class* is a set of candidates of one question whose answers have one normal form (:func:`genselect.answers.normal_form`).
Candidates without a box, or with an empty one, are shown and paid for like any other and are in no class.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from scipy import special

from genselect.answers import normal_form
from genselect.evaluation.questions import CandidateView, Question

#: Confidence at which adaptive consistency stops.
THRESHOLDS = (0.8, 0.9, 0.95)
#: The columns of :func:`baseline_rows`.
COLUMNS = ("question_id", "arm", "correct", "expected", "shown")
#: ``equal(a, b)``: whether two normal forms are one answer.
Equal = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Classes:
    """The equivalence classes of one question's candidates."""

    of: tuple[int | None, ...]
    """Class of each candidate, numbered in order of first appearance; None for a candidate in no class."""
    forms: tuple[frozenset[str], ...]
    """Normal forms of each class: one, or more where ``equal`` merged some."""
    correct: tuple[bool, ...]
    """Whether each class is correct: the label of its members; where they disagree, of most of them (half and half: of the
    first)."""
    mixed: tuple[bool, ...]
    """Whether the members' labels disagree."""

    def leaders(self, shown: int) -> tuple[int, ...]:
        """The classes with most members among the first ``shown`` candidates; several in a tie, none without any answer."""
        counts = self.counts(shown)
        most = max(counts.values(), default=0)
        return tuple(number for number, count in counts.items() if count == most)

    def counts(self, shown: int) -> dict[int, int]:
        """Members of each class among the first ``shown`` candidates; classes without any are left out."""
        counts: dict[int, int] = {}
        for number in self.of[:shown]:
            if number is not None:
                counts[number] = counts.get(number, 0) + 1
        return counts

    def class_of(self, answer: str | None) -> int | None:
        """The class that an answer belongs to by its normal form, or None."""
        form = answer_form(answer)
        return next((number for number, forms in enumerate(self.forms) if form in forms), None)


@functools.lru_cache(maxsize=1 << 16)
def answer_form(answer: str | None) -> str | None:
    """The normal form of an answer; None when there is no answer, or an empty one."""
    return (normal_form(answer) or None) if answer is not None else None


def classify(candidates: Sequence[CandidateView], equal: Equal | None = None) -> Classes:
    """The classes of one question's candidates.

    Args:
        candidates: In the order they are revealed.
        equal: Merges classes of different normal forms as well (``0.5`` and ``1/2``); asked with the first form of each class,
            in order. None: classes are by normal form alone.
    """
    numbers: dict[str, int] = {}
    forms: list[list[str]] = []
    of: list[int | None] = []
    for candidate in candidates:
        form = answer_form(candidate.answer)
        if form is None:
            of.append(None)
            continue
        if form not in numbers:
            same = next((n for n, known in enumerate(forms) if equal is not None and equal(known[0], form)), len(forms))
            if same == len(forms):
                forms.append([])
            forms[same].append(form)
            numbers[form] = same
        of.append(numbers[form])
    labels = [
        [candidate.is_correct for candidate, own in zip(candidates, of, strict=True) if own == number]
        for number in range(len(forms))
    ]
    return Classes(
        of=tuple(of),
        forms=tuple(frozenset(known) for known in forms),
        correct=tuple(_most(members) for members in labels),
        mixed=tuple(len(set(members)) > 1 for members in labels),
    )


def form_pairs(questions: Iterable[Question]) -> list[tuple[str, str]]:
    """The pairs of different normal forms within a question, distinct, sorted: what a symbolic check has to be asked about."""
    pairs: set[tuple[str, str]] = set()
    for question in questions:
        forms = list(dict.fromkeys(form for view in question.candidates if (form := answer_form(view.answer))))
        pairs.update((a, b) for position, a in enumerate(forms) for b in forms[position + 1 :])
    return sorted(pairs)


def equal_by(verdicts: Mapping[tuple[str, str], bool]) -> Equal:
    """An ``equal`` for :func:`classify` out of verdicts on :func:`form_pairs`; a pair without a verdict is not equal."""
    return lambda a, b: verdicts.get((a, b), False) or verdicts.get((b, a), False)


def tie_break(leaders: Sequence[int], question_id: str, shown: int, seed: int) -> int:
    """One of the tied classes, by a generator seeded with seed, question and k: no draw depends on another's."""
    return leaders[0] if len(leaders) == 1 else random.Random(f"{seed}:{question_id}:{shown}").choice(leaders)


def majority(classes: Classes, question_id: str, shown: int, seed: int) -> tuple[float, float]:
    """Majority of the first ``shown`` candidates: verdict of the seeded draw (0 or 1), and its exact mean over ties.

    Without any answer to vote for, both are 0.
    """
    leaders = classes.leaders(shown)
    if not leaders:
        return 0.0, 0.0
    drawn = classes.correct[tie_break(leaders, question_id, shown, seed)]
    return float(drawn), sum(classes.correct[number] for number in leaders) / len(leaders)


def stop_after(classes: Classes, threshold: float) -> int:
    """How many candidates adaptive consistency looks at: 1 to all of them.

    Beta criterion of Aggarwal et al. 2023 (Let's Sample Step by Step, EMNLP; arXiv 2305.11860): with ``v1 >= v2`` members in the
    two leading classes, stop when ``P(p > 1/2) >= threshold`` for ``p ~ Beta(v1 + 1, v2 + 1)``, the chance that the leader stays
    ahead of the second. Candidates in no class count as seen and vote for nothing.
    """
    for shown in range(1, len(classes.of)):
        counts = [*sorted(classes.counts(shown).values(), reverse=True), 0, 0]
        if _stays_ahead(counts[0], counts[1]) >= threshold:
            return shown
    return len(classes.of)


@functools.cache
def _stays_ahead(first: int, second: int) -> float:
    """``P(p > 1/2)`` for ``p ~ Beta(first + 1, second + 1)``."""
    return float(special.betainc(second + 1, first + 1, 0.5))


def baseline_rows(
    questions: Sequence[Question],
    *,
    seed: int,
    equal: Equal | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
) -> pd.DataFrame:
    """Every baseline on every question.

    Args:
        questions: With the same number of candidates each.
        seed: Of the tie-breaks.
        equal: See :func:`classify`.
        thresholds: Of adaptive consistency; arm ``adaptive_0.95`` for 0.95.

    Returns:
        One row a question and arm (``first``, ``mean``, ``majority_1`` ..., ``oracle``, ``adaptive_*``), with :data:`COLUMNS`:
        ``correct`` in [0, 1], the verdict after the seeded draw; ``expected`` in [0, 1], its exact mean over ties, which
        reports use; ``shown``, candidates paid for. For ``mean`` both are the share of correct candidates, and one is shown.
    """
    rows: list[tuple[str, str, float, float, int]] = []
    for question in questions:
        name, views = question.question_id, question.candidates
        classes = classify(views, equal)
        mean = question.correct / len(views)
        first = float(views[0].is_correct)
        rows.append((name, "first", first, first, 1))
        rows.append((name, "mean", mean, mean, 1))
        for shown in range(1, len(views) + 1):
            rows.append((name, f"majority_{shown}", *majority(classes, name, shown, seed), shown))
        best = float(question.correct > 0)
        rows.append((name, "oracle", best, best, len(views)))
        for threshold in thresholds:
            shown = stop_after(classes, threshold)
            rows.append((name, f"adaptive_{threshold:g}", *majority(classes, name, shown, seed), shown))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def baseline_summary(
    questions: Sequence[Question], rows: pd.DataFrame, *, seed: int, equal: Equal | None = None
) -> dict[str, Any]:
    """Figures for a person: accuracy and candidates shown by arm, and what the classes are made of.

    Args:
        questions: As given to :func:`baseline_rows`.
        rows: What it returned.
        seed: Of the tie-breaks.
        equal: As given to it.

    Returns:
        ``arms`` (by arm ``accuracy``, the mean of ``expected``; ``accuracy_drawn``, of ``correct``; ``shown``), ``questions``,
        ``candidates``, ``without_answer`` (candidates in no class), ``classes``, ``mixed_classes`` (labels disagree),
        ``tied_majorities`` (questions whose majority of all candidates is a tie), and ``seed``.
    """
    sets = [classify(question.candidates, equal) for question in questions]
    arms = rows.groupby("arm", sort=False)[["expected", "correct", "shown"]].mean()
    return {
        "questions": len(questions),
        "candidates": sum(len(question.candidates) for question in questions),
        "without_answer": sum(number is None for classes in sets for number in classes.of),
        "classes": sum(len(classes.forms) for classes in sets),
        "mixed_classes": sum(sum(classes.mixed) for classes in sets),
        "tied_majorities": sum(len(classes.leaders(len(classes.of))) > 1 for classes in sets),
        "seed": seed,
        "arms": {
            str(arm): {
                "accuracy": float(row["expected"]),
                "accuracy_drawn": float(row["correct"]),
                "shown": float(row["shown"]),
            }
            for arm, row in arms.iterrows()
        },
    }


def _most(labels: Sequence[bool]) -> bool:
    right = sum(labels)
    return labels[0] if 2 * right == len(labels) else 2 * right > len(labels)

"""How an arm gets its accuracy: by number of correct candidates, with or against the majority, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from genselect.evaluation.baselines import Classes, Equal, classify, majority
from genselect.evaluation.questions import Question
from genselect.evaluation.statistics import question_means


@dataclass(frozen=True)
class Votes:
    """What the votes of a population say, once for all arms."""

    classes: Mapping[str, Classes]
    """By question id."""
    leaders: Mapping[str, tuple[int, ...]]
    """Leading classes of all candidates."""
    right: Mapping[str, float]
    """Verdict of the majority of all candidates after its seeded draw, 0 or 1."""
    recoverable: frozenset[str]
    """Questions whose majority is wrong though a candidate is right."""

    @classmethod
    def of(cls, questions: Sequence[Question], tie_seed: int, equal: Equal | None = None) -> Votes:
        """Count them. ``tie_seed`` and ``equal`` as for :func:`genselect.evaluation.baselines.baseline_rows`."""
        classes = {question.question_id: classify(question.candidates, equal) for question in questions}
        right = {name: majority(own, name, len(own.of), tie_seed)[0] for name, own in classes.items()}
        return cls(
            classes=classes,
            leaders={name: own.leaders(len(own.of)) for name, own in classes.items()},
            right=right,
            recoverable=frozenset(
                question.question_id for question in questions if question.correct and not right[question.question_id]
            ),
        )


def strata(arm: pd.DataFrame, reference: pd.DataFrame, questions: Sequence[Question]) -> list[dict[str, Any]]:
    """The difference by number of correct candidates.

    Args:
        arm: Rows with ``question_id`` and ``expected``.
        reference: The same, on the same questions.
        questions: The population.

    Returns:
        One entry a stratum: ``correct`` (of the candidates), ``questions``, ``arm`` and ``reference`` (accuracies), ``difference``,
        ``standard_error`` (clustered by question; None with one question). Strata describe; they are not tested.
    """
    correct = pd.Series({question.question_id: question.correct for question in questions})
    ours, theirs = question_means(arm, "expected"), question_means(reference, "expected")
    frame = pd.DataFrame({"arm": ours, "reference": theirs, "correct": correct.reindex(ours.index)})
    frame["difference"] = frame["arm"] - frame["reference"]
    found = []
    for level, group in frame.groupby("correct", sort=True):
        size = len(group)
        found.append(
            {
                "correct": int(str(level)),
                "questions": size,
                "arm": float(group["arm"].mean()),
                "reference": float(group["reference"].mean()),
                "difference": float(group["difference"].mean()),
                "standard_error": float(group["difference"].std(ddof=1)) / math.sqrt(size) if size > 1 else None,
            }
        )
    return found


def majority_behaviour(rows: pd.DataFrame, votes: Votes) -> dict[str, float | int | None]:
    """With or against the vote.

    Args:
        rows: Of one arm: ``question_id``, ``correct``, ``shown``; and ``answer`` (text or None) where the arm submits answers.
        votes: Of the population.

    Returns:
        Shares of answers, each None where it has no base:

        - ``follow_majority``: of the answers submitted, those in a leading class of all candidates (any of the tied ones);
        - ``follow_majority_seen``: the same, of the candidates shown in that episode;
        - ``minority_recovery``: on questions with a correct candidate whose majority is wrong, answers that are right;
          ``recoverable_questions`` is their number;
        - ``majority_kept``: on questions whose majority is right, answers that are right.
    """
    followed: list[float] = []
    followed_seen: list[float] = []
    if "answer" in rows:
        for name, answer, shown in zip(rows["question_id"], rows["answer"], rows["shown"], strict=True):
            if not isinstance(answer, str):
                continue
            own = votes.classes[name]
            number = own.class_of(answer)
            followed.append(number in votes.leaders[name])
            if shown > 0:
                followed_seen.append(number in own.leaders(int(shown)))
    return {
        "follow_majority": _mean(followed),
        "follow_majority_seen": _mean(followed_seen),
        "minority_recovery": _mean(rows.loc[rows["question_id"].isin(votes.recoverable), "correct"]),
        "recoverable_questions": len(votes.recoverable),
        "majority_kept": _mean(rows.loc[rows["question_id"].map(votes.right) == 1.0, "correct"]),
    }


def cost_points(arms: Mapping[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """Accuracy against candidates shown, an entry an arm, cheapest first.

    Args:
        arms: Rows by arm: ``question_id``, ``expected``, ``shown``. Majorities (``majority_k``) make the reference curve.

    Returns:
        ``arm``, ``shown`` (mean), ``accuracy``, ``standard_error`` (clustered by question), and ``majority_at_same_cost``: the
        accuracy of the majority of as many candidates, linear between whole numbers of them; None outside the curve.
    """
    points: list[dict[str, Any]] = []
    for name, rows in arms.items():
        means = question_means(rows, "expected")
        error = float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else None
        points.append(
            {
                "arm": name,
                "shown": float(question_means(rows, "shown").mean()),
                "accuracy": float(means.mean()),
                "standard_error": error,
            }
        )
    curve = sorted((point["shown"], point["accuracy"]) for point in points if point["arm"].startswith("majority_"))
    for point in points:
        inside = bool(curve) and curve[0][0] <= point["shown"] <= curve[-1][0]
        at_cost = (
            np.interp(point["shown"], [cost for cost, _ in curve], [value for _, value in curve]) if inside else None
        )
        point["majority_at_same_cost"] = None if at_cost is None else float(at_cost)
    return sorted(points, key=lambda point: (point["shown"], point["arm"]))


def shown_histogram(rows: pd.DataFrame) -> dict[str, int]:
    """Answers by number of candidates shown."""
    counts = rows["shown"].value_counts().sort_index()
    return {f"{shown:g}": int(count) for shown, count in counts.items()}


def _mean(values: Sequence[float] | pd.Series) -> float | None:
    return float(np.mean(np.asarray(values, dtype=np.float64))) if len(values) else None

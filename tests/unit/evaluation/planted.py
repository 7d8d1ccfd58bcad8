"""Planted evaluations: populations and arms whose truth is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from genselect.evaluation import (
    Arm,
    CandidateView,
    Question,
    baseline_arms,
    baseline_rows,
    make_hypothesis,
    make_settings,
    population_sha256,
)

JUDGE = "a" * 64
MINIMUM = {
    "difference": 0.05, "at_double_variance": 0.07, "variance": 0.3, "discordance": 0.3, "source": "planted", "alpha": 0.025,
    "power": 0.8, "questions": 1, "samples": 1,
}  # fmt: skip


def population(count: int, seed: int = 0) -> list[Question]:
    """Questions with one to seven of eight correct; most of the wrong candidates share an answer."""
    rng = np.random.default_rng(seed)
    questions = []
    for number in range(count):
        right = rng.permutation(8) < rng.integers(1, 8)
        wrong = np.where(rng.random(8) < 0.7, "1", rng.integers(2, 7, size=8).astype(str))
        views = tuple(CandidateView("7" if ok else str(slip), bool(ok)) for ok, slip in zip(right, wrong, strict=True))
        questions.append(Question(f"q{number:05d}", "7", views))
    return questions


def model_rows(
    questions: Sequence[Question], lift: float, *, samples: int = 1, seeds: Sequence[int] = (0,), stream: int = 1
) -> pd.DataFrame:
    """A policy that is right with the share of correct candidates plus ``lift``; it answers 7 when it is right, else 1."""
    rng = np.random.default_rng(stream)
    chance = np.array([question.correct / 8 for question in questions])
    rows = []
    for seed in seeds:
        right = rng.random((samples, len(questions))) < np.clip(chance + lift, 0, 1)
        for sample in range(samples):
            rows.append(
                pd.DataFrame(
                    {
                        "question_id": [question.question_id for question in questions],
                        "seed": seed,
                        "sample": sample,
                        "correct": right[sample].astype(float),
                        "answer": np.where(right[sample], "7", "1"),
                        "shown": rng.integers(1, 5, len(questions)),
                    }
                )
            )
    return pd.concat(rows, ignore_index=True)


def study(
    count: int = 1200, lift: float = 0.0, *, samples: int = 2, judge: str = JUDGE, **more: Any
) -> tuple[dict[str, Arm], list[Question], dict[str, Any]]:
    """Arms, questions and settings: every baseline, an untrained policy, and a trained one that is ``lift`` better."""
    questions = population(count)
    arms = baseline_arms(baseline_rows(questions, seed=3), JUDGE)
    arms["untrained"] = Arm("untrained", model_rows(questions, 0.0, samples=samples, stream=1), JUDGE)
    arms["trained"] = Arm("trained", model_rows(questions, lift, samples=samples, stream=2), judge)
    return arms, questions, settings_of(arms, questions, samples=samples, **more)


def settings_of(
    arms: Mapping[str, Arm],
    questions: Sequence[Question],
    samples: int = 2,
    exploratory: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    values: dict[str, Any] = {
        "hypotheses": [
            make_hypothesis("above_untrained", "trained", "untrained"),
            make_hypothesis("above_majority", "trained", "majority_8"),
        ],
        "arms": [name for name in arms if name not in exploratory],
        "exploratory_arms": list(exploratory),
        "questions": len(questions),
        "population_sha256": population_sha256(questions),
        "samples": {name: samples for name, arm in arms.items() if arm.kind == "model"},
        "seeds": {"training": [1], "tie_break": 3, "bootstrap": 5, "draw": 7},
        "judge_fingerprint": JUDGE,
        "smallest_effect": 0.02,
    }
    return make_settings(**{**values, **more})

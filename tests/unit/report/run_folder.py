"""A small run directory, written with the library's own writers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from genselect.formats import read_json, write_json
from genselect.training import calibration, guards, proofs
from genselect.training.records import Trajectory, write_step


def trajectory(number: int, step: int, attempt: int, explores: int) -> Trajectory:
    return Trajectory(
        question_id=f"omr-{number:06d}",
        sample=0,
        step=step,
        attempt=attempt,
        explores=explores,
        revealed=min(explores, 8),
        submitted="42",
        verdict=True,
        verdict_source="candidate",
        well_formed=True,
        end="submit",
        score_verdict=1.0,
        score_format=0.0,
        score_cost=0.0,
        shaping=0.0,
        prompt_tokens=40,
        response_tokens=30,
        turns=explores + 1,
        length_capped=False,
        decision_tokens=(0,),
        decision_k=(0,),
    )


class RunFolder:
    """A run, step by step, as the launcher and the recorder leave it."""

    def __init__(self, path: Path, seed: int = 0, **settings: Any) -> None:
        self.path = path
        self.generator = np.random.default_rng(seed)
        self.attempts: list[dict[str, Any]] = []
        self.settings = settings
        self.history: list[dict[str, Any]] = []

    def attempt(self, resumed_from: int | None = None, ended: str | None = None) -> RunFolder:
        """Begin the next one; ``ended`` is why the one before it was over."""
        if self.attempts:
            self.attempts[-1]["reason"] = ended
        entry = {"attempt": len(self.attempts) + 1, "resumed_from": resumed_from, "reason": None, "end": None}
        self.attempts.append(entry)
        manifest = {"run": self.path.name, "identity": {"run": self.settings}, "attempts": self.attempts}
        write_json(self.path / "manifest.json", manifest)
        return self

    def line(self, step: int, **figures: Any) -> None:
        """A line of metrics; in names ``__`` stands for a slash."""
        entry = {name.replace("__", "/"): value for name, value in figures.items()}
        with (self.path / "metrics.jsonl").open("ab") as handle:
            handle.write(orjson.dumps({"step": step, "attempt": len(self.attempts), **entry}) + b"\n")

    def step(self, step: int, **figures: Any) -> guards.Health:
        """One step's line, and what the guards say of it."""
        healthy = {
            "episode__verdict": 0.5,
            "episode__score": 0.4,
            "episode__mean_explores": 3.25,
            "episode__no_submission_share": 0.01,
            "actor__ppo_kl": 0.001,
            "actor__ppo_kl_max": 0.004,
        }
        figures = {**healthy, **figures}
        self.line(step, **figures)
        judged = {name.replace("__", "/"): value for name, value in figures.items()}
        judged["actor/ppo_kl"] = judged.get("actor/ppo_kl_max")
        health = guards.evaluate(self.history, judged, guards.Settings(), step=step)
        self.history.append(judged)
        path = self.path / "health.json"
        write_json(path, guards.record_health(read_json(path) if path.exists() else None, health, []))
        return health

    def records(self, step: int, explores: Sequence[int], attempt: int | None = None) -> None:
        """One trajectory for each number of explores."""
        number = attempt or len(self.attempts)
        write_step(
            self.path / "records", step, [trajectory(row, step, number, count) for row, count in enumerate(explores)]
        )

    def proofs(self, step: int, **passed: bool) -> None:
        """Proofs by name, and whether each was given."""
        given = [proofs.Proof(name, good, {"max_std": None}, "said") for name, good in passed.items()]
        proofs.write_proofs(self.path / "proofs" / f"step_{step}.json", given)

    def potential(self, step: int, *, predictor: bool = True, critic: bool = True, count: int = 60) -> dict[str, float]:
        """Reports of made-up predictions, which follow the outcomes a little; returns their metrics, named for :meth:`step`."""
        logits = self.generator.normal(size=count)
        outcomes = (self.generator.random(count) < 1 / (1 + np.exp(-logits))).astype(float)
        k = np.arange(count) % 4
        reports: dict[str, Mapping[str, Any]] = {}
        if predictor:
            reports["predictor"] = calibration.predictor_report(logits, outcomes, k)
        if critic:
            reports["critic"] = calibration.critic_report(outcomes, 0.2 * logits, k)
        calibration.write_report(self.path / "potential" / f"step_{step}.json", step, reports)
        metrics = calibration.report_metrics(reports.get("predictor"), reports.get("critic"))
        return {name.replace("/", "__"): value for name, value in metrics.items()}

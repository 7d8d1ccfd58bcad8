"""What a step leaves behind: records, potential report, proofs, health, a line of metrics, a line for the person watching.

Runs inside verl's trainer process, on plain arrays; the run directory's contract is :mod:`genselect.provenance`'s.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from genselect.formats import read_json, write_json
from genselect.provenance.run_directory import STOP_FILE
from genselect.provenance.saves import Saves
from genselect.training import calibration, episodes, guards, proofs
from genselect.training.memory_check import Budget, MemoryCheck
from genselect.training.potential import Potential, shaping
from genselect.training.records import TokenArrays, Trajectory, episode_metrics, write_step
from genselect.training.shaping import decision_states
from genselect.training.step_data import StepData, proofs_of, reports_of
from genselect.training.trainer_process import PROGRESS

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]

#: verl's figure for how old the oldest weights were that played an episode of the step, in steps.
BEHIND = "training/off_policy/trajectory_staleness_worst/max"


@dataclass(frozen=True)
class Settings:
    """What the trainer needs of the run, from the ``genselect`` section of verl's configuration."""

    directory: Path
    attempt: int
    world_size: int
    predictor: bool
    predictor_lr: float
    predictor_budget: int
    potential: Potential
    gamma: float
    candidates: int
    """In a row."""
    anchor_every: int | None
    keep_latest: int
    guards: guards.Settings
    synthetic_steps: int
    """Of the memory check; 0 for none."""
    prove_packing: bool
    """Compare packed with padded forwards at the first step."""
    packed_limit: float
    """Largest difference between them."""
    base_weights: Mapping[str, str]
    """sha256 of the base model's weight files, by name: which frozen weights a save's trained ones belong to."""
    memory: Mapping[str, Any]
    """``budgets`` (of each model: tokens, rows, longest), ``production`` and ``ppo_epochs``."""

    @classmethod
    def from_config(cls, section: Any) -> Settings:
        """From verl's configuration."""
        values = dict(section)
        return cls(
            directory=Path(values["directory"]),
            attempt=values["attempt"],
            world_size=values["world_size"],
            predictor=values["predictor"],
            predictor_lr=values["predictor_lr"],
            predictor_budget=values["predictor_budget"],
            potential=Potential((part["name"], part["weight"]) for part in values["potential"]),
            gamma=values["gamma"],
            candidates=values["candidates"],
            anchor_every=values["anchor_every"],
            keep_latest=values["keep_latest"],
            guards=guards.settings_from(dict(values.get("guards") or {})),
            synthetic_steps=values["synthetic_steps"],
            prove_packing=values["prove_packing"],
            packed_limit=values["packed_limit"],
            base_weights=dict(values["base_weights"]),
            memory=values["memory"],
        )

    def memory_check(self, device: str) -> MemoryCheck:
        """An empty one."""
        return MemoryCheck(
            device=device,
            world_size=self.world_size,
            budgets={name: Budget(**budget) for name, budget in self.memory["budgets"].items()},
            production=dict(self.memory["production"]),
            ppo_epochs=self.memory["ppo_epochs"],
        )


class StepRecorder:
    """Writes a run's records, one step at a time."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._saves = Saves(settings.directory / "checkpoints")
        self._steps = 0
        self._seconds = 0.0
        self._history = _read_history(settings.directory / "metrics.jsonl")
        self._validation: dict[str, float] = {}

    # Saves and stops

    def may_save(self, step: int) -> bool:
        """Make way for a save; False when a complete one of that step stands already."""
        return self._saves.begin_save(step, self.settings.attempt)

    def _seal_save(self, step: int) -> None:
        """Declare the save whole, last of all: the next attempt goes on behind this step and writes none of its records again."""
        if self._saves.path(step).is_dir():
            self._saves.mark_complete(
                step,
                world_size=self.settings.world_size,
                attempt=self.settings.attempt,
                base_weights=self.settings.base_weights,
            )

    def stop_requested(self) -> bool:
        """Whether somebody asked the run to stop."""
        return (self.settings.directory / STOP_FILE).exists()

    # Steps

    def record(
        self,
        step: int,
        data: StepData,
        metrics: Mapping[str, Any],
        timing: Mapping[str, float],
        first_update: Mapping[str, Sequence[float]],
        total_steps: int,
        memory: tuple[MemoryCheck, Mapping[str, Any]] | None = None,
    ) -> bool:
        """Write everything of one step; returns whether the run must end here.

        ``memory`` is the launch's memory check, and the workers' peaks in this step.
        """
        folder = self.settings.directory
        trajectories = self._trajectories(step, data)
        write_step(folder / "records", step, trajectories, self._token_arrays(data))
        reports = reports_of(data, trajectories, self.settings.gamma)
        calibration.write_report(folder / "potential" / f"step_{step}.json", step, reports)
        given = proofs_of(data, trajectories, first_update, self.settings.packed_limit)
        given.append(proofs.rollout_is_current(float(metrics.get(BEHIND, math.nan))))
        proofs.write_proofs(folder / "proofs" / f"step_{step}.json", given)

        line = {name: _plain(value) for name, value in metrics.items() if _is_number(value)}
        line |= episode_metrics(trajectories, self.settings.candidates)
        line |= calibration.report_metrics(reports.get("predictor"), reports.get("critic"))
        line |= {f"timing_s/{name}": float(seconds) for name, seconds in timing.items()}
        line |= proofs.proof_metrics(given)
        if first_update.get("ppo_kl"):
            line["actor/ppo_kl_max"] = max(first_update["ppo_kl"], key=abs)
        judged: dict[str, Any] = dict(line)
        if first_update.get("ppo_kl"):
            # Every mini-batch's, not their mean: one that jumps is enough to break a policy.
            judged["actor/ppo_kl"] = list(first_update["ppo_kl"])
        self._write_metrics(step, {**line, **self._validation})
        self._validation = {}
        if memory:
            _foresee(memory[0], folder / "attempts" / f"{self.settings.attempt}.verl.yaml")
            _write_memory_check(folder, step, *memory, line, timing)
        self._seal_save(step)
        stop = self._judge(step, judged)
        self._history.append(judged)
        self._saves.rotate(self.settings.keep_latest, self.settings.anchor_every)
        self._say(step, total_steps, line, timing, trajectories, stop)
        return stop or self.stop_requested()

    def validated(self, step: int, played: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Record a validation's trajectories; returns its metrics, by kind of row."""
        if not played:
            return {}
        rows = [episodes.record(step, self.settings.attempt, entry) for entry in played]
        folder = self.settings.directory / "validation"
        write_step(folder, step, rows)
        figures = episode_metrics(rows, self.settings.candidates)
        verdict = float(np.mean([row.verdict for row in rows]))
        result = {"val/verdict": verdict, "val/rows": float(len(rows))}
        result |= {name.replace("episode/", "val/"): value for name, value in figures.items()}
        self._validation = result
        print(f"{PROGRESS}validation at step {step}: verdict {verdict:.3f} on {len(rows)} questions", flush=True)
        if step == 0:  # before training; a later step's figures go into that step's own line
            self._write_metrics(step, result)
            self._validation = {}
        return result

    def _trajectories(self, step: int, data: StepData) -> list[Trajectory]:
        rows = []
        for number, played in enumerate(data.trajectories):
            logits = data.at_decisions("submit_logits", number) if "submit_logits" in data.columns else None
            values = data.at_decisions("values", number) if "values" in data.columns else None
            phi: Array = np.zeros(0)
            if self.settings.potential:
                over_tokens = data.columns["submit_logits"][number] if logits is not None else None
                phi = self.settings.potential(decision_states(played, over_tokens))
            shaped = float(shaping(phi, self.settings.gamma).sum()) if phi.size else 0.0
            row = episodes.record(step, self.settings.attempt, {**played, "text": data.texts[number]})
            rows.append(
                replace(
                    row,
                    shaping=shaped,
                    decision_phi=tuple(float(value) for value in phi),
                    decision_logits=() if logits is None else tuple(float(value) for value in logits),
                    decision_values=() if values is None else tuple(float(value) for value in values),
                )
            )
        return rows

    def _token_arrays(self, data: StepData) -> list[TokenArrays]:
        arrays = []
        for number, played in enumerate(data.trajectories):
            columns: dict[str, Any] = {
                name: data.columns[name][number].astype(np.float32)
                for name in ("rollout_log_probs", "old_log_probs", "advantages", "returns", "values")
                if name in data.columns
            }
            arrays.append(
                TokenArrays(
                    question_id=played["question_id"],
                    sample=played["sample"],
                    attempt=self.settings.attempt,
                    response_ids=data.columns["response_ids"][number].astype(np.int32),
                    response_mask=data.columns["response_mask"][number].astype(np.int8),
                    **columns,
                )
            )
        return arrays

    def _judge(self, step: int, metrics: Mapping[str, Any]) -> bool:
        """Write ``health.json``; True when a guard stops the run. Saves that a stop leaves unproven are marked broken."""
        path = self.settings.directory / "health.json"
        health = guards.evaluate(self._history, metrics, self.settings.guards, step=step)
        log = read_json(path) if path.exists() else None
        record = guards.record_health(log, health, [save.step for save in self._saves.complete()])
        write_json(path, record)
        for finding in health.findings:
            print(f"{PROGRESS}{finding.level}: {finding.message}", flush=True)
        for broken in record["broken_saves"]:
            self._saves.mark_broken(broken, f"guard stop at step {step}")
        return health.level is guards.Level.STOP

    def _write_metrics(self, step: int, line: Mapping[str, Any]) -> None:
        path = self.settings.directory / "metrics.jsonl"
        entry = {"step": step, "attempt": self.settings.attempt, **calibration.json_safe(dict(sorted(line.items())))}
        with path.open("ab") as handle:
            handle.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
            handle.flush()
            os.fsync(handle.fileno())

    def _say(
        self,
        step: int,
        total: int,
        line: Mapping[str, Any],
        timing: Mapping[str, float],
        rows: Sequence[Trajectory],
        stop: bool,
    ) -> None:
        self._steps += 1
        seconds = float(timing.get("step", math.nan))
        self._seconds += seconds
        left = (total - step) * self._seconds / self._steps
        verdict = float(np.mean([row.verdict for row in rows]))
        score = float(np.mean([row.score for row in rows]))
        explores = float(np.mean([row.explores for row in rows]))
        kl = line.get("actor/ppo_kl_max")
        text = (
            f"step {step}/{total}  verdict {verdict:.3f}  explores {explores:.2f}  score {score:.3f}  "
            f"kl {'-' if kl is None else f'{kl:.4f}'}  {seconds:.1f} s  ETA {_duration(left)}"
        )
        print(PROGRESS + text + ("  STOPPED by a guard" if stop else ""), flush=True)


def _read_history(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    steps = [line for line in lines if "episode/mean_explores" in line]
    for line in steps:
        # The file has the largest mini-batch's divergence beside their mean; the guards look at the largest.
        if "actor/ppo_kl_max" in line:
            line["actor/ppo_kl"] = line["actor/ppo_kl_max"]
    return steps


def _foresee(check: MemoryCheck, config: Path) -> None:
    """Put the estimate beside the measurement. On a CPU there is none: its peaks are a process's, with all that it has imported."""
    if check.device != "cpu":
        from genselect.memory.check import predicted_peaks

        check.predicted = predicted_peaks(config, check.world_size)


def _write_memory_check(
    folder: Path,
    step: int,
    check: MemoryCheck,
    peaks: Mapping[str, Any],
    line: Mapping[str, Any],
    timing: Mapping[str, float],
) -> None:
    real_step = {
        "step": step,
        "timing_s": {name: float(seconds) for name, seconds in timing.items()},
        "step_seconds": float(timing.get("step", math.nan)),
        "trajectories": check.production["problems"] * check.production["samples"],
        "metrics": dict(line),
        "peaks": dict(peaks),
    }
    check.write(folder, real_step)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _plain(value: Any) -> float:
    return value.item() if isinstance(value, np.generic) else value


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"

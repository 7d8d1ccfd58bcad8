"""What a step leaves behind: records, potential report, proofs, health, a line of metrics, a line for the person watching.

Runs inside verl's trainer process, on plain arrays; the run directory's contract is :mod:`genselect.provenance`'s.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from genselect.formats import read_json, write_json
from genselect.provenance.saves import Saves
from genselect.training import calibration, episodes, guards, proofs
from genselect.training.launcher import PROGRESS, STOP_FILE
from genselect.training.memory_check import Budget, MemoryCheck
from genselect.training.potential import Potential, shaping
from genselect.training.records import TokenArrays, Trajectory, episode_metrics, write_step
from genselect.training.shaping import decision_states

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]


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


@dataclass(frozen=True)
class StepData:
    """One step's trajectories as they came out of the transfer queue, padding rows left out. All arrays over the response."""

    trajectories: list[dict[str, Any]]
    texts: list[str]
    columns: dict[str, list[Array]]
    """``response_ids, response_mask, rollout_log_probs, old_log_probs, advantages, returns, values, submit_logits, rewards``, each
    a list of (response tokens,); those the run does not make are absent."""
    keys: list[str] = field(default_factory=list)
    """The queue's, of each trajectory."""
    padded: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Columns of some trajectories from padded forwards, by column and key."""

    @classmethod
    def from_queue(cls, batch: Any, tokenizer: Any, *, critic: bool, predictor: bool) -> StepData:
        """Read what the step left in verl's transfer queue."""
        import transfer_queue as tq

        names = {
            "responses": "response_ids",
            "response_mask": "response_mask",
            "rollout_log_probs": "rollout_log_probs",
            "old_log_probs": "old_log_probs",
            "advantages": "advantages",
            "returns": "returns",
            "rm_scores": "scores",
        }
        if critic:
            names["values"] = "values"
        if predictor:
            names["submit_logits"] = "submit_logits"
        real = [row for row, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        keys = [batch.keys[row] for row in real]
        found = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=[*names, "extra_fields"])
        trajectories = [extra["trajectory"] for extra in objects(found["extra_fields"])]
        columns = {
            ours: [np.asarray(part.float(), dtype=np.float64) for part in found[verls].unbind()]
            for verls, ours in names.items()
        }
        texts = [tokenizer.decode([int(token) for token in ids]) for ids in columns["response_ids"]]
        return cls(trajectories, texts, columns, keys)

    def at_decisions(self, column: str, row: int) -> Array:
        """A column's values at the decision points of a row."""
        starts = [start for start, _ in self.trajectories[row]["turn_spans"]]
        return self.columns[column][row][starts]


def objects(column: Any) -> list[Any]:
    """The Python objects of a non-tensor column, in whichever of its containers the transfer queue hands it out."""
    rows = column.tolist() if hasattr(column, "tolist") else list(column)
    return [getattr(row, "data", row) for row in rows]


_MODELS = {"old_log_probs": "actor", "values": "critic", "submit_logits": "predictor"}


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
            self._saves.mark_complete(step, world_size=self.settings.world_size, attempt=self.settings.attempt)

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
    ) -> bool:
        """Write everything of one step; returns whether the run must end here."""
        folder = self.settings.directory
        trajectories = self._trajectories(step, data)
        write_step(folder / "records", step, trajectories, self._token_arrays(data))
        reports = self._reports(data, trajectories)
        calibration.write_report(folder / "potential" / f"step_{step}.json", step, reports)
        given = self._proofs(data, trajectories, first_update)
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
        self._seal_save(step)
        stop = self._judge(step, judged)
        self._history.append(judged)
        self._saves.rotate(self.settings.keep_latest, self.settings.anchor_every)
        self._say(step, total_steps, line, timing, trajectories, stop)
        return stop or self.stop_requested()

    def record_memory_check(
        self, check: MemoryCheck, step: int, timing: Mapping[str, float], peaks: Mapping[str, Any]
    ) -> None:
        """Write the memory check, with the real step that came after the synthetic ones."""
        line = dict(self._history[-1])
        real_step = {
            "step": step,
            "timing_s": {name: float(seconds) for name, seconds in timing.items()},
            "step_seconds": float(timing.get("step", math.nan)),
            "trajectories": check.production["problems"] * check.production["samples"],
            "metrics": {name: value for name, value in line.items() if isinstance(value, int | float)},
            "peaks": dict(peaks),
        }
        check.write(self.settings.directory, real_step)

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

    def _reports(self, data: StepData, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
        reports: dict[str, Any] = {}
        if "submit_logits" in data.columns:
            # The supervised states: those a submission left from.
            left = [row for row in trajectories if row.well_formed]
            reports["predictor"] = calibration.predictor_report(
                [row.decision_logits[-1] for row in left],
                [float(row.verdict) for row in left],
                [row.decision_k[-1] for row in left],
                all_logits=np.concatenate([row.decision_logits for row in trajectories]),
            )
        if "values" in data.columns:
            returns = []
            for number in range(len(trajectories)):
                rewards, mask = data.columns["scores"][number], data.columns["response_mask"][number]
                over_tokens = calibration.monte_carlo_returns(rewards, mask, self.settings.gamma)
                starts = list(trajectories[number].decision_tokens)
                returns.append(over_tokens[starts])
            reports["critic"] = calibration.critic_report(
                np.concatenate(returns),
                np.concatenate([row.decision_values for row in trajectories]),
                np.concatenate([row.decision_k for row in trajectories]),
            )
        return reports

    def _proofs(
        self, data: StepData, trajectories: Sequence[Trajectory], first_update: Mapping[str, Sequence[float]]
    ) -> list[proofs.Proof]:
        questions = [row.question_id for row in trajectories]
        given = []
        if "submit_logits" in data.columns:
            first = [row.decision_logits[0] for row in trajectories]
            given.append(proofs.first_state_agrees("predictor_k0", first, questions))
        if "values" in data.columns:
            values = [row.decision_values[0] for row in trajectories]
            given.append(proofs.first_state_agrees("critic_first_value", values, questions))
        if first_update.get("ppo_kl"):
            # The update cuts the batch into other micro-batches than the pass that gave the old log-probabilities, so float
            # noise differs. It clips nothing, and stays far under what a stale policy shows (1e-3 and more).
            given.append(
                proofs.first_update_is_on_policy(
                    first_update["pg_clipfrac"][0], first_update["ppo_kl"][0], kl_tolerance=1e-4
                )
            )
        given.append(
            proofs.rollout_matches_actor(
                np.concatenate(data.columns["rollout_log_probs"]),
                np.concatenate(data.columns["old_log_probs"]),
                np.concatenate(data.columns["response_mask"]),
            )
        )
        for column, padded in data.padded.items():
            rows = [data.keys.index(key) for key in padded]
            given.append(
                proofs.packed_equals_padded(
                    f"packed_{_MODELS[column]}",
                    np.concatenate([data.columns[column][row] for row in rows]),
                    np.concatenate(list(padded.values())),
                    np.concatenate([data.columns["response_mask"][row] for row in rows]),
                    self.settings.packed_limit,
                )
            )
        return given

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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _plain(value: Any) -> float:
    return value.item() if isinstance(value, np.generic) else value


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"

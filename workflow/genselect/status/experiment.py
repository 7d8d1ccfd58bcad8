"""What the stages share: the experiment that they belong to, and how a stage stands by file, needs and log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genselect.config import Config
from genselect.config.rollout import PART_QUESTIONS, OverfitSet, Rollout
from genselect.config.training import Run
from genselect.plan.runs import gates
from genselect.plan.selection import ALL
from genselect.status.model import Stage, State
from genselect.status.reading import QUIET_S, LogEnd, Reader, count_files, folders, integer


@dataclass(frozen=True)
class Experiment:
    """One dataset's part of a results folder, with its configuration if that can be read."""

    root: Path
    name: str
    config: Config | None
    runs: Mapping[str, Run]
    """Resolved; empty without a configuration."""

    @property
    def data(self) -> Path:
        """Its data folder."""
        return self.root / "data" / self.name

    @property
    def logs(self) -> Path:
        """Its logs."""
        return self.root / "logs" / self.name

    @property
    def model(self) -> Path:
        """The folder of its model."""
        base = self.config.models.base if self.config else None
        if base is not None and base.source == "local" and base.path is not None:
            return base.path
        return self.root / "models" / self.name

    @property
    def rollouts(self) -> Mapping[str, Rollout]:
        """By name."""
        return self.config.rollouts if self.config else {}

    @property
    def overfit_sets(self) -> Mapping[str, OverfitSet]:
        """By name."""
        return self.config.overfit_sets if self.config else {}

    def rows_missing(self, chosen: str | None) -> list[str]:
        """What a program that needs the rows of ``chosen`` waits for."""
        if chosen in (ALL, None):
            return [] if (self.data / "stats.json").exists() else ["rows"]
        return [] if (self.data / "overfit" / str(chosen) / "selection.csv").exists() else [f"overfit set {chosen}"]

    def model_missing(self) -> list[str]:
        """The same of the model."""
        return [] if (self.model / "config.json").exists() else ["model"]

    def run_missing(self, run: str | None) -> list[str]:
        """The same of a run that must be done."""
        if run is None or (self.root / "runs" / run / "done.json").exists():
            return []
        return [f"run {run}"]

    @property
    def evaluation(self) -> Path:
        """Where the final word is prepared."""
        return self.root / "evaluation" / self.name

    def preregistration_missing(self) -> list[str]:
        """The same of the preregistration; a configuration that was written before there was one asks for none."""
        asked = self.config is not None and "evaluation" in self.config.model_fields_set
        return ["preregistration"] if asked and not (self.evaluation / "preregistration.json").exists() else []

    def gates_missing(self) -> list[str]:
        """Gates without a verdict that lets a formal run start."""
        return [f"gate {name}" for name in gates(self.runs) if not (self.root / "gates" / f"{name}.json").exists()]


@dataclass(frozen=True)
class Standing:
    """How something without a progress file of its own stands."""

    state: State
    seen_s: float | None = None
    note: str = ""


def standing_of(done: bool, waits_for: Sequence[str], log: LogEnd | None) -> Standing:
    """By its last file, what it needs and its log."""
    if done:
        return Standing(State.DONE)
    if waits_for:
        return Standing(State.WAITING)
    if log is None:
        return Standing(State.ABSENT)
    if log.failed:
        return Standing(State.FAILED, note=log.text)
    return Standing(State.RUNNING if log.age_s <= QUIET_S else State.SILENT, log.age_s, log.text)


def stage_of(
    experiment: Experiment,
    stage: str,
    item: str | None,
    standing: Standing,
    note: str,
    waits_for: list[str],
    reader: Reader,
) -> Stage:
    """A stage that has nothing to count."""
    waiting = standing.state is State.WAITING
    return Stage(
        *(experiment.name, stage, item, standing.state),
        seen_s=standing.seen_s,
        note=note,
        waits_for=waits_for if waiting else [],
        problems=reader.problems,
    )


def counted(values: Mapping[str, Any] | None, *names: str) -> str:
    """``320 problems, 3200 candidates``, of the counts that are there."""
    found = [(integer((values or {}).get(name)), name) for name in names]
    return ", ".join(f"{count} {name.replace('_', ' ')}" for count, name in found if count is not None)


def parts_done(folder: Path) -> int:
    """Finished parts of what is being played. One folder a fingerprint of settings: the fullest is the one that goes on."""
    found = (count_files(folder / name, "part_*/step_0.parquet") for name in folders(folder))
    return max(found, default=0)


def parts_of(questions: int | None) -> int | None:
    """Parts that so many questions make."""
    return None if questions is None else math.ceil(questions / PART_QUESTIONS)

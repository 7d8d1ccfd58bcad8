"""A small results folder, written with the library's own writers."""

from __future__ import annotations

import datetime
import io
import os
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from genselect.config import Config, check_config
from genselect.config.training import Run
from genselect.formats import read_json, write_json
from genselect.plan.inputs import write_resolved_config
from genselect.plan.runs import identity, resolved_runs
from genselect.provenance.attempts import Attempt
from genselect.provenance.run_directory import RunDirectory
from genselect.status import Status, collect, render
from genselect.status.model import RunNow, Stage
from genselect.training import guards
from genselect.training.gate import check_gate
from genselect.training.records import Trajectory, write_step

#: Where a test says what time it is.
NOW = datetime.datetime(2026, 11, 29, 12, 0, tzinfo=datetime.UTC)
SAVE_BYTES = 1000

_SCHEDULE = {
    "steps": 12,
    "problems": 2,
    "samples": 2,
    "mini_batch": 2,
    "save_every": 2,
    "anchor_every": 4,
    "validate_every": 4,
}
CONFIG: dict[str, Any] = {
    "dataset": {"name": "mini", "source": "generated", "generated": {"shards": 2}},
    "judge": {"kind": "rule", "model": None, "revision": None, "shards": 2},
    "models": {"base": {"source": "made"}},
    "runs": {
        "smoke": {"kind": "smoke", "schedule": {**_SCHEDULE, "steps": 1}, "assertions": ["actor/ppo_kl < 0.05"]},
        "formal": {"kind": "formal", "schedule": _SCHEDULE},
        "second": {"kind": "formal", "schedule": _SCHEDULE, "start": {"run": "formal", "step": 8}},
    },
    "rollouts": {"untrained": {"like": "formal", "first": 40, "samples": 4}},
    "overfit_sets": {"control": {"draws": {"rollout": "untrained"}, "samples": 4, "bands": [2], "per_band": 4}},
}


def trajectory(step: int, attempt: int = 1) -> Trajectory:
    return Trajectory(
        *(
            "omr-000001",
            0,
            step,
            attempt,
            2,
            2,
            "42",
            True,
            "candidate",
            True,
            "submit",
            1.0,
            0.0,
            -0.2,
            0.0,
            40,
            30,
            3,
            False,
        ),
        decision_tokens=(0,),
        decision_k=(0,),
    )


class Working:
    """One run's folder while an attempt works in it, as the launcher and the recorder do."""

    def __init__(self, path: Path, run: Run) -> None:
        self.path, self.run = path, run
        self.directory = RunDirectory(path)
        self.attempt: Attempt | None = None
        self.history: list[dict[str, Any]] = []

    def start(self) -> Working:
        self.directory.open({"run": identity(self.run)}, {"kind": self.run.kind})
        self.attempt = self.directory.begin_attempt(self.directory.prepare_resume(1))
        self.attempt.log.write_text("starting\n")
        return self

    def step(self, step: int, seconds: float = 10.0, **figures: Any) -> guards.Health:
        assert self.attempt is not None
        write_step(self.path / "records", step, [trajectory(step, self.attempt.number)])
        metrics = {
            "actor/ppo_kl": 0.001,
            "actor/ppo_kl_max": 0.002,
            "episode/verdict": 0.5,
            "episode/score": 0.4,
            "episode/mean_explores": 3.25,
            "timing_s/step": seconds,
            **{name.replace("__", "/"): value for name, value in figures.items()},
        }
        with (self.path / "metrics.jsonl").open("ab") as handle:
            handle.write(orjson.dumps({"step": step, "attempt": self.attempt.number, **metrics}) + b"\n")
        if step % self.run.schedule.save_every == 0:
            self.save(step)
        judged = {**metrics, "actor/ppo_kl": metrics["actor/ppo_kl_max"]}
        health = guards.evaluate(self.history, judged, guards.Settings(), step=step)
        self.history.append(judged)
        path = self.path / "health.json"
        log = read_json(path) if path.exists() else None
        record = guards.record_health(log, health, [save.step for save in self.directory.saves.complete()])
        write_json(path, record)
        for broken in record["broken_saves"]:
            self.directory.saves.mark_broken(broken, "guard stop")
        self.directory.saves.rotate(self.run.schedule.keep_latest, self.run.schedule.anchor_every)
        return health

    def save(self, step: int) -> None:
        saves = self.directory.saves
        (saves.path(step) / "actor").mkdir(parents=True)
        (saves.path(step) / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"w" * SAVE_BYTES)
        saves.mark_complete(step, world_size=1, attempt=1)

    def end(self, reason: Any, status: int = 0) -> None:
        assert self.attempt is not None
        self.attempt.end(reason, len(self.history), status)
        if reason == "done":
            self.directory.finish({"run": self.path.name, "kind": self.run.kind, "steps": len(self.history)})
        self.directory.close()

    def die(self) -> None:
        """As a killed process does: no end is written, the lock is gone."""
        self.directory.close()

    def age(self, seconds: float) -> None:
        """Let its last sign of life be so long ago."""
        moment = NOW.timestamp() - seconds
        for path in [self.path / "metrics.jsonl", *(self.path / "attempts").glob("*")]:
            if path.exists():
                os.utime(path, (moment, moment))


class Results:
    """A results folder in the making."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config: Config = check_config(CONFIG, "test")
        self.open: list[Working] = []

    def configure(self, **changes: Any) -> Results:
        self.config = check_config({**CONFIG, **changes}, "test")
        write_resolved_config(self.config, self.root / "data" / "mini" / "config.yaml")
        return self

    def built(self) -> Results:
        """Everything up to the rows and the model stands."""
        data = self.root / "data" / "mini"
        for number in range(2):
            self.file(data / "shards" / f"genselect-{number:05d}-of-00002.parquet")
        for name in ("merged.jsonl", "labels.jsonl"):
            self.file(data / name)
        write_json(data / "merge_stats.json", {"problems": 60, "candidates": 600})
        write_json(data / "stats.json", {"train_rows": 36, "held_out_rows": 24, "val_rows_online": 20})
        for name in ("base_model.json", "config.json"):
            write_json(self.root / "models" / "mini" / name, {})
        return self

    def run(self, name: str) -> Working:
        working = Working(self.root / "runs" / name, resolved_runs(self.config)[name])
        self.open.append(working)
        return working.start()

    def rolled_out(self) -> Results:
        """The rollout and the set drawn from it stand, too."""
        folder = self.root / "rollouts" / "untrained"
        write_json(folder / "rollout.json", {"rows": 36, "episodes": 144, "verdict": 0.25})
        self.file(self.root / "data" / "mini" / "overfit" / "control" / "selection.csv")
        return self

    def evaluated_before(self) -> Results:
        """What comes before a formal run stands, too."""
        folder = self.root / "evaluation" / "mini"
        for name in ("baselines", "arms/untrained"):
            self.file(folder / f"{name}.parquet")
        write_json(folder / "preregistration.json", {})
        return self

    def gate(self, name: str, waived: dict[str, str] | None = None) -> None:
        run = resolved_runs(self.config)[name]
        check_gate(name, run, self.root / "runs" / name, self.root / "gates" / f"{name}.json", waived or {})

    def log(self, name: str, *lines: str, age: float = 5.0) -> None:
        path = self.file(self.root / "logs" / "mini" / name, "\n".join(lines) + "\n")
        os.utime(path, (NOW.timestamp() - age,) * 2)

    def file(self, path: Path, content: str = "") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def status(self, **options: Any) -> Status:
        return collect(self.root, now=NOW, **options)


def four_steps(results: Results) -> Working:
    """The formal run, four steps in, the last of them with a validation."""
    formal = results.run("formal")
    formal.step(1, 10.0)
    formal.step(2, 12.0)
    formal.step(3, 8.0)
    last = {"timing_s__testing": 4.0, "val__verdict": 0.625, "val__rows": 24.0, "episode__verdict": 0.75}
    formal.step(4, 10.0, **last)
    return formal


def run_of(status: Status, name: str = "formal") -> RunNow:
    return next(run for run in status.runs if run.run == name)


def stage_of(status: Status, stage: str, item: str | None = None) -> Stage:
    return next(found for found in status.stages if (found.stage, found.item) == (stage, item))


def words(text: str) -> str:
    """Without line breaks, so that a sentence is found however it was wrapped."""
    return " ".join(text.split())


def shown(status: Status, width: int = 80, **options: Any) -> str:
    """What a terminal of that width shows."""
    stream = io.StringIO()
    render(status, Console(file=stream, width=width, highlight=False, **options))
    return stream.getvalue()

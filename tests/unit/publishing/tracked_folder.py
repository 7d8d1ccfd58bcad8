"""A results folder with a run of the miniature that three attempts made, written by the library's own run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import yaml

from genselect.config import Config, check_config
from genselect.formats import write_json
from genselect.plan.runs import identity, resolved_runs
from genselect.provenance.run_directory import RunDirectory
from genselect.training.records import Trajectory, write_step

ROOT = Path(__file__).resolve().parents[3]
NAME = "formal"


def config(**tracking: Any) -> Config:
    """The miniature's, with this section ``publish.tracking``."""
    values = yaml.safe_load((ROOT / "config" / "mini.yaml").read_text(encoding="utf-8"))
    values["publish"] = {"tracking": tracking}
    values["runs"]["second"] = {
        "extends": NAME,
        "set": {"seed": 2},
        "start": {"run": NAME, "step": 5},
        "expect_difference": ["seed", "start.run", "start.step"],
    }
    return check_config(values, "a test")


def trajectory(number: int, step: int, attempt: int) -> Trajectory:
    return Trajectory(
        question_id=f"omr-{number:06d}",
        sample=0,
        step=step,
        attempt=attempt,
        explores=2,
        revealed=2,
        submitted="42",
        verdict=number % 2 == 0,
        verdict_source="candidate",
        well_formed=True,
        end="submit",
        score_verdict=1.0,
        score_format=0.0,
        score_cost=-0.04,
        shaping=0.0,
        prompt_tokens=40,
        response_tokens=30,
        turns=3,
        length_capped=False,
        decision_tokens=(0,),
        decision_k=(0,),
        text=f"step {step}, attempt {attempt}, question {number}",
    )


class TrackedFolder:
    """``results/`` with one run in it. A step's verdict tells the attempt that made it: ``attempt + step / 100``."""

    def __init__(self, results: Path, name: str = NAME) -> None:
        self.results, self.name = results, name
        self.path = results / "runs" / name
        self.config = config()
        runs = resolved_runs(self.config)
        self.identity = {"run": identity(runs[name]), "model": {"config_sha256": "0" * 64}}

    def attempt(
        self, steps: range, *, save: tuple[int, ...] = (), end: str | None = None, finish: bool = False
    ) -> None:
        """One start of the run, which goes on from its last save and makes ``steps``."""
        with RunDirectory(self.path) as directory:
            directory.open(self.identity, {"kind": "formal"})
            resumed = directory.prepare_resume(1)
            attempt = directory.begin_attempt(resumed)
            directory.trim_beyond(-1 if resumed is None else resumed)
            if resumed is None:
                self.line(0, attempt.number, {"val/verdict": 0.5, "val/rows": 100.0})
            for step in steps:
                write_step(self.path / "records", step, [trajectory(n, step, attempt.number) for n in range(12)])
                values = {"episode/verdict": attempt.number + step / 100, "episode/score": None}
                if step % 5 == 0:
                    values["val/verdict"] = 0.5 + step / 100
                self.line(step, attempt.number, values)
                if step in save:
                    folder = self.path / "checkpoints" / f"global_step_{step}" / "actor"
                    folder.mkdir(parents=True)
                    (folder / "model_world_size_1_rank_0.pt").write_bytes(b"weights")
                    directory.saves.mark_complete(step, world_size=1, attempt=attempt.number)
            if end:
                attempt.end(end, steps[-1] if len(steps) else None, 0)
            if finish:
                directory.finish({"kind": "formal", "steps": steps[-1], "last_metrics": {"episode/verdict": 1.0}})

    def line(self, step: int, attempt: int, values: dict[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("ab") as handle:
            handle.write(orjson.dumps({"step": step, "attempt": attempt, **values}, option=orjson.OPT_APPEND_NEWLINE))

    def three_attempts(self) -> TrackedFolder:
        """Killed after step 7 with a save of step 5; killed after step 12 with one of step 10; done with step 20."""
        self.attempt(range(1, 8), save=(5,))
        self.attempt(range(6, 13), save=(10,))
        self.attempt(range(11, 21), save=(15, 20), end="done", finish=True)
        return self

    def compared(self) -> None:
        """A comparison in which this run's last policy rose above the untrained one."""
        entry = {
            "arm": f"{self.name}@20",
            "against": "untrained",
            "verdict": {"word": "yes", "sentence": "Accuracy rose."},
            "interval": [0.05, 0.15],
            "arm_accuracy": 0.6,
            "against_accuracy": 0.5,
            "difference": 0.1,
            "p_adjusted": 0.001,
            "questions": 100,
            "exploratory": False,
        }
        other = {**entry, "arm": "majority_8"}
        write_json(self.results / "evaluation" / "mini" / "comparison.json", {"hypotheses": [entry, other]})


def of_attempt(step: int) -> int:
    """Which attempt's figures of a step count in :meth:`TrackedFolder.three_attempts`."""
    return 1 if step <= 5 else 2 if step <= 10 else 3

#!/usr/bin/env python3
"""Stand-in for ``workflow/scripts/train.py``: the same command line and run directory; a step is a pause.

As the trainer it saves before the job's time is up and leaves with status 75. SIGTERM it does not hear: where Slurm follows processes by
control groups, no process below Snakemake is told of a cancel. What it truly did, redone steps included, is in ``ledger.jsonl``, which
nothing trims.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import orjson

from genselect.cli import USER_ERROR, run
from genselect.config import load_config
from genselect.plan.runs import identity, resolved_runs
from genselect.provenance import file_sha256
from genselect.provenance.run_directory import RunDirectory
from genselect.training.launcher import STOPPED
from genselect.training.records import Trajectory, write_step
from genselect.training.time_limit import TimeLimit

STEP_S = float(os.environ.get("STAND_IN_STEP_S", "0.2"))


def main(arguments: argparse.Namespace) -> int:
    """Make one attempt; returns the exit status."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    chosen = resolved_runs(load_config(arguments.config))[arguments.run]
    sealed = {"preregistration_sha256": file_sha256(arguments.preregistration)} if arguments.preregistration else {}
    with RunDirectory(arguments.runs_root / arguments.run) as directory:
        directory.open({"run": identity(chosen)}, {"kind": chosen.kind, **sealed})
        if directory.is_done():
            return 0
        resume = directory.prepare_resume(1)
        attempt = directory.begin_attempt(resume)
        if attempt.number > 1:
            directory.trim_beyond(-1 if resume is None else resume)
        note(directory.path, event="start", attempt=attempt.number, resumed_from=resume)
        limit = TimeLimit(directory.path / "metrics.jsonl")
        last = {}
        for step in range((resume or 0) + 1, chosen.schedule.steps + 1):
            last = train_step(directory, step, attempt.number)
            stop = limit.is_near()
            if stop or step % chosen.schedule.save_every == 0 or step == chosen.schedule.steps:
                save(directory, step, attempt.number)
                note(directory.path, event="save", step=step)
            if stop and step < chosen.schedule.steps:
                attempt.end("time_limit", step, STOPPED)
                return STOPPED
        attempt.end("done", chosen.schedule.steps, 0)
        directory.finish({"kind": chosen.kind, "steps": chosen.schedule.steps, "last_metrics": last})
    return 0


def train_step(directory: RunDirectory, step: int, attempt: int) -> dict[str, object]:
    """One step: a pause, a record, a line of metrics."""
    time.sleep(STEP_S)
    note(directory.path, event="step", step=step)
    write_step(directory.path / "records", step, [trajectory(row, step, attempt) for row in range(4)])
    line = {
        "step": step,
        "attempt": attempt,
        "episode/verdict": 0.5,
        "episode/score": 0.4,
        "episode/mean_explores": 1.5,
    }
    line |= {"actor/ppo_kl": 0.0, "actor/grad_norm": 1.0, "critic/grad_norm": 1.0, "predictor/grad_norm": 1.0}
    with (directory.path / "metrics.jsonl").open("ab") as file:
        file.write(orjson.dumps({**line, "episode/no_submission_share": 0.0}) + b"\n")
    return line


def save(directory: RunDirectory, step: int, attempt: int) -> None:
    """A save as verl's, by name."""
    if directory.saves.begin_save(step, attempt):
        actor = directory.saves.path(step) / "actor"
        actor.mkdir(parents=True)
        (actor / "model_world_size_1_rank_0.pt").write_bytes(b"weights")
        directory.saves.mark_complete(step, world_size=1, attempt=attempt)


def note(folder: Path, **values: object) -> None:
    """Add a line to the ledger: the event, and where it happened."""
    cards = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    where = {"job": os.environ.get("SLURM_JOB_ID"), "node": os.environ.get("SLURMD_NODENAME"), "cards": cards}
    with (folder / "ledger.jsonl").open("a") as file:
        file.write(json.dumps({**values, **where, "time": time.time()}) + "\n")


def trajectory(row: int, step: int, attempt: int) -> Trajectory:
    """An episode that submits after ``row`` explores."""
    return Trajectory(
        question_id=f"mini-{row:06d}", sample=0, step=step, attempt=attempt, explores=row, revealed=row, submitted="42",
        verdict=row % 2 == 0, verdict_source="label", well_formed=True, end="submit", score_verdict=float(row % 2 == 0),
        score_format=0.1, score_cost=0.0, shaping=0.0, prompt_tokens=40, response_tokens=30, turns=row + 1, length_capped=False,
        decision_tokens=(0,), decision_k=(0,),
    )  # fmt: skip


parser = argparse.ArgumentParser(description=__doc__)
for option in ("config", "model", "train-rows", "val-rows", "stats", "runs-root"):
    parser.add_argument(f"--{option}", type=Path, required=True)
parser.add_argument("--run", required=True)
parser.add_argument("--preregistration", type=Path)

if __name__ == "__main__":
    statuses: list[int] = []
    failed = run(parser, lambda arguments: statuses.append(main(arguments)))
    sys.exit(failed or (statuses[0] if statuses else USER_ERROR))

"""One attempt at a run: resume or start, hand over to verl, watch, and write down how it ended.

verl runs in a process of its own (:mod:`genselect.training.trainer_process`).
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from genselect.base_model.folder import weights_sha256
from genselect.cli import USER_ERROR
from genselect.errors import GenselectError
from genselect.provenance import collect
from genselect.provenance.attempts import last_metrics_step
from genselect.provenance.gpu_watch import GPU_WATCH, gpu_watch
from genselect.provenance.run_directory import STOP_FILE, RunDirectory, resolve_start
from genselect.training.attempt_config import Inputs, write_configs
from genselect.training.guard_stop import GO_ON_FILE, refuse_after_guard, stopped_by_guard
from genselect.training.guards import settings_from
from genselect.training.nodes import check_nodes
from genselect.training.run_judge import own_judge
from genselect.training.trainer_process import Outcome, TrainerProcess

#: Exit status of an attempt that was stopped and can be resumed (BSD's EX_TEMPFAIL): a cluster's retry goes on from it.
STOPPED = 75
#: Exit status of a run that a guard stopped. Another start refuses until somebody has acted (guard_stop.py).
GUARD = 3

logger = logging.getLogger("genselect")


def train(inputs: Inputs) -> int:
    """Make one attempt; returns the exit status: 0 done, 75 stopped and resumable, 3 stopped by a guard.

    Raises:
        GenselectError: The directory is another run's or in use, a guard stopped the run and nothing has changed, a save does not
            fit, or verl failed.
    """
    settings_from(inputs.run.guards)  # a misspelt guard is told before minutes of start-up, not after
    _check_layout(inputs)
    check_nodes(inputs.name, inputs.run.nodes)
    with RunDirectory(inputs.runs_root / inputs.name) as directory:
        directory.open(inputs.identity, {"kind": inputs.run.kind, **inputs.context})
        if directory.is_done():
            logger.info("%s: done already", inputs.name)
            return 0
        refuse_after_guard(directory, inputs.run.guards)
        weights = weights_sha256(inputs.model)
        _bring_start(inputs, directory, weights)
        cards = len(collect()["gpus"])
        cpu = not cards
        world = 1 if cpu else inputs.run.train_cards
        world *= inputs.run.nodes
        resume = directory.prepare_resume(world, weights)
        if resume is not None and resume >= inputs.run.schedule.steps:
            # Its last save stands, and only the word that it is done was lost.
            directory.finish(_summary(inputs, directory, resume))
            return 0
        attempt = directory.begin_attempt(resume)
        if attempt.number > 1:
            # Without a save the validation before the first step is made again, too. It says itself what it moved.
            directory.trim_beyond(-1 if resume is None else resume)
        for request in (STOP_FILE, GO_ON_FILE):
            (directory.path / request).unlink(missing_ok=True)
        began = "from the initial adapters" if resume is None else f"from the save of step {resume}"
        logger.info("%s: attempt %d, %s; log: %s", inputs.name, attempt.number, began, attempt.log)
        judge_log = attempt.log.with_name(f"{attempt.number}.judge.log")
        try:
            with (
                gpu_watch(directory.path / GPU_WATCH, {"attempt": attempt.number}),
                own_judge(inputs.judge, inputs.run, cards, judge_log, directory.path / STOP_FILE) as asked,
            ):
                asking = replace(inputs, judge=asked.judge)
                config = write_configs(asking, directory, attempt.number, resume, cpu, world, weights)
                outcome = TrainerProcess(config, attempt.log, directory.path, inputs.run, cpu, asked.environment).run(
                    inputs.run.timeout_s, inputs.run.step_s
                )
        except GenselectError:  # a key that verl does not know, a judge that does not start
            attempt.end("failed", None, USER_ERROR)
            raise
        step = last_metrics_step(directory.path, attempt.number)
        reason, status = _judge(directory, step, inputs.run.schedule.steps, outcome)
        attempt.end(reason, step, status)
        if reason == "done":
            directory.finish(_summary(inputs, directory, step))
        elif reason == "failed":
            raise GenselectError(
                f"{inputs.name}: the trainer {'failed' if outcome.status else 'left of itself'} "
                f"{f'after step {step}' if step else 'before its first step'} "
                f"(exit status {outcome.status}); its last lines:\n{outcome.last_lines}",
                f"The whole output is in {attempt.log}. Mend the cause and start the same command again: it resumes.",
            )
        return status


def _check_layout(inputs: Inputs) -> None:
    """Refuse a trainer of verl's that ours does not take over: it would train without predictor, records, proofs and guards.

    Raises:
        GenselectError: ``verl`` names one.
    """
    mode = inputs.run.verl.get("trainer.v1.trainer_mode", "sync")
    if mode != "sync":
        raise GenselectError(
            f"{inputs.name}: verl.trainer.v1.trainer_mode is {mode}, and genselect's trainer runs as sync only",
            "Leave the key out. To roll out on cards of their own, set runs.<name>.layout (docs/layouts.md).",
        )


def _judge(directory: RunDirectory, step: int | None, steps: int, outcome: Outcome) -> tuple[Any, int]:
    """The attempt's reason and exit status."""
    if step is not None and step >= steps and outcome.status == 0:
        return "done", 0
    # A crash is none of the reasons below, even near the end of the job. After a signal one cannot tell: a cluster sends it to every
    # process, and the trainer's own die of it.
    if outcome.status != 0 and not (outcome.ended or outcome.stopped):
        return "failed", USER_ERROR
    if step is not None and outcome.status == 0 and stopped_by_guard(directory.path, step):
        return "guard", GUARD
    if outcome.timed_out:
        return "time_limit", STOPPED
    if outcome.stopped:
        return "signal", STOPPED
    if outcome.asked:
        return "stopped", STOPPED
    return "failed", USER_ERROR


def _bring_start(inputs: Inputs, directory: RunDirectory, weights: Mapping[str, str]) -> None:
    """Copy the save of another run that this one starts from. Copied, for the other run may be deleted one day.

    It is this run's beginning: where no save is left to go on from (the copying was killed, or a guard's stop in the first step marked
    the copy broken), it is copied again. Without it the run would begin from the initial adapters.
    """
    start = inputs.run.start
    if start.run is None or start.step is None or directory.saves.complete():
        return
    source = resolve_start(
        inputs.runs_root, start.run, start.step, start.data_state, base_weights=weights, for_run=inputs.name
    )
    complete = json.loads((source / "complete.json").read_text(encoding="utf-8"))
    directory.saves.begin_save(start.step, len(directory.manifest()["attempts"]))
    target = directory.saves.path(start.step)
    left_out = ["complete.json", "start_of", *([] if start.data_state else ["data.pt"])]
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*left_out))
    directory.saves.mark_complete(start.step, world_size=complete["world_size"], attempt=0, base_weights=weights)
    logger.info("%s: starts from step %d of %s", inputs.name, start.step, start.run)


def _summary(inputs: Inputs, directory: RunDirectory, step: int | None) -> dict[str, Any]:
    lines = [json.loads(line) for line in (directory.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    last = next(line for line in reversed(lines) if line["step"] == step)
    return {"run": inputs.name, "kind": inputs.run.kind, "steps": step, "last_metrics": last}

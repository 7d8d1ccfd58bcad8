"""One attempt at a run: resume or start, hand over to verl, watch, and write down how it ended.

verl runs in a process of its own, kept by :mod:`genselect.judge.keeper`, so that nothing of it (Ray, vLLM) outlives the attempt,
however the attempt ends. Its output goes to the attempt's log; the lines meant for a person are shown as they come.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from genselect.base_model.folder import weights_sha256
from genselect.cli import USER_ERROR
from genselect.config import Judge
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.judge import keeper
from genselect.provenance import collect
from genselect.provenance.attempts import METRICS, last_metrics_step
from genselect.provenance.gpu_watch import GPU_WATCH, gpu_watch
from genselect.provenance.run_directory import STOP_FILE, RunDirectory, resolve_start
from genselect.provenance.saves import BROKEN
from genselect.training.guard_stop import GO_ON_FILE, refuse_after_guard, stopped_by_guard
from genselect.training.guards import settings_from
from genselect.training.nodes import check_nodes, environment, over_nodes
from genselect.training.run_judge import own_judge
from genselect.training.time_limit import TimeLimit
from genselect.training.verl_config import Launch, micro_batch, verl_config

#: Opens the lines of the trainer that a person should see.
PROGRESS = "genselect> "
#: Exit status of an attempt that was stopped and can be resumed (BSD's EX_TEMPFAIL): a cluster's retry goes on from it.
STOPPED = 75
#: Exit status of a run that a guard stopped. Another start refuses until somebody has acted (guard_stop.py).
GUARD = 3

#: Seconds for a stopping run to reach its step boundary and save, before it is ended; more where a step is known to take long.
GRACE_S = 110.0
_KEEPER_GRACE_S = 10.0
_LAST_LINES = 30

logger = logging.getLogger("genselect")


@dataclass(frozen=True)
class Inputs:
    """What a run is made of, besides its settings."""

    name: str
    run: Run
    """Resolved: ``extends`` and ``set`` applied."""
    model: Path
    train_rows: Path
    val_rows: Path
    runs_root: Path
    identity: Mapping[str, Any]
    """Everything that changes the result, for the fingerprint."""
    candidates: int
    """In a row."""
    template_options: Mapping[str, Any]
    judge: Judge
    """Who labelled the candidates; asked about submissions that nothing else decides."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest records besides, and no result depends on."""


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
                config = _write_configs(asking, directory, attempt.number, resume, cpu, world, weights)
                outcome = _Child(config, attempt.log, directory.path, inputs.run, cpu, asked.environment).run(
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


@dataclass(frozen=True)
class Outcome:
    """How the trainer's process ended."""

    status: int
    stopped: bool
    """SIGTERM or SIGINT to the launcher."""
    asked: bool
    """The run was asked to stop at its next step boundary, by whomever: ``stop_requested`` stands in its directory."""
    timed_out: bool
    """Its own limit (``timeout_s``) was reached, or the end of the cluster's job was near."""
    ended: bool
    """The launcher ended it, since it did not leave in time."""
    last_lines: str


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
    """Copy the save of another run that this one starts from, once. Copied, for the other run may be deleted one day.

    Raises:
        GenselectError: There is no such save, or it does not fit; or the copy was marked broken, and nothing else is left to go on from.
    """
    start = inputs.run.start
    if start.run is None or start.step is None or directory.saves.complete():
        return
    target = directory.saves.path(start.step)
    if (target / BROKEN).exists():
        raise GenselectError(
            f"{target}: this run starts from it, and it is marked broken",
            "Start from another save, under another run name.",
        )
    source = resolve_start(
        inputs.runs_root, start.run, start.step, start.data_state, base_weights=weights, for_run=inputs.name
    )
    complete = json.loads((source / "complete.json").read_text(encoding="utf-8"))
    # Without a whole save of its own the run has only what a killed copying left. It would be set aside, and the run begin anew.
    shutil.rmtree(target, ignore_errors=True)
    left_out = ["complete.json", "start_of", *([] if start.data_state else ["data.pt"])]
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*left_out))
    directory.saves.mark_complete(start.step, world_size=complete["world_size"], attempt=0, base_weights=weights)
    logger.info("%s: starts from step %d of %s", inputs.name, start.step, start.run)


def _write_configs(
    inputs: Inputs,
    directory: RunDirectory,
    attempt: int,
    resume: int | None,
    cpu: bool,
    world: int,
    weights: Mapping[str, str],
) -> Path:
    """Write the agent loop's settings and verl's resolved configuration; returns the latter's path."""
    run = inputs.run
    folder = directory.path.resolve()
    loop = folder / "attempts" / f"{attempt}.agent_loop.yaml"
    episode = {
        "turn_tokens": run.tokens.turn,
        "max_turns": run.max_turns,
        "format_score": run.reward.format_score,
        "cost_per_explore": run.reward.cost_per_explore,
        "supervision": run.predictor.supervision,
        "seed": run.seed,
        "tool_parser": "qwen3_coder",
        "template_options": dict(inputs.template_options),
        "judge": inputs.judge.model_dump_json(),
    }
    entry = {
        "name": "atlas_sequential",
        "_target_": "genselect.training.agent_loop.EpisodeAgentLoop",
        "episode": episode,
    }
    loop.write_text(yaml.safe_dump([entry], sort_keys=False), encoding="utf-8")
    launch = Launch(
        name=inputs.name,
        model=inputs.model.resolve(),
        train_rows=inputs.train_rows.resolve(),
        val_rows=inputs.val_rows.resolve(),
        directory=folder,
        attempt=attempt,
        resume_from=directory.saves.path(resume).resolve() if resume is not None else None,
        agent_loop=loop,
        total_steps=run.schedule.steps,
        cpu=cpu,
    )
    extension = {
        "directory": str(folder),
        "attempt": attempt,
        "world_size": world,
        "predictor": run.predictor.enabled,
        "predictor_lr": run.optimiser.predictor_lr,
        "predictor_budget": run.tokens.predictor_budget,
        "potential": [part.model_dump() for part in run.potential],
        "gamma": run.optimiser.gamma,
        "candidates": inputs.candidates,
        "anchor_every": run.schedule.anchor_every,
        "keep_latest": run.schedule.keep_latest,
        "guards": dict(run.guards),
        "synthetic_steps": run.synthetic_steps,
        # A formal run's proofs are those of its gates and of every step; another forward of both kinds would only cost time.
        "prove_packing": run.tokens.packing and run.kind in ("smoke", "memory_check"),
        "packed_limit": run.tokens.packed_limit,
        "base_weights": dict(weights),
        "memory": _memory(run, cpu),
        # For the estimate of what each card holds: verl knows nothing of a judge.
        "judge_cards": run.layout.judge,
    }
    from omegaconf import OmegaConf

    path = folder / "attempts" / f"{attempt}.verl.yaml"
    path.write_text(OmegaConf.to_yaml(verl_config(run, launch, extension)), encoding="utf-8")
    return path


def _memory(run: Run, cpu: bool) -> dict[str, Any]:
    """What the memory check fills, and what it is compared with."""
    tokens, schedule = run.tokens, run.schedule
    longest = tokens.prompt + tokens.response
    rows = micro_batch(run)
    budgets = {"actor": tokens.actor_budget, "critic": tokens.critic_budget, "predictor": tokens.predictor_budget}
    return {
        "budgets": {
            name: {"tokens": None if cpu else budget, "rows": rows, "longest": longest}
            for name, budget in budgets.items()
        },
        "production": {
            "problems": schedule.problems,
            "samples": schedule.samples,
            "prompt_tokens": tokens.prompt,
            "response_tokens": tokens.response,
        },
        "ppo_epochs": schedule.epochs,
    }


def _summary(inputs: Inputs, directory: RunDirectory, step: int | None) -> dict[str, Any]:
    lines = [json.loads(line) for line in (directory.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    last = next(line for line in reversed(lines) if line["step"] == step)
    return {"run": inputs.name, "kind": inputs.run.kind, "steps": step, "last_metrics": last}


class _Child:
    """The trainer's process: its environment, its output, its end."""

    def __init__(
        self, config: Path, log: Path, directory: Path, run: Run, cpu: bool, further: Mapping[str, str] | None = None
    ) -> None:
        keep = [sys.executable, keeper.__file__, str(_KEEPER_GRACE_S)]
        trainer = [sys.executable, "-m", "genselect.training.main", str(config)]
        over = (run.nodes, 1 if cpu else run.cards)
        self._command = [*keep, *trainer] if run.nodes == 1 else over_nodes(keep, trainer, *over)
        self._log = log
        self._directory = directory
        inherited = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        self._environment = {**inherited, **engine_environment(cpu), **(further or {})}
        if run.nodes > 1:
            self._environment.pop("GLOO_SOCKET_IFNAME", None)  # the loopback, which leads to no other node
            self._environment |= environment()
        self._tail: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        self._stop_at: float | None = None

    def run(self, timeout_s: float, step_s: float | None) -> Outcome:
        """Run it to its end, or to the end of ``timeout_s``. ``step_s`` is how long a step takes, where that is known beforehand."""
        deadline = time.monotonic() + timeout_s
        timed_out = ended = False
        limit = TimeLimit(self._directory / METRICS, step_s)
        with self._stopping_softly(limit):
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment,
                text=True,
                errors="replace",
                # Ctrl-C and a cluster's signals to the process group are the launcher's to handle: the trainer is to save first.
                start_new_session=True,
            )
            reader = threading.Thread(target=self._pump, args=(process,), daemon=True)
            reader.start()
            while process.poll() is None:
                time.sleep(0.2)
                now = time.monotonic()
                if not timed_out and limit.is_near():
                    timed_out = True
                    (self._directory / STOP_FILE).touch()
                    logger.info(
                        "stopping: the job ends in %.0f s; a save at the next step boundary", limit.left_s() or 0.0
                    )
                timed_out = timed_out or now > deadline
                if now > deadline or (self._stop_at is not None and now > self._stop_at + _grace_s(limit)):
                    ended = True
                    assert process.stdin is not None
                    process.stdin.close()  # the keeper ends everything
                    process.wait()
            reader.join(timeout=10)
        asked = (self._directory / STOP_FILE).exists()
        return Outcome(process.returncode, self._stop_at is not None, asked, timed_out, ended, "\n".join(self._tail))

    def _pump(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with self._log.open("a", encoding="utf-8") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                self._tail.append(line.rstrip("\n"))
                _, found, text = line.partition(PROGRESS)
                if found:
                    logger.info("%s", text.rstrip())

    @contextlib.contextmanager
    def _stopping_softly(self, limit: TimeLimit) -> Iterator[None]:
        """SIGTERM and SIGINT ask the trainer to save and stop at the next step boundary."""

        def ask(number: int, frame: FrameType | None) -> None:
            if self._stop_at is None:
                self._stop_at = time.monotonic()
                (self._directory / STOP_FILE).touch()
                logger.info("stopping: a save at the next step boundary, at most %.0f s from now", _grace_s(limit))

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _grace_s(limit: TimeLimit) -> float:
    """Seconds that a stopping run is given."""
    return max(GRACE_S, limit.needed_s())


# Snakemake sets these to a rule's threads. vLLM pins its engine to one core and sets OMP_NUM_THREADS to match; an MKL that still
# believes in two threads then fights itself on that core, and generation took some ten times as long.
LEFT_OUT = frozenset(
    "MKL_NUM_THREADS OPENBLAS_NUM_THREADS GOTO_NUM_THREADS NUMEXPR_NUM_THREADS NUMEXPR_MAX_THREADS VECLIB_MAXIMUM_THREADS".split()
)


def engine_environment(cpu: bool) -> dict[str, str]:
    """What verl, Ray and vLLM read from the environment."""
    values = {
        "VERL_USE_EXTERNAL_MODULES": "genselect.training.plugin",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HYDRA_FULL_ERROR": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    if cpu:
        values |= {
            "GENSELECT_CPU": "1",
            # Ray runs workers at nice 15 otherwise, and any other load starves the engine.
            "RAY_worker_niceness": "0",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "2",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # One pinned thread generates faster than two that wander.
            "VLLM_CPU_OMP_THREADS_BIND": "0",
        }
    return values

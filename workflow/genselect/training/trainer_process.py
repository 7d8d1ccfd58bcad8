"""The process that verl runs in, as its launcher sees it: its environment, its output, and how it is stopped.

It is kept by :mod:`genselect.judge.keeper`, so that nothing of it (Ray, vLLM) outlives the attempt, however the attempt ends. Its
output goes to the attempt's log; the lines meant for a person are shown as they come.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from genselect.config.training import Run
from genselect.judge import keeper
from genselect.provenance.attempts import METRICS
from genselect.provenance.run_directory import STOP_FILE
from genselect.training.nodes import environment, over_nodes
from genselect.training.time_limit import TimeLimit

#: Opens the lines of the trainer that a person should see.
PROGRESS = "genselect> "

#: Seconds for a stopping run to reach its step boundary and save, before it is ended; more where a step is known to take long.
GRACE_S = 110.0
_KEEPER_GRACE_S = 10.0
_LAST_LINES = 30

logger = logging.getLogger("genselect")


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


class TrainerProcess:
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

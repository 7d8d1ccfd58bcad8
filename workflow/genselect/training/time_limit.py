"""When Slurm will end the job that a run is in, so that the run can save before.

Slurm's warning signal (``--signal``) is of no use here. Where it follows processes by control groups it signals only the processes that it
started itself, which is Snakemake; elsewhere it signals every process, and the trainer dies before it can save. So the end is asked for:
``squeue`` knows it in every case, a preemption's grace included.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import orjson

#: Seconds that a save may take, and Slurm's own imprecision.
SAVE_S = 120.0
#: A step may take this much longer than the longest so far.
STEP_SLACK = 1.5
#: Seconds between two questions to Slurm's controller.
ASK_EVERY_S = 15.0

logger = logging.getLogger("genselect")


class TimeLimit:
    """Whether the end of the job is so near that the next step may be the last to be saved. Outside Slurm it never is.

    Args:
        metrics: The run's ``metrics.jsonl``, which grows by a line a step: how long a step takes is seen there.
        step_s: Seconds that the configuration gives a step, if it does.
        ask: Gives the job's end as a Unix time, or None while it is not known.
    """

    def __init__(
        self, metrics: Path, step_s: float | None = None, ask: Callable[[], float | None] | None = None
    ) -> None:
        self._metrics = metrics
        self._ask = ask or job_end
        self._asked = float("-inf")
        self._end: float | None = None
        self._size = self._grown = 0.0
        self._look_at_steps()
        # What stands there is of earlier attempts, and says itself how long its steps were.
        self._longest_step = max(step_s or 0.0, *_timed_steps(metrics), 0.0)

    def left_s(self) -> float | None:
        """Seconds until the job ends; None when that is not known. Asks Slurm every 15 s at most."""
        now = time.monotonic()
        if now - self._asked >= ASK_EVERY_S:
            self._asked = now
            self._end = self._ask() or self._end
        return None if self._end is None else self._end - time.time()

    def needed_s(self) -> float:
        """Seconds that one more step and a save may take."""
        self._look_at_steps()
        return SAVE_S + STEP_SLACK * self._longest_step

    def is_near(self) -> bool:
        """Whether less than that is left."""
        needed, left = self.needed_s(), self.left_s()
        return left is not None and left < needed

    def _look_at_steps(self) -> None:
        size = self._metrics.stat().st_size if self._metrics.exists() else 0
        now = time.monotonic()
        if size != self._size and self._grown:
            self._longest_step = max(self._longest_step, now - self._grown)
        if size != self._size or not self._grown:
            self._size, self._grown = size, now


def _timed_steps(metrics: Path) -> list[float]:
    """Seconds of the steps that ``metrics.jsonl`` has."""
    found = []
    for line in metrics.read_bytes().splitlines() if metrics.exists() else []:
        with contextlib.suppress(orjson.JSONDecodeError):  # the last may be torn
            seconds = orjson.loads(line).get("timing_s/step")
            if isinstance(seconds, int | float):
                found.append(float(seconds))
    return found


def job_end() -> float | None:
    """When Slurm will end this process's job, as a Unix time; None outside Slurm, without a limit, or if the controller is silent."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    try:
        done = subprocess.run(
            ["squeue", "--noheader", f"--jobs={job}", "--format=%e"], capture_output=True, text=True, check=True, timeout=30
        )  # fmt: skip
        # Local time, without a zone.
        return datetime.datetime.fromisoformat(done.stdout.strip()).timestamp()
    except (OSError, subprocess.SubprocessError, ValueError):
        return None

"""How far a labelling job is: a bar on a terminal, a line a minute in a log, ``progress.json`` for everyone else."""

from __future__ import annotations

import datetime
import logging
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from genselect.formats import write_json

#: Seconds between two writes of ``progress.json``, and between two lines in a log.
FILE_EVERY_S = 1.0
LINE_EVERY_S = 60.0

logger = logging.getLogger(__name__)


class Progress:
    """Counts distinct pairs. A context manager: leaving it writes the state ``done``, or ``stopped`` after an exception.

    ``progress.json`` holds ``total`` and ``done`` (pairs), ``judged`` (replies of the judge), ``rate`` (pairs a second in this
    stage), ``eta_s``, ``stage``, ``state`` (``running``, ``done``, ``stopped``) and ``updated`` (UTC).
    """

    def __init__(self, path: Path, total: int, *, what: str) -> None:
        self.path = path
        self._total = total
        self._what = what
        self._done = self._judged = 0
        self._stage = "start"
        self._stage_began, self._stage_from = time.monotonic(), 0
        self._file_at = self._line_at = time.monotonic()
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=self._total, rate="")
        self._write("running")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        self._write("done" if kind is None else "stopped")

    def begin(self, stage: str, *, done: int, judged: int = 0, further: int = 0) -> None:
        """A stage begins with ``done`` pairs behind it; ``further`` more than thought are to do."""
        self._stage, self._done, self._judged = stage, done, judged
        self._total += further
        self._stage_began, self._stage_from = time.monotonic(), done
        self._show()
        logger.info("%s: %s, %d of %d pairs done", self._what, stage, done, self._total)
        self._write("running")

    def advance(self, pairs: int, *, judged: int = 0) -> None:
        """``pairs`` more are done."""
        self._done += pairs
        self._judged += judged
        now = time.monotonic()
        if now - self._file_at >= FILE_EVERY_S:
            self._show()
            self._write("running")
        if now - self._line_at >= LINE_EVERY_S and not self._bar:
            self._line_at = now
            rate, eta_s = self._speed()
            left = "?" if eta_s is None else str(datetime.timedelta(seconds=round(eta_s)))
            logger.info(
                "%s: %s, %d of %d pairs, %.1f a second, %s left",
                *(self._what, self._stage, self._done, self._total, rate, left),
            )

    def _speed(self) -> tuple[float, float | None]:
        """Pairs a second in this stage, and the seconds that are left at that rate."""
        seconds = time.monotonic() - self._stage_began
        rate = (self._done - self._stage_from) / seconds if seconds > 0 else 0.0
        return rate, ((self._total - self._done) / rate if rate > 0 else None)

    def _show(self) -> None:
        if self._bar:
            text = f"{self._stage}, {self._speed()[0]:.1f}/s"
            self._bar.update(self._task, completed=self._done, total=self._total, rate=text)

    def _write(self, state: Literal["running", "done", "stopped"]) -> None:
        self._file_at = time.monotonic()
        rate, eta_s = self._speed()
        values = {
            "total": self._total,
            "done": self._done,
            "judged": self._judged,
            "rate": round(rate, 3),
            "eta_s": None if eta_s is None or state != "running" else round(eta_s, 1),
            "stage": self._stage,
            "state": state,
            "updated": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        write_json(self.path, values)

"""The attempts of a run: one for each start of its program, numbered from 1, and what a later one takes back of an earlier one.

An attempt that is killed writes no end, and leaves records and metrics of steps behind the last save. The next attempt
recognises the first and moves the second to ``superseded/``, so that every step counts once and nothing is lost.
"""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import orjson

from genselect.errors import GenselectError
from genselect.formats.atomic import atomic_path, sync_directory
from genselect.formats.jsonl import parse_line

logger = logging.getLogger(__name__)

Reason = Literal["done", "stopped", "time_limit", "signal", "failed", "guard"]
#: Written by the next attempt about one that wrote no end of its own.
KILLED = "killed"
METRICS = "metrics.jsonl"
SUPERSEDED = "superseded"

_STEP_FILE = {
    "records": re.compile(r"(?:tokens_)?step_(\d+)\.parquet"),
    "potential": re.compile(r"step_(\d+)\.json"),
    "validation": re.compile(r"step_(\d+)\.parquet"),
}


@dataclass
class Attempt:
    """One start of the run's program. Made by ``RunDirectory.begin_attempt``."""

    number: int
    """From 1."""
    log: Path
    """``attempts/<n>.log``, for the program's whole output; the folder exists."""
    resumed_from: int | None
    """Step of the save it goes on from; None when it starts anew."""
    record: Callable[[int, dict[str, Any]], None] = field(repr=False)
    """Updates this attempt's entry in the manifest."""
    ended: bool = False

    def end(self, reason: Reason, step: int | None, exit_code: int) -> None:
        """Write the attempt's end into the manifest. The first end stands; a later call changes nothing.

        Args:
            reason: ``done``; ``stopped`` (asked to), ``time_limit``, ``signal`` (SIGTERM), ``guard``; ``failed``.
            step: The last step that was finished; None when none was.
            exit_code: Of the program.
        """
        if reason not in get_args(Reason):
            raise ValueError(f"{reason!r} is not one of {', '.join(get_args(Reason))}")
        if not self.ended:
            self.record(self.number, {"end": now(), "reason": reason, "last_step": step, "exit_code": exit_code})
            self.ended = True


@dataclass(frozen=True)
class Trimmed:
    """What moved to ``superseded/``. All counts are 0 when there was nothing beyond the step."""

    step: int
    files: dict[str, list[int]]
    """Steps of the moved files, by folder: ``records`` (a step's token file included), ``potential``, ``validation``."""
    metrics: list[int]
    """Steps of the moved lines of ``metrics.jsonl``, in file order."""
    torn_lines: int
    """1 when the last line had been cut off in the writing (it is kept in ``superseded/`` too)."""
    missing: list[int]
    """Steps up to ``step``, after the first that has metrics, without a line in ``metrics.jsonl``: lost, not trimmed."""
    broken_saves: list[int] = field(default_factory=list)
    """Steps of the broken saves that were set aside under ``checkpoints/``."""

    def __str__(self) -> str:
        moved = [f"{name} of {_steps(steps)}" for name, steps in self.files.items() if steps]
        moved += [f"{len(self.metrics)} metrics line(s) of {_steps(self.metrics)}"] if self.metrics else []
        moved += [f"broken saves of {_steps(self.broken_saves)}"] if self.broken_saves else []
        kept = f"to step {self.step}" if self.step >= 0 else "to its beginning"
        text = f"trimmed {kept}: " + ("; ".join(moved) if moved else "nothing lay beyond it")
        text += "; a torn last metrics line" if self.torn_lines else ""
        return text + (f"; no metrics of {_steps(self.missing)}" if self.missing else "")


def trim(root: Path, step: int, attempt: int) -> Trimmed:
    """Move everything beyond ``step`` from records, potential, validation and metrics to ``superseded/attempt_<n>/``.

    Can be cut short anywhere and called again. Hidden temporary files of a killed writer are deleted.

    Args:
        root: The run directory.
        step: Last step that stays; the step resumed from, or the one before the run's first.
        attempt: The attempt that left what has no attempt of its own to tell (files of steps without a metrics line).

    Raises:
        GenselectError: A line of ``metrics.jsonl`` other than a torn last one is damaged.
    """
    lines, torn = _read_metrics(root / METRICS)
    attempt_of = {line.step: line.attempt for line in lines}
    files = {folder: _move_files(root, folder, step, attempt_of, attempt) for folder in _STEP_FILE}
    beyond = [line for line in lines if line.step > step]
    if beyond or torn:
        _set_lines_aside(root, beyond, torn, attempt)
        _write_lines(root / METRICS, [line.raw for line in lines if line.step <= step])
    for folder in [root, *(root / name for name in _STEP_FILE)]:
        for leftover in folder.glob(".*.tmp"):
            leftover.unlink()
    kept = {line.step for line in lines if line.step <= step}
    missing = sorted(set(range(min(kept), step + 1)) - kept) if kept else []
    trimmed = Trimmed(step, files, [line.step for line in beyond], int(bool(torn)), missing)
    logger.info("%s", trimmed)
    return trimmed


def last_metrics_step(root: Path, attempt: int) -> int | None:
    """The last step that ``attempt`` wrote metrics of; None when it wrote none."""
    lines, _ = _read_metrics(root / METRICS)
    return max((line.step for line in lines if line.attempt == attempt), default=None)


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class _Line:
    step: int
    attempt: int
    raw: bytes


def _read_metrics(path: Path) -> tuple[list[_Line], bytes]:
    """The lines, and the torn rest of the last one (empty: none)."""
    if not path.is_file():
        return [], b""
    *whole, last = path.read_bytes().split(b"\n")
    if last and _is_object(last):  # only its line end is missing
        whole, last = [*whole, last], b""
    return [_line(raw, path, number) for number, raw in enumerate(whole, start=1) if raw.strip()], last


def _line(raw: bytes, path: Path, number: int) -> _Line:
    values = parse_line(raw, path, number)
    if not all(type(values.get(key)) is int for key in ("step", "attempt")):
        raise GenselectError(
            f"{path}, line {number}: step and attempt must both be there, as integers",
            "Mend or delete that line; without them nobody can tell which draw of a step it belongs to.",
        )
    return _Line(values["step"], values["attempt"], raw)


def _is_object(raw: bytes) -> bool:
    try:
        return isinstance(orjson.loads(raw), dict)
    except orjson.JSONDecodeError:
        return False


def _move_files(root: Path, folder: str, step: int, attempt_of: dict[int, int], attempt: int) -> list[int]:
    if not (root / folder).is_dir():
        return []
    moved = set()
    for file in sorted((root / folder).iterdir()):
        match = _STEP_FILE[folder].fullmatch(file.name)
        if match and int(match[1]) > step:
            of_step = int(match[1])
            target = root / SUPERSEDED / f"attempt_{attempt_of.get(of_step, attempt)}" / folder
            target.mkdir(parents=True, exist_ok=True)
            file.rename(_free_name(target / file.name))
            moved.add(of_step)
    if moved:
        sync_directory(root / folder)
    return sorted(moved)


def _free_name(path: Path) -> Path:
    """``path``, or with .2, .3, … before its ending when an earlier trim has it: nothing superseded is written over."""
    names = [path.name, *(f"{path.stem}.{count}{path.suffix}" for count in range(2, 1000))]
    return next(path.with_name(name) for name in names if not path.with_name(name).exists())


def _set_lines_aside(root: Path, beyond: list[_Line], torn: bytes, attempt: int) -> None:
    for number in sorted({line.attempt for line in beyond}):
        path = root / SUPERSEDED / f"attempt_{number}" / METRICS
        earlier, _ = _read_metrics(path)
        raws = [line.raw for line in earlier] + [line.raw for line in beyond if line.attempt == number]
        # A trim that was cut short before it rewrote metrics.jsonl has set some of these lines aside already.
        _write_lines(path, dict.fromkeys(raws))
    if torn:
        path = root / SUPERSEDED / f"attempt_{attempt}" / "metrics.torn"
        earlier_torn = path.read_bytes().splitlines() if path.is_file() else []
        _write_lines(path, dict.fromkeys([*earlier_torn, torn]))


def _write_lines(path: Path, raws: Iterable[bytes]) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(b"".join(raw + b"\n" for raw in raws))


def _steps(steps: list[int]) -> str:
    """``step 7``, ``steps 6 to 8``, ``steps 6, 8``: as a person would say it."""
    distinct = sorted(set(steps))
    if len(distinct) == 1:
        return f"step {distinct[0]}"
    if distinct == list(range(distinct[0], distinct[-1] + 1)):
        return f"steps {distinct[0]} to {distinct[-1]}"
    return f"steps {', '.join(map(str, distinct))}"

"""Files that may be missing, half-written or broken, read so that none of them ends the reading.

What cannot be read is noted as ``unreadable: …``; a missing file is no fault.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from genselect.errors import GenselectError
from genselect.formats.jsonl import read_json

#: Seconds without a sign of life after which something that has begun is called silent.
QUIET_S = 900.0
_TAIL_BYTES = 1 << 16
_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)")
#: Lines of a failure that are shown after its first.
_SHOWN_LINES = 3


@dataclass
class Reader:
    """Reads below ``root`` and collects what it could not read."""

    root: Path
    now: float
    """Seconds since the epoch."""
    problems: list[str] = field(default_factory=list)

    def fresh(self) -> Reader:
        """One of the same folder and moment, with no problems yet."""
        return Reader(self.root, self.now)

    def mapping(self, path: Path) -> dict[str, Any] | None:
        """The object in a JSON file; None when it is missing or unreadable."""
        if not path.exists():
            return None
        try:
            value = read_json(path)
        except GenselectError as error:
            self.unreadable(path, error.message)
            return None
        except OSError as error:
            self.unreadable(path, str(error))
            return None
        if not isinstance(value, dict):
            self.unreadable(path, f"an object was expected, not {type(value).__name__}")
            return None
        return value

    def lines(self, path: Path) -> list[dict[str, Any]]:
        """The objects of a JSONL file; a torn last line is noted as such, a broken one in the middle as unreadable."""
        try:
            raws = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            self.unreadable(path, error.strerror or str(error))
            return []
        found = []
        for number, raw in enumerate(raws, start=1):
            if not raw.strip():
                continue
            try:
                value = orjson.loads(raw)
            except orjson.JSONDecodeError:
                value = None
            if isinstance(value, dict) and integer(value.get("step")) is not None:
                found.append(value)
            elif number == len(raws):
                self.unreadable(path, f"line {number} is torn (being written, or its writer was killed)")
            else:
                self.unreadable(path, f"line {number} is no line of metrics")
        return found

    def unreadable(self, path: Path, why: str) -> None:
        """Note it."""
        why = why.removeprefix(f"{path}: ")
        self.problems.append(f"unreadable: {self.relative(path)}: {why}")

    def relative(self, path: Path) -> str:
        """``path`` as seen from the results folder."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)

    def age(self, *paths: Path) -> float | None:
        """Seconds since the newest of ``paths`` was written; None when none is there."""
        times = []
        for path in paths:
            try:
                times.append(path.stat().st_mtime)
            except OSError:
                continue
        return max(0.0, self.now - max(times)) if times else None


@dataclass(frozen=True)
class LogEnd:
    """The last record of a program's ``--log``."""

    failed: bool
    text: str
    """One line; of a failure, the first lines."""
    age_s: float


def log_end(reader: Reader, path: Path) -> LogEnd | None:
    """How a log ends; None when it is missing or holds nothing."""
    try:
        with path.open("rb") as handle:
            handle.seek(0, os.SEEK_END)
            handle.seek(max(0, handle.tell() - _TAIL_BYTES))
            lines = handle.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for at in range(len(lines) - 1, -1, -1):
        if match := _LOG_LINE.fullmatch(lines[at]):
            level, text = match.groups()
            failed = level in ("ERROR", "CRITICAL")
            if failed:
                more = [line.strip() for line in lines[at + 1 : at + 1 + _SHOWN_LINES] if line.startswith("  - ")]
                text = " ".join([text, *more])
            return LogEnd(failed, text.removeprefix("error: "), reader.age(path) or 0.0)
    return None


def size(path: Path) -> int:
    """Bytes of all files below ``path``, links not followed; what vanishes meanwhile counts nothing."""
    try:
        if not path.is_dir() or path.is_symlink():
            return path.lstat().st_size
        with os.scandir(path) as entries:
            return sum(
                size(Path(entry.path)) if entry.is_dir(follow_symlinks=False) else _bytes(entry) for entry in entries
            )
    except OSError:
        return 0


def _bytes(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def folders(path: Path) -> list[str]:
    """Names of the folders in ``path``, hidden ones left out; empty when it is no folder."""
    try:
        return sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []


def count_files(path: Path, pattern: str) -> int:
    """Files in ``path`` that fit."""
    try:
        return sum(1 for _ in path.glob(pattern))
    except OSError:
        return 0


def number(value: Any) -> float | None:
    """A number as such; None for anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def integer(value: Any) -> int | None:
    """An integer as such; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text(value: Any) -> str | None:
    """A string as such; None for anything else."""
    return value if isinstance(value, str) else None


def mapping(value: Any) -> dict[str, Any]:
    """An object as such; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def added(values: Iterable[int | None]) -> int | None:
    """The sum of those that are there; None when none is."""
    found = [value for value in values if value is not None]
    return sum(found) if found else None

"""Texts set aside on disk while the shards are read, so that memory holds only their hashes and places."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

__all__ = ["SpoolPart", "SpoolReader", "SpoolWriter"]

_BUFFER = 1 << 20


@dataclass(frozen=True)
class SpoolPart:
    """A written spool file: entry ``i`` is the bytes from ``ends[i - 1]`` (0 for the first) to ``ends[i]``."""

    path: Path
    ends: array[int] = field(default_factory=lambda: array("Q"))

    def __len__(self) -> int:
        return len(self.ends)


class SpoolWriter:
    """Appends entries to a new file."""

    def __init__(self, path: Path) -> None:
        self.part = SpoolPart(path)
        self._handle = path.open("xb", buffering=_BUFFER)
        self._end = 0

    def add(self, text: bytes | memoryview) -> int:
        """Append ``text`` and return the number of its entry."""
        self._handle.write(text)
        self._end += len(text)
        self.part.ends.append(self._end)
        return len(self.part.ends) - 1

    def __enter__(self) -> SpoolWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.close()


class SpoolReader:
    """Entries of several parts, numbered through in the order of the parts."""

    def __init__(self, parts: Sequence[SpoolPart]) -> None:
        self._parts = parts
        self._descriptors = [os.open(part.path, os.O_RDONLY) for part in parts]

    def read(self, entry: int) -> bytes:
        """The text of ``entry``. Read from the file and not mapped, so that it does not count as memory of the process."""
        for part, descriptor in zip(self._parts, self._descriptors, strict=True):
            if entry < len(part):
                start = part.ends[entry - 1] if entry else 0
                return os.pread(descriptor, part.ends[entry] - start, start)
            entry -= len(part)
        raise IndexError("no such entry")

    def __enter__(self) -> SpoolReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)

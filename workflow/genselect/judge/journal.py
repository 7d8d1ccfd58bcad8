"""Verdicts as they come in, in a file that survives ``kill -9``: what it holds is never asked again.

One line a verdict, keyed by what was asked and of whom, never by position. Each line is written in one call, so a killed
process loses nothing that it recorded; ``fsync`` follows in batches on a thread of its own, so a power cut loses at most the
last moments. A line that was cut by either is the last one, and is dropped when the journal is opened again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from genselect.errors import GenselectError

#: Lines, and seconds, after which what was written must be on the disk.
SYNC_LINES = 512
SYNC_SECONDS = 1.0

Record = dict[str, Any]


def content_key(problem: str, expected: str, predicted: str, fingerprint: str) -> str:
    """The key of one question to one judge, as hex: equal content, equal key, wherever it stands."""
    content = orjson.dumps([problem, expected, predicted, fingerprint])
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class Journal:
    """An append-only journal in a directory. Use it as a context manager; one process at a time.

    Raises:
        GenselectError: Another process writes to it, a line in its middle is broken, or the disk is full.
    """

    def __init__(self, folder: Path | str) -> None:
        self.path = Path(folder) / "journal.jsonl"
        self.records: dict[tuple[str, str], Record] = {}
        """By (stage, key)."""
        self._borrowed: dict[tuple[str, str], Record] = {}
        self._wake = threading.Condition()
        self._unsynced = 0
        self._closing = False
        self._fault: OSError | None = None

    def __enter__(self) -> Journal:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise GenselectError(
                f"{self.path}: the journal cannot be opened: {error.strerror}", "Choose a folder you may write to."
            ) from error
        try:
            self._lock()
            self._size = self._load()
        except BaseException:
            os.close(self._file)
            raise
        self._syncer = threading.Thread(target=self._sync_in_batches, name="journal-fsync", daemon=True)
        self._syncer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._syncer.join()
        os.close(self._file)
        if self._fault and kind is None:
            raise _write_error(self.path, self._fault)

    def __len__(self) -> int:
        return len(self.records)

    def borrow(self, folder: Path | str) -> int:
        """Know what every other journal below ``folder`` holds, too: another cut into shares must not ask anything twice.

        Other jobs may be writing them: a torn or broken line is simply not known. Returns the records found.
        """
        for path in sorted(Path(folder).rglob(self.path.name)):
            if path.resolve() == self.path.resolve():
                continue
            for line in path.read_bytes().splitlines():
                record = _parse(line)
                if record is not None:
                    self._borrowed[record["stage"], record["key"]] = record
        return len(self._borrowed)

    def get(self, stage: str, key: str) -> Record | None:
        """The record of ``stage`` for ``key``, if there is one. A borrowed one is copied into this journal."""
        found = self.records.get((stage, key))
        if found is None and (borrowed := self._borrowed.get((stage, key))) is not None:
            self.append(**borrowed)
            return borrowed
        return found

    def append(self, stage: str, key: str, **values: Any) -> None:
        """Record ``values``. On return they survive the end of this process; within a second, that of the machine."""
        if self._fault:
            raise _write_error(self.path, self._fault)
        record = {"stage": stage, "key": key, **values}
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        self._write(line)
        self.records[stage, key] = record
        with self._wake:
            self._unsynced += 1
            # The thread sleeps until there is a first line, and then for a second unless the batch fills up.
            if self._unsynced in (1, SYNC_LINES):
                self._wake.notify()

    def _write(self, line: bytes) -> None:
        try:
            written = os.write(self._file, line)
            if written < len(line):  # a disk that fills up takes the first part and refuses the rest
                os.write(self._file, line[written:])
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise _write_error(self.path, error) from error
        self._size += len(line)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GenselectError(
                f"{self.path}: another process is writing to this journal",
                "Wait until that labelling job has ended, or give this one a journal folder of its own.",
            ) from None

    def _load(self) -> int:
        """Read what is there, cut a torn end off, and return the size of what is left."""
        content = self.path.read_bytes()
        lines = content.split(b"\n")
        torn = lines.pop()  # empty when the last line was written whole
        size = len(content) - len(torn)
        for number, line in enumerate(lines, start=1):
            record = _parse(line)
            if record is None:
                if number == len(lines) and not torn:
                    size -= len(line) + 1
                    break
                raise GenselectError(
                    f"{self.path}, line {number}: not a journal record: {line[:80].decode(errors='replace')!r}",
                    "The file was damaged or edited. Delete that line to ask its pair again, or delete the file to ask all.",
                )
            self.records[record["stage"], record["key"]] = record
        if size < len(content):
            os.ftruncate(self._file, size)
            os.fsync(self._file)
        return size

    def _sync_in_batches(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._unsynced or self._closing)
                self._wake.wait_for(lambda: self._unsynced >= SYNC_LINES or self._closing, timeout=SYNC_SECONDS)
                closing, self._unsynced = self._closing, 0
            try:
                os.fsync(self._file)
            except OSError as error:  # told to the writer at its next line, or at the end
                self._fault = error
            if closing:
                return


def _parse(line: bytes) -> Record | None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    whole = isinstance(record, dict) and isinstance(record.get("stage"), str) and isinstance(record.get("key"), str)
    return record if whole else None


def _write_error(path: Path, error: OSError) -> GenselectError:
    return GenselectError(
        f"{path}: the journal could not be written: {error.strerror}",
        "Free space there (df -h), then start the same command again: what the journal holds is not asked again.",
    )

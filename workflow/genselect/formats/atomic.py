"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from genselect.errors import GenselectError

_FULL = {
    errno.ENOSPC: "no space is left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file size limit is reached",
}


@contextlib.contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its name, durably, when the block ends well, and vanishes when it does not.

    Raises:
        GenselectError: The disk is full, or the quota or size limit is reached.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        if error.errno in _FULL:
            raise GenselectError(
                f"{path}: could not be written: {_FULL[error.errno]}",
                "Free space there (df -h) or set results: to a larger disk, then start the same command again; "
                "nothing half-written was left.",
            ) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def sync_directory(folder: Path) -> None:
    """Make renames in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path | str, text: str) -> None:
    """Write ``text`` as UTF-8, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")

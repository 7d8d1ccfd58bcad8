"""Many files put into place: none half-written under its name, and the disk waited for once instead of for each.

:func:`genselect.formats.atomic_path` waits for the disk at every file, which takes minutes for ten thousand of them.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from genselect.errors import GenselectError

#: What a killed placing leaves beside the names it was to fill; the form is that of formats.atomic.
LEFTOVER = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")


class Move(NamedTuple):
    """One file to put into place."""

    source: Path
    target: Path
    link: bool
    """A second name for the same bytes will do; else, or on another file system, they are copied."""


def place(moves: Iterable[Move]) -> None:
    """Give every target the content of its source. Targets take their names after all contents are on disk.

    Raises:
        GenselectError: The disk is full, or a quota or limit is reached. No target has changed then.
    """
    moves = list(moves)
    clear_leftovers(move.target for move in moves)
    waiting: list[tuple[Path, Path]] = []
    try:
        for source, target, link in moves:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
            waiting.append((temporary, target))
            if link:
                with suppress(OSError):
                    os.link(source, temporary)
            if not temporary.exists():
                shutil.copyfile(source, temporary)
        os.sync()
        for temporary, target in waiting:
            temporary.replace(target)
        os.sync()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise GenselectError(
                f"{waiting[-1][1]}: could not be written: {error.strerror}",
                "Free space there (df -h) or name another folder, then start the same command again; nothing half-written was left.",
            ) from error
        raise
    finally:
        for temporary, _ in waiting:
            temporary.unlink(missing_ok=True)


def clear_leftovers(targets: Iterable[Path]) -> None:
    """Remove what a killed :func:`place` left beside ``targets``."""
    names: dict[Path, set[str]] = {}
    for target in targets:
        names.setdefault(target.parent, set()).add(target.name)
    for folder, wanted in names.items():
        for path in folder.glob(".*.tmp"):
            if (match := LEFTOVER.fullmatch(path.name)) and match[1] in wanted:
                path.unlink()

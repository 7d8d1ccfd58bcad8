"""What lies in ``results/``, and which entry of the declared list each file falls under."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from genselect.config import Config
from genselect.publishing.contents import Entry, pattern_regex

#: Folder of the staged trees, in ``results/``.
PUBLICATION = "publication"
#: Snakemake's mark in a folder that is a job's output.
_MARK = ".snakemake_timestamp"


@dataclass(frozen=True)
class Found:
    """One file of ``results/``."""

    path: str
    """Relative to it, with ``/``."""
    bytes: int


@dataclass(frozen=True)
class Inventory:
    """Everything that lies there, by path."""

    files: tuple[Found, ...]
    odd: tuple[str, ...]
    """What is neither a file nor a folder: dangling links, links to folders, sockets; and names that are not UTF-8."""


def take_inventory(results: Path) -> Inventory:
    """List ``results`` but for ``publication/``, where the staged trees lie, and Snakemake's marks. A link to a file counts as it."""
    files: list[Found] = []
    odd: list[str] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(results / folder) as entries:
            for entry in entries:
                path = folder + entry.name
                try:
                    path.encode()
                except UnicodeEncodeError:
                    odd.append(path.encode(errors="surrogateescape").decode(errors="replace"))
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if path != PUBLICATION:
                        folders.append(path + "/")
                elif entry.is_file() and entry.name == _MARK:
                    continue
                elif entry.is_file():
                    files.append(Found(path, entry.stat().st_size))
                else:
                    odd.append(path)
    return Inventory(tuple(sorted(files, key=lambda found: found.path)), tuple(sorted(odd)))


class Sorter:
    """Finds the entry of a path: the first that fits."""

    def __init__(self, names: Mapping[str, Iterable[str]], contents: Sequence[Entry]) -> None:
        self._contents = contents
        rules = (
            f"(?P<e{number}>{'|'.join(pattern_regex(pattern, names) for pattern in entry.patterns)})"
            for number, entry in enumerate(contents)
        )
        self._regex = re.compile("|".join(rules))

    def __call__(self, path: str) -> Entry | None:
        """The entry of ``path``, or None."""
        match = self._regex.fullmatch(path)
        return None if match is None or match.lastgroup is None else self._contents[int(match.lastgroup[1:])]


def names_of(config: Config) -> dict[str, tuple[str, ...]]:
    """What the placeholders of the declared list stand for."""
    return {"name": (config.dataset.name,), "run": tuple(config.runs), "rollout": tuple(config.rollouts)}

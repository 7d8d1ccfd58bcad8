"""The directory tree of the front page: a line for each kind of file in each folder."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from genselect.publishing.layout import TargetPlan
from genselect.publishing.packing import Item
from genselect.publishing.publication import FILE, FRONT_PAGE

#: Kinds that lie in nearly every folder: a line for each part of the tree.
_SPREAD = ("seal", "log", "times")
_SEAL = ".seal.json"
#: More names than this, numbers aside, become one with a star.
_NAMES = 3


@dataclass(frozen=True)
class TreeLine:
    """Files of one kind in one folder."""

    paths: tuple[str, ...]
    """As they are, or with ``*`` for numbers and names, ``**`` for folders."""
    files: int
    bytes: int
    what: str


@dataclass(frozen=True)
class TreePart:
    """What lies below one folder of the first level, and of ``runs/`` below each run."""

    title: str
    lines: tuple[TreeLine, ...]


_PARTS = {
    "data": "Data",
    "models": "The base model",
    "gates": "Gates",
    "rollouts": "Rollouts of the untrained policy",
    "runs": "Run",
    "evaluation": "Evaluation",
    "report": "Report",
    "checkpoints": "Adapters",
    "logs": "Logs",
    "benchmarks": "Times",
}
"""In the order in which a reader wants them; whatever else there is comes last."""


def tree_parts(plan: TargetPlan) -> list[TreePart]:
    """The tree of one target, in parts."""
    parts: dict[str, list[Item]] = {}
    for item in plan.items:
        parts.setdefault(_part(item.path), []).append(item)
    packed: dict[str, list[TreeLine]] = {}
    for packing in plan.packed:
        what = f"the folder {packing.folder}/, packed: {len(packing.items):,} files"
        packed.setdefault(_part(packing.archive), []).append(TreeLine((packing.archive,), 1, packing.bytes, what))
    names = sorted({*parts, *packed}, key=_order)
    found = [TreePart(_title(name), (*_lines(parts.get(name, [])), *packed.get(name, []))) for name in names]
    own = (
        TreeLine((FRONT_PAGE,), 1, 0, "this page"),
        TreeLine((FILE,), 1, 0, "every file with its sha256, what was packed, and what was left out"),
    )
    return [TreePart("Here", own), *found]


def _part(path: str) -> str:
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "runs" else parts[0]


def _title(part: str) -> str:
    top, _, run = part.partition("/")
    return f"Run {run}" if run else _PARTS.get(top, top)


def _order(part: str) -> tuple[int, str]:
    names = list(_PARTS)
    top = part.partition("/")[0]
    return (names.index(top) if top in names else len(names), part)


def _lines(items: Iterable[Item]) -> list[TreeLine]:
    groups: dict[tuple[str, str], list[Item]] = {}
    spread: dict[str, list[Item]] = {}
    for item in items:
        if item.entry.kind in _SPREAD:
            spread.setdefault(item.entry.kind, []).append(item)
        else:
            groups.setdefault((str(PurePosixPath(item.path).parent), item.entry.kind), []).append(item)
    lines = []
    # Files of a folder before those of the folders in it.
    for (folder, _), found in sorted(groups.items(), key=lambda group: group[0][0].split("/")):
        names = _shown([PurePosixPath(item.path).name for item in found])
        lines.append(_line([f"{folder}/{name}" for name in names], found))
    return lines + [_line(_anywhere([item.path for item in found]), found) for found in spread.values()]


def _line(paths: Iterable[str], found: Sequence[Item]) -> TreeLine:
    return TreeLine(tuple(paths), len(found), sum(item.bytes for item in found), found[0].entry.what)


def _anywhere(paths: Sequence[str]) -> list[str]:
    """One pattern a suffix, over all folders below the one that all files lie in; a single file by its name."""
    if len(paths) == 1:
        return list(paths)
    folder = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    deep = "" if all(posixpath.dirname(path) == folder for path in paths) else "**/"
    endings = {_SEAL if path.endswith(_SEAL) else PurePosixPath(path).suffix for path in paths}
    return sorted(f"{folder}/{deep}*{ending}" for ending in endings)


def _shown(names: Sequence[str]) -> list[str]:
    """Names with their numbers starred where that unites some; with many names left, one a suffix."""
    if len(names) == 1:
        return list(names)
    united: dict[str, list[str]] = {}
    for name in names:
        united.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    shown = [starred if len(same) > 1 else same[0] for starred, same in united.items()]
    if len(shown) <= _NAMES:
        return sorted(shown)
    return sorted({"*" + "".join(PurePosixPath(name).suffixes[-1:]) for name in names})

"""What a target takes, and how a tree with too many files comes within it: folders of finished runs become one tar each.

A tar holds its folder as it was, and the same files give the same bytes. It is read back, name by name and sum by sum, before
anything is left out for it.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from genselect.errors import GenselectError
from genselect.formats.atomic import atomic_path
from genselect.publishing.contents import Entry
from genselect.publishing.publication import Archive, Target
from genselect.status.render import in_bytes

_BLOCK = 1 << 20
#: A refusal lists this many folders or files.
_SHOWN = 5


@dataclass(frozen=True)
class Limits:
    """What a target takes. Hub: *Repository limitations and recommendations*, August 2026. GitHub: *About large files on GitHub*."""

    file_bytes: int
    """A larger file is refused there."""
    archive_bytes: int
    """No tar is made of more than this: the recommended size of a file."""
    folder_entries: int = 10_000
    """Files and folders in one folder."""
    commit_files: int = 100
    """Recommended files a commit."""


LIMITS: Mapping[Target, Limits] = {
    "hub": Limits(500 * 10**9, 200 * 10**9),
    "reading_copy": Limits(100 * 10**6, 100 * 10**6),
}


@dataclass(frozen=True)
class Item:
    """One file on its way into a tree."""

    path: str
    """In the tree."""
    source: Path
    bytes: int
    entry: Entry


@dataclass(frozen=True)
class Packing:
    """A folder that goes into the tree as one tar."""

    folder: str
    items: tuple[Item, ...]
    """Everything in it, by path."""

    @property
    def archive(self) -> str:
        """The tar's path in the tree."""
        return self.folder + ".tar"

    @property
    def bytes(self) -> int:
        """Of its files."""
        return sum(item.bytes for item in self.items)


def choose_packing(
    items: Sequence[Item], closed: Iterable[str], limits: Limits, max_files: int, *, own: int
) -> tuple[list[Item], list[Packing], list[GenselectError]]:
    """Choose folders ``runs/<run>/<folder>`` of finished runs to pack: those with a too full folder in them, then the fullest
    ones, until the tree is within its limits.

    Args:
        items: All files of the tree, by path.
        closed: Runs that are finished. Others go on writing.
        limits: The target's.
        max_files: Files the tree may hold.
        own: Files that the tree holds besides ``items``.

    Returns:
        What stays as it is, what is packed (by folder), and, where that is not enough, what is still too much.
    """
    units = _units(items, set(closed))
    fit = [
        folder
        for folder, found in units.items()
        if len(found) > 1 and sum(i.bytes for i in found) <= limits.archive_bytes
    ]
    fit.sort(key=lambda folder: (-len(units[folder]), folder))
    full = _full_folders((item.path for item in items), limits)
    chosen = {folder for folder in fit if any(f"{path}/".startswith(f"{folder}/") for path in full)}
    count = len(items) + own - sum(len(units[folder]) - 1 for folder in chosen)
    for folder in fit:
        if count > max_files and folder not in chosen:
            chosen.add(folder)
            count -= len(units[folder]) - 1
    packed = [Packing(folder, tuple(units[folder])) for folder in sorted(chosen)]
    inside = {item.path for packing in packed for item in packing.items}
    kept = [item for item in items if item.path not in inside]
    return kept, packed, _problems(kept, packed, limits, count, max_files)


def _units(items: Iterable[Item], closed: set[str]) -> dict[str, list[Item]]:
    """The files below each folder of each finished run."""
    units: dict[str, list[Item]] = {}
    for item in items:
        parts = item.path.split("/", 3)
        if len(parts) == 4 and parts[0] == "runs" and parts[1] in closed:
            units.setdefault("/".join(parts[:3]), []).append(item)
    return units


def _full_folders(paths: Iterable[str], limits: Limits) -> dict[str, int]:
    """Folders with more entries than a target takes, with their number."""
    entries: Counter[str] = Counter()
    seen: set[str] = set()
    for path in paths:
        # Up to the root, as far as nobody has been before.
        while path and path not in seen:
            seen.add(path)
            path = path.rpartition("/")[0]
            entries[path] += 1
    return {folder: count for folder, count in entries.items() if count > limits.folder_entries}


def _problems(
    kept: Sequence[Item], packed: Sequence[Packing], limits: Limits, count: int, max_files: int
) -> list[GenselectError]:
    problems = []
    for item in kept:
        if item.bytes > limits.file_bytes:
            problems.append(
                GenselectError(
                    f"{item.source}: {in_bytes(item.bytes)}, and a file may have {in_bytes(limits.file_bytes)} at most",
                    "Leave it out (publish.leave_out), or split it.",
                )
            )
    paths = [*(item.path for item in kept), *(packing.archive for packing in packed)]
    if full := _full_folders(paths, limits):
        shown = ", ".join(f"{folder or 'the root'} ({entries:,})" for folder, entries in sorted(full.items())[:_SHOWN])
        problems.append(
            GenselectError(
                f"folders with more than {limits.folder_entries:,} entries, which the Hub refuses: {shown}",
                "Folders of finished runs are packed; finish the run, or leave files out (publish.leave_out).",
            )
        )
    if count > max_files:
        below = Counter("/".join(item.path.split("/")[:3]) for item in kept)
        shown = ", ".join(f"{folder} ({files:,})" for folder, files in below.most_common(_SHOWN))
        problems.append(
            GenselectError(
                f"{count:,} files, {len(packed)} folder(s) of finished runs packed already, and publish.max_files is {max_files:,}; "
                f"most lie in {shown}",
                "Finish the runs that are open (their folders can then be packed), leave files out (publish.leave_out), or raise "
                "publish.max_files.",
            )
        )
    return problems


class _Summing:
    """A file that is read once, and whose sum is known afterwards."""

    def __init__(self, handle: io.BufferedReader) -> None:
        self._handle = handle
        self.sha256 = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self._handle.read(size)
        self.sha256.update(block)
        return block


def write_archive(packing: Packing, tree: Path) -> Archive:
    """Write the tar of ``packing`` into ``tree``, read it back, and say what it holds.

    Members are sorted by path; times, owners and modes are the same in every tar.

    Raises:
        GenselectError: What was read back is not what was packed, or a file changed meanwhile.
    """
    target = tree / packing.archive
    home = str(Path(packing.folder).parent)
    sums: dict[str, str] = {}
    with atomic_path(target) as temporary:
        with tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as tar:
            for item in packing.items:
                name = str(Path(item.path).relative_to(home))
                sums[name] = _add(tar, name, item)
        _check(temporary, sums, packing)
    inner = Path(packing.folder).name
    lines = sorted((str(Path(name).relative_to(inner)), digest) for name, digest in sums.items())
    listing = "".join(f"{digest}  {name}\n" for name, digest in lines)
    return Archive(
        path=packing.archive,
        folder=packing.folder,
        members=len(packing.items),
        bytes=packing.bytes,
        members_sha256=hashlib.sha256(listing.encode()).hexdigest(),
    )


def _add(tar: tarfile.TarFile, name: str, item: Item) -> str:
    info = tarfile.TarInfo(name)
    info.size = item.bytes
    info.mode = 0o644
    with item.source.open("rb") as handle:
        summing = _Summing(handle)
        try:
            tar.addfile(info, summing)  # it reads, and asks nothing else
        except OSError as error:
            if error.errno is not None:
                raise
            # tarfile's own, without a number: the file was shorter than announced.
            raise _changed(item) from None
        if handle.read(1):
            raise _changed(item)
    return summing.sha256.hexdigest()


def _changed(item: Item) -> GenselectError:
    return GenselectError(
        f"{item.source}: changed while it was packed",
        "Something writes to a run that is done; find out what, then start again.",
    )


def _check(path: Path, sums: Mapping[str, str], packing: Packing) -> None:
    found: dict[str, str] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            handle = tar.extractfile(member)
            if handle is not None:
                digest = hashlib.sha256()
                while block := handle.read(_BLOCK):
                    digest.update(block)
                found[member.name] = digest.hexdigest()
    if found != dict(sums):
        wrong = sorted(set(sums.items()) ^ set(found.items()))
        raise GenselectError(
            f"{packing.folder}: read back, its tar is not what was packed: {wrong[0][0]} and {len(wrong) - 1} more",
            "The disk or memory is not to be trusted: nothing was left out for it. Start again, on another disk if it comes back.",
        )

"""Sums of a tree's files, and whether a tree is what its ``publication.json`` says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from genselect.errors import GenselectError
from genselect.provenance import file_sha256
from genselect.publishing.publication import FILE, Publication, PublishedFile, read_publication

_PIECE = 1 << 20
#: Errors name this many files.
SHOWN = 5


@dataclass(frozen=True)
class Sums:
    """What a file's content is known by, from one reading."""

    bytes: int
    sha256: str
    """By which the Hub knows a large file."""
    git_sha1: str
    """By which git, and so the Hub, knows a small one."""


def sums(path: Path) -> Sums:
    """The sums of the file at ``path``."""
    size = path.stat().st_size
    sha256, git_sha1 = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as handle:
        while piece := handle.read(_PIECE):
            sha256.update(piece)
            git_sha1.update(piece)
    return Sums(size, sha256.hexdigest(), git_sha1.hexdigest())


def tree_sha256(files: Iterable[PublishedFile]) -> str:
    """One sum for many files: the sha256 of their lines ``<sha256>  <path>\\n`` by path, which is ``sha256sum``'s form."""
    lines = sorted((file.path, file.sha256) for file in files)
    return hashlib.sha256("".join(f"{sha256}  {path}\n" for path, sha256 in lines).encode()).hexdigest()


def open_tree(folder: Path | str) -> tuple[Publication, dict[str, PublishedFile]]:
    """The publication of the tree at ``folder``, and its files by path, ``publication.json`` itself among them.

    Sizes are looked at, contents are not.

    Raises:
        GenselectError: A listed file is missing or has another size, or one lies there that is not listed.
    """
    folder = Path(folder)
    publication = read_publication(folder)
    files = {file.path: file for file in publication.files}
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {FILE}
    wrong = [f"{path} is missing" for path in sorted(set(files) - found)]
    wrong += [f"{path} is not listed" for path in sorted(found - set(files))]
    wrong += [
        f"{path} has another size"
        for path in sorted(found & set(files))
        if (folder / path).stat().st_size != files[path].bytes
    ]
    if wrong:
        raise _not_as_listed(folder, wrong)
    own = sums(folder / FILE)
    files[FILE] = PublishedFile(FILE, own.bytes, own.sha256, "publication")
    return publication, files


def check_tree(folder: Path | str) -> tuple[Publication, dict[str, PublishedFile]]:
    """As :func:`open_tree`, with every content compared, too."""
    publication, files = open_tree(folder)
    wrong = [
        f"{path} has another content" for path, file in files.items() if file_sha256(Path(folder) / path) != file.sha256
    ]
    if wrong:
        raise _not_as_listed(Path(folder), wrong)
    return publication, files


def _not_as_listed(folder: Path, wrong: list[str]) -> GenselectError:
    more = f", and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    return GenselectError(
        f"{folder}: is not what its {FILE} says: {', '.join(wrong[:SHOWN])}{more}",
        "A staged tree is not edited: change the results or the configuration and stage it again (`snakemake stage_publication`). "
        "A copy that was cut is copied again.",
    )

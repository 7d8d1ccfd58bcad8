"""``publication.json``: what a published tree holds. Written when the tree is staged, read by whoever fetches it.

It holds no time and no machine's name, so that staging the same results again gives the same bytes and publishing them again
uploads nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from genselect.errors import GenselectError
from genselect.formats.jsonl import read_json, write_json

FILE = "publication.json"
FRONT_PAGE = "README.md"
SCHEMA_VERSION = 1

#: ``hub``: everything that may be published. ``reading_copy``: what a person reads on GitHub, without arrays and large files.
Target = Literal["hub", "reading_copy"]
TARGETS: tuple[Target, ...] = ("hub", "reading_copy")


@dataclass(frozen=True)
class PublishedFile:
    """One file of the tree, an archive included."""

    path: str
    """Relative to the tree, with ``/``; the same as under ``results/`` unless it is an archive, the front page, or an adapter."""
    bytes: int
    sha256: str
    kind: str
    """Which entry of the declared list (``publishing.contents``) it came by; ``archive`` for a packed folder."""


@dataclass(frozen=True)
class Archive:
    """A folder that was packed into one tar, since the tree had too many files."""

    path: str
    """The tar, relative to the tree; unpacked in its own folder it gives ``folder`` again."""
    folder: str
    """The folder it stands for, relative to ``results/``."""
    members: int
    """Files in it."""
    bytes: int
    """Their sizes, added up."""
    members_sha256: str
    """sha256 over the lines ``<sha256>  <path relative to folder>\\n`` of all members, sorted by path (``sha256sum``'s form)."""


@dataclass(frozen=True)
class LeftOut:
    """Files of ``results/`` that this target does not get, and why."""

    what: str
    why: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Publication:
    """What a published tree holds, itself excepted."""

    name: str
    """The experiment's, ``dataset.name``."""
    target: Target
    files: tuple[PublishedFile, ...]
    """By path; all but ``publication.json`` itself."""
    archives: tuple[Archive, ...]
    left_out: tuple[LeftOut, ...]


def write_publication(folder: Path | str, publication: Publication) -> None:
    """Write ``publication.json`` into the tree at ``folder``."""
    write_json(Path(folder) / FILE, {"schema_version": SCHEMA_VERSION, **asdict(publication)})


def read_publication(folder: Path | str) -> Publication:
    """Read ``publication.json`` of the tree at ``folder``.

    Raises:
        GenselectError: There is none, or it was written by another version, or it is not one.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise GenselectError(
            f"{folder}: holds no {FILE}, so it is no published experiment of genselect",
            "Name the folder that holds it.",
        )
    values: dict[str, Any] = read_json(path)
    if values.get("schema_version") != SCHEMA_VERSION:
        raise GenselectError(
            f"{path}: schema version {values.get('schema_version')!r}; this version of genselect reads {SCHEMA_VERSION}",
            "Use the version that wrote it (README.md beside it names the commit).",
        )
    try:
        return Publication(
            name=values["name"],
            target=values["target"],
            files=tuple(PublishedFile(**file) for file in values["files"]),
            archives=tuple(Archive(**archive) for archive in values["archives"]),
            left_out=tuple(LeftOut(**entry) for entry in values["left_out"]),
        )
    except (KeyError, TypeError) as error:
        raise GenselectError(f"{path}: is not a {FILE} ({error})", "Fetch it again; it was edited or cut.") from error

"""Receipts: what was published, where, when, and by which client. Written last, so that none stands for half a publication."""

from __future__ import annotations

import datetime
import importlib.metadata
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from genselect.errors import GenselectError
from genselect.formats.jsonl import read_json, write_json
from genselect.publishing.publication import FILE, PublishedFile
from genselect.publishing.sums import tree_sha256

SCHEMA_VERSION = 1
#: Beside the receipt of the last publish: every one so far.
KEPT = "receipts"


@dataclass(frozen=True)
class Uploaded:
    """What this publish changed at the target. All zero when it was there already."""

    files: int = 0
    bytes: int = 0
    deleted: int = 0
    """Files of an earlier publication that this one no longer has."""
    commits: int = 0


@dataclass(frozen=True)
class Receipt:
    """One publish."""

    name: str
    """The experiment's."""
    to: Literal["hub", "folder"]
    folder: str | None
    """The published tree, when it went to a folder."""
    repository: str | None
    """The dataset repository, when it went to the Hub; the three below, too."""
    commit: str | None
    """The commit that holds exactly this publication: name it to whoever fetches."""
    url: str | None
    visibility: Literal["private", "public"] | None
    files: int
    """``publication.json`` included."""
    bytes: int
    publication_sha256: str
    """Of ``publication.json``, which has the sum of every other file."""
    tree_sha256: str
    """Over all files, see :func:`genselect.publishing.sums.tree_sha256`."""
    uploaded: Uploaded
    not_ours: tuple[str, ...]
    """Files that lie at the target and were left as they are."""
    read_back: tuple[str, ...]
    """Files that were read back from the target and compared; of all others, the target's own sums."""
    client: dict[str, str | None]
    """Versions of what spoke to the Hub."""
    started: str
    """UTC, ISO 8601."""
    finished: str


def totals(files: dict[str, PublishedFile]) -> dict[str, Any]:
    """The fields of a receipt that the tree alone decides."""
    return {
        "files": len(files),
        "bytes": sum(file.bytes for file in files.values()),
        "publication_sha256": files[FILE].sha256,
        "tree_sha256": tree_sha256(files.values()),
    }


def client_versions(*packages: str) -> dict[str, str | None]:
    """Versions of ``packages``; None for what is not installed."""
    versions: dict[str, str | None] = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def now() -> str:
    """This moment, as receipts have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write_receipt(path: Path | str, receipt: Receipt) -> None:
    """Keep ``receipt`` under ``receipts/`` beside ``path``, then make it the one at ``path``."""
    path = Path(path)
    values = {"schema_version": SCHEMA_VERSION, **asdict(receipt)}
    stamp = receipt.finished.replace("-", "").replace(":", "").replace("+0000", "Z")
    kept = path.parent / KEPT / f"{stamp}-{receipt.to}.json"
    for count in range(2, 1000):
        if not kept.exists():
            break
        kept = kept.with_name(f"{stamp}-{receipt.to}.{count}.json")
    write_json(kept, values)
    write_json(path, values)


def read_receipt(path: Path | str) -> Receipt:
    """The receipt at ``path``.

    Raises:
        GenselectError: There is none, or it is not one of this version.
    """
    values = read_json(path)
    version = values.pop("schema_version", None)
    try:
        if version != SCHEMA_VERSION:
            raise TypeError(f"schema version {version}")
        values["uploaded"] = Uploaded(**values["uploaded"])
        for name in ("not_ours", "read_back"):
            values[name] = tuple(values[name])
        return Receipt(**values)
    except (KeyError, TypeError) as error:
        raise GenselectError(
            f"{path}: is not a receipt of this version ({error})", "Publish again; nothing is uploaded twice."
        ) from None

"""Seals: a small JSON file beside a data file that says what it holds, what it was made from, and how.

``labels.jsonl`` is sealed by ``labels.jsonl.seal.json``. The seal carries the sha256 of its outputs and inputs, so a later
step can tell labels of one merge from those of another, and a reader can check a copy.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genselect.errors import GenselectError
from genselect.formats.jsonl import read_json, write_json
from genselect.provenance.circumstances import collect

#: Raised by one when a field of the seal changes its meaning.
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class SealedFile:
    """One file, by name and content."""

    path: str
    """File name for outputs (relative to the seal), path as given for inputs."""
    sha256: str
    """Of its bytes, in hex."""
    bytes: int
    """Its size."""


@dataclass(frozen=True)
class Seal:
    """What a sealed file holds and where it came from."""

    kind: str
    """``merged``, ``labels``, ``rows`` and so on."""
    counts: Mapping[str, Any]
    """Rows and the like, for a person and for cross-checks."""
    outputs: tuple[SealedFile, ...]
    inputs: tuple[SealedFile, ...]
    fingerprints: Mapping[str, str]
    """By name: hashes over the settings that change the content, such as ``judge``."""
    config: Mapping[str, Any]
    """The settings themselves."""
    provenance: Mapping[str, Any]
    """See :func:`genselect.provenance.collect`."""
    started: str
    """UTC, ISO 8601."""
    finished: str
    schema_version: int = field(default=SCHEMA_VERSION)

    def output(self, name: str) -> SealedFile | None:
        """The sealed output of that file name."""
        return next((entry for entry in self.outputs if entry.path == name), None)


def seal_path(path: Path | str) -> Path:
    """Where the seal of ``path`` lies."""
    path = Path(path)
    return path.with_name(path.name + ".seal.json")


def write_seal(
    main: Path | str,
    *,
    kind: str,
    counts: Mapping[str, Any],
    outputs: Iterable[Path | str],
    inputs: Iterable[Path | str | SealedFile],
    started: datetime.datetime,
    fingerprints: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Seal:
    """Seal ``outputs`` (``main`` among them), each already under its final name, in ``seal_path(main)``.

    An input whose sha256 is known already is given as a :class:`SealedFile`.

    Written last, so a seal never stands beside a file that is not whole.
    """
    seal = Seal(
        kind=kind,
        counts=dict(counts),
        outputs=tuple(_sealed(Path(path), Path(path).name) for path in outputs),
        inputs=tuple(entry if isinstance(entry, SealedFile) else _sealed(Path(entry), str(entry)) for entry in inputs),
        fingerprints=dict(fingerprints or {}),
        config=dict(config or {}),
        provenance=collect(),
        started=started.astimezone(datetime.UTC).isoformat(timespec="seconds"),
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    write_json(seal_path(main), dataclasses.asdict(seal))
    return seal


def read_seal(main: Path | str) -> Seal | None:
    """The seal of ``main``, or None when it has none.

    Raises:
        GenselectError: The seal cannot be read, or is of a schema version that this code does not know.
    """
    path = seal_path(main)
    if not path.exists():
        return None
    values = read_json(path)
    version = values.get("schema_version") if isinstance(values, dict) else None
    if version != SCHEMA_VERSION:
        raise GenselectError(
            f"{path}: a seal of schema version {version}, and this code reads {SCHEMA_VERSION}",
            "Use the version of genselect that wrote it (its git_commit is in the seal), or make the file again.",
        )
    try:
        for name in ("outputs", "inputs"):
            values[name] = tuple(SealedFile(**entry) for entry in values[name])
        return Seal(**values)
    except (KeyError, TypeError) as error:
        raise GenselectError(
            f"{path}: not a seal: {error}", "Delete it and make the file again with the step that wrote it."
        ) from None


def check_seal(main: Path | str) -> Seal | None:
    """The seal of ``main`` after checking that ``main`` still has the sealed content; None when it has no seal.

    Raises:
        GenselectError: The file is not the one that was sealed.
    """
    main = Path(main)
    seal = read_seal(main)
    entry = seal.output(main.name) if seal else None
    if entry and file_sha256(main) != entry.sha256:
        raise GenselectError(
            f"{main}: its content is not what {seal_path(main).name} sealed (sha256 {entry.sha256[:12]}…)",
            f"It was changed or cut after it was made. Make it again, or delete {seal_path(main).name} if the change was meant.",
        )
    return seal


def file_sha256(path: Path | str) -> str:
    """The sha256 of a file's bytes, in hex."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _sealed(path: Path, name: str) -> SealedFile:
    return SealedFile(name, file_sha256(path), path.stat().st_size)

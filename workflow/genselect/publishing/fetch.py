"""Fetching a published experiment into ``results/``: checked, unpacked, and so that Snakemake finds nothing of it to do again."""

from __future__ import annotations

import glob
import logging
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from genselect.errors import GenselectError
from genselect.formats import read_json, write_json
from genselect.provenance import file_sha256
from genselect.publishing.fetched_model import give_time
from genselect.publishing.patience import PATIENCE, Patience
from genselect.publishing.placing import Move, place
from genselect.publishing.publication import FILE, FRONT_PAGE, Archive, Publication, PublishedFile, read_publication
from genselect.publishing.receipt import now
from genselect.publishing.repository import PARTIAL, Repository
from genselect.publishing.sums import SHOWN
from genselect.publishing.unpack import check_path, is_unpacked, unpack
from genselect.status.render import in_bytes

logger = logging.getLogger(__name__)

#: Below ``publication/<name>/``: the front page, ``publication.json`` and the record of what was fetched.
FETCHED = "fetched"
RECORD = "fetched.json"
#: So few files are asked for one by one; of more, the whole revision is downloaded.
_ONE_BY_ONE = 50


@dataclass(frozen=True)
class Fetched:
    """What a fetch brought."""

    name: str
    """The experiment's."""
    repository: str | None
    commit: str | None
    folder: str | None
    """The published tree, when it came from a folder."""
    placed: int
    """Files that were put into place; the others stood there already."""
    kept: tuple[str, ...]
    """Files that stood there with another content, and were kept."""
    fetched: str
    """UTC, ISO 8601."""
    time_ns: int
    """The time that all files were given."""


def fetch_from_hub(
    repository: str,
    revision: str | None,
    results: Path | str,
    *,
    token: str | None = None,
    keep: bool = False,
    endpoint: str | None = None,
    patience: Patience = PATIENCE,
) -> Fetched:
    """Bring the experiment that is published in ``repository`` into ``results``.

    What stands there already is not downloaded. Files that a stopped fetch downloaded whole are used by the next one.

    Args:
        repository: ``owner/name`` of a dataset repository.
        revision: A commit or tag; None is the newest commit. The record has it in full.
        results: The results folder.
        token: For a private repository.
        keep: Keep what stands there with another content, instead of refusing.
        endpoint: Address of the Hub; None takes ``HF_ENDPOINT`` or the public one.
        patience: How long the Hub is waited for.

    Raises:
        GenselectError: The Hub refuses or cannot be reached, the revision is no whole publication, a file is not what was published,
            or stands in ``results`` with another content.
    """
    source = Repository(repository, token, patience, endpoint, right="read")
    remote = source.look(revision)
    if remote is None:
        raise GenselectError(
            f"{repository}: there is no such dataset repository, or it is hidden from this account",
            "Check the name; for a private one put a token that may read it in HF_TOKEN.",
        )
    where = f"{repository} at {remote.head}"
    if PARTIAL in remote.files:
        raise _half(where)
    if FILE not in remote.files:
        raise GenselectError(
            f"{where}: holds no {FILE}, so it is no published experiment of genselect", "Check its name and revision."
        )
    results = Path(results)
    work = results / f".publication.{remote.head[:12]}.partial"
    tree = work / "tree"
    source.read(FILE, remote.head, tree)
    fetch = _Fetch(tree, results, where, keep=keep)
    _check_room(results, fetch)
    logger.info("%s: %d files to download", where, len(fetch.missing))
    if len(fetch.missing) <= _ONE_BY_ONE:
        for file in fetch.missing:
            source.read(file.path, remote.head, tree)
    else:
        # Patterns are tried on every file, so few of them or none: what is too much is only left lying.
        but = sorted(set(remote.files) - {file.path for file in fetch.missing})
        source.read_all(remote.head, tree, but=[glob.escape(path) for path in but[:_ONE_BY_ONE]])
    placed = fetch.place(work, link=True)
    return fetch.record(placed, repository=repository, commit=remote.head)


def fetch_from_folder(folder: Path | str, results: Path | str, *, keep: bool = False) -> Fetched:
    """Bring the experiment that is published in ``folder`` into ``results``. The folder stays as it is.

    Raises:
        GenselectError: It is no whole publication, a file is not what was published, or stands in ``results`` with another content.
    """
    folder, results = Path(folder), Path(results)
    if (folder / PARTIAL).exists():
        raise _half(str(folder))
    fetch = _Fetch(folder, results, str(folder), keep=keep)
    _check_room(results, fetch)
    work = results / f".publication.{file_sha256(folder / FILE)[:12]}.partial"
    # Copied: in results a file may be written on, and the published one must not change with it.
    placed = fetch.place(work, link=False)
    return fetch.record(placed, folder=str(folder))


class _Fetch:
    """One publication on its way into one results folder.

    Args:
        tree: Where the published tree lies, or will: ``publication.json`` is there already.
        results: The results folder.
        where: The tree's name in messages.
        keep: Keep what stands in ``results`` with another content.

    Raises:
        GenselectError: The publication names a path that leads elsewhere, or a file stands in ``results`` with another content.
    """

    def __init__(self, tree: Path, results: Path, where: str, *, keep: bool) -> None:
        self.publication = _checked(read_publication(tree), where)
        self._tree = tree
        self._results = results
        self._where = where
        self._keep = keep
        self._home = results / "publication" / self.publication.name / FETCHED
        self._archives = {archive.path: archive for archive in self.publication.archives}
        self._kept: list[str] = []
        self._standing: list[str] = []
        """Files in place, relative to ``results``."""
        self.missing: list[PublishedFile] = []
        """Files of the tree that are needed."""
        for file in self.publication.files:
            if file.path in self._archives:
                if is_unpacked(self._archives[file.path], results):
                    self._standing += _below(results, self._archives[file.path].folder)
                else:
                    self.missing.append(file)
            elif file.path == FRONT_PAGE or not (results / file.path).exists():
                self.missing.append(file)
            elif _is(results / file.path, file):
                self._standing.append(file.path)
            else:
                self._kept.append(file.path)
        self._refuse_conflicts()
        record = self._home / RECORD
        self._time_ns = int(read_json(record)["time_ns"]) if record.is_file() else time.time_ns()

    def bytes(self) -> int:
        """Disk that is needed: the archives twice."""
        unpacked = sum(self._archives[file.path].bytes for file in self.missing if file.path in self._archives)
        return unpacked + sum(file.bytes for file in self.missing)

    def place(self, work: Path, *, link: bool) -> int:
        """Check what was missing, unpack archives, put everything into place, and give all of it one time; files placed."""
        for file in self.missing:
            if not _is(self._tree / file.path, file):
                if link:
                    (self._tree / file.path).unlink(missing_ok=True)
                raise GenselectError(
                    f"{self._where}: {file.path} is not what was published",
                    "Start the same command again to fetch it anew; if it stays so, that copy was damaged or changed: take another one.",
                )
        unpacked = work / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        sources: dict[str, Path] = {}
        for file in self.missing:
            archive = self._archives.get(file.path)
            if archive is not None:
                sources |= {path: unpacked / path for path in self._unpacked(archive, unpacked)}
            elif file.path != FRONT_PAGE:
                sources[file.path] = self._tree / file.path
        self._refuse_conflicts()
        moves = [
            Move(source, self._results / path, link=link or source.is_relative_to(unpacked))
            for path, source in sources.items()
        ]
        own = [
            Move(self._tree / name, self._home / name, link=False)
            for name in (FILE, FRONT_PAGE)
            if (self._tree / name).is_file()
        ]
        place([*moves, *own])
        self._set_times([*self._standing, *sources])
        shutil.rmtree(work, ignore_errors=True)
        return len(sources)

    def record(
        self, placed: int, *, repository: str | None = None, commit: str | None = None, folder: str | None = None
    ) -> Fetched:
        """Write down what was fetched, and return it."""
        fetched = Fetched(
            self.publication.name, repository, commit, folder, placed, tuple(self._kept), now(), self._time_ns
        )
        write_json(self._home / RECORD, {"schema_version": 1, **asdict(fetched)})
        return fetched

    def _unpacked(self, archive: Archive, into: Path) -> Iterable[str]:
        """Paths of the archive's files that are to be put into place."""
        for path in unpack(self._tree / archive.path, archive, into):
            standing = self._results / path
            if not standing.exists():
                yield path
            elif file_sha256(standing) == file_sha256(into / path):
                self._standing.append(path)
            else:
                self._kept.append(path)

    def _refuse_conflicts(self) -> None:
        if self._kept and not self._keep:
            more = f" and {len(self._kept) - SHOWN} more" if len(self._kept) > SHOWN else ""
            raise GenselectError(
                f"{self._results}: holds with another content than was published: {', '.join(self._kept[:SHOWN])}{more}",
                "Fetch into another folder (--into), or move those away; --keep keeps them as they are and fetches the rest.",
            )

    def _set_times(self, paths: Iterable[str]) -> None:
        """One time for all: Snakemake makes again what is older than what it was made from, and a download has no order.

        The base model, made here meanwhile, gets it too, or all that was made from it elsewhere would count as out of date. A second
        fetch gives the time of the first one: what was made here since stays newer.
        """
        for path in set(paths):
            os.utime(self._results / path, ns=(self._time_ns, self._time_ns))
        give_time(self._results, self.publication.name, self._time_ns)


def _checked(publication: Publication, where: str) -> Publication:
    """``publication`` if none of its paths leads elsewhere."""
    place = f"{where}, {FILE}"
    check_path(publication.name, place)
    for path in (file.path for file in publication.files):
        check_path(path, place)
    for archive in publication.archives:
        check_path(archive.folder, place)
    return publication


def _half(where: str) -> GenselectError:
    return GenselectError(
        f"{where}: its upload is not finished ({PARTIAL} is there), so its files belong to two publications",
        "Name the commit of a finished one (--revision; whoever published has it in receipt.json), or wait until it is.",
    )


def _is(path: Path, file: PublishedFile) -> bool:
    """Whether ``path`` holds ``file``."""
    return path.is_file() and path.stat().st_size == file.bytes and file_sha256(path) == file.sha256


def _below(results: Path, folder: str) -> list[str]:
    return [path.relative_to(results).as_posix() for path in (results / folder).rglob("*") if path.is_file()]


def _check_room(results: Path, fetch: _Fetch) -> None:
    """Refuse a fetch that the disk cannot hold."""
    results.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(results).free, fetch.bytes()
    if needed > free:
        raise GenselectError(
            f"{results}: {in_bytes(needed)} are needed, and {in_bytes(free)} are free",
            "Free space, or fetch to another disk (--into).",
        )

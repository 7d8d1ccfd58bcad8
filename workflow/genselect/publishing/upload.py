"""Bringing a repository to the state of a staged tree: what differs, in commits that the Hub takes.

Many commits have a beginning and an end that can be seen: the first adds ``publication.partial.json``, the last takes it away and adds
``README.md`` and ``publication.json``. So a repository holds a whole publication, or a part of one that the next start completes, or
it is not ours.

Own batches of ``create_commit``, and not ``upload_folder``: that one puts up to 1000 files into a commit, decides their order itself, and
makes a single commit of everything where ``hf_xet`` is not installed (huggingface_hub 1.33 and 2.4).
"""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import CommitOperationAdd, CommitOperationDelete

from genselect.errors import GenselectError
from genselect.formats import read_json
from genselect.publishing.packing import LIMITS
from genselect.publishing.patience import Patience, is_too_much, patiently
from genselect.publishing.publication import FILE, FRONT_PAGE, PublishedFile, read_publication
from genselect.publishing.receipt import Uploaded
from genselect.publishing.repository import GIT_ATTRIBUTES, PARTIAL, Remote, RemoteFile, Repository
from genselect.publishing.sums import SHOWN, Sums, sums

logger = logging.getLogger(__name__)

# A file below this may travel in the commit itself, base64 in JSON; the Hub decides. Above, never.
_REGULAR_BYTES = 10 * 1024 * 1024
# Of such files in one commit: a commit that takes the Hub more than 60 s is lost.
_COMMIT_BYTES = 50 * 1024 * 1024


class Batch(NamedTuple):
    """One commit."""

    add: list[str]
    delete: list[str]
    last: bool
    """The repository is whole with it."""


class Upload:
    """What is left to do, and doing it.

    Args:
        target: The repository.
        tree: The staged tree.
        name: The experiment's.
        files: The tree's files by path.
        remote: The repository as it is now.

    Raises:
        GenselectError: The repository holds another experiment, or files and no publication, or a file of somebody's in the way.
    """

    def __init__(
        self, target: Repository, tree: Path, name: str, files: dict[str, PublishedFile], remote: Remote
    ) -> None:
        self.remote = remote
        self._target = target
        self._tree = tree
        self._name = name
        self._files = files
        self._sums: dict[str, Sums] = {}
        self._files_a_commit = LIMITS["hub"].commit_files
        self._sent = {"files": 0, "bytes": 0, "deleted": 0, "commits": 0}
        self._flying: Batch | None = None
        """The commit of which nobody knows whether it arrived."""
        self._compare()
        others = sorted(set(remote.files) - {GIT_ATTRIBUTES})
        if others and not remote.ours:
            raise GenselectError(
                f"{target.name}: exists and holds other things ({_some(others)}), and no publication of genselect",
                "Name a repository that does not exist yet (publish.repository), or one without files.",
            )
        foreign = [path for path in self._changed if path in remote.files and path not in remote.ours]
        if foreign:
            raise GenselectError(
                f"{target.name}: holds, with another content, what no publication of ours put there: {_some(foreign)}",
                "Rename or delete it there, or name another repository (publish.repository).",
            )

    def run(self, patience: Patience) -> Uploaded:
        """Commit until nothing differs; what was sent."""
        if self._changed or self._gone:
            megabytes = sum(self._files[path].bytes for path in self._changed) / 1e6
            logger.info(
                "%s: %d of %d files to upload (%.1f MB), %d to delete",
                *(self._target.name, len(self._changed), len(self._files), megabytes, len(self._gone)),
            )
        while self._next() is not None:
            patiently(self._step, patience, "uploading", self._target.name)
        if not self._sent["commits"]:
            logger.info("%s: holds exactly this publication already; nothing to upload", self._target.name)
        return Uploaded(**self._sent)

    def strangers(self) -> list[str]:
        """Files there that are not ours."""
        return sorted(set(self.remote.files) - set(self._files) - self.remote.ours - {GIT_ATTRIBUTES, PARTIAL})

    def same(self, path: str, remote: RemoteFile) -> bool:
        """Whether ``remote`` is what this publication lists for ``path``."""
        file = self._files[path]
        if remote.bytes != file.bytes:
            return False
        return remote.sha256 == file.sha256 if remote.sha256 else remote.git_sha1 == self._local(path).git_sha1

    def _local(self, path: str) -> Sums:
        """The sums of a file of the tree, which must be the listed ones."""
        if path not in self._sums:
            found = sums(self._tree / path)
            if found.sha256 != self._files[path].sha256:
                raise GenselectError(
                    f"{self._tree / path}: has another content than when it was staged",
                    "Stage the tree again (`snakemake stage_publication`), then publish.",
                )
            self._sums[path] = found
        return self._sums[path]

    def _compare(self) -> None:
        """Whose the repository is, and what is left to do."""
        self._recognise()
        there = self.remote.files
        changed = (path for path in self._files if path not in there or not self.same(path, there[path]))
        # The front page and the list come last.
        self._changed = sorted(changed, key=lambda path: (path == FILE, path == FRONT_PAGE, path))
        self._gone = sorted((self.remote.ours - set(self._files) - {PARTIAL}) & set(there))

    def _recognise(self) -> None:
        """Fill ``remote.ours``.

        Raises:
            GenselectError: The repository holds another experiment.
        """
        there = self.remote.files
        with tempfile.TemporaryDirectory() as folder:
            if FILE in there:
                self._target.read(FILE, self.remote.head, Path(folder))
                earlier = read_publication(folder)
                self._check_name(earlier.name)
                self.remote.ours |= {file.path for file in earlier.files} | {FILE}
            if PARTIAL in there:
                values = read_json(self._target.read(PARTIAL, self.remote.head, Path(folder)))
                self._check_name(values["name"])
                self.remote.ours |= set(values["paths"])

    def _check_name(self, name: str) -> None:
        if name != self._name:
            raise GenselectError(
                f"{self._target.name}: holds the publication of {name}, and this is {self._name}",
                "Name another repository (publish.repository): one experiment, one repository.",
            )

    def _next(self) -> Batch | None:
        """The next commit; None when nothing is left to do."""
        mark = [PARTIAL] if PARTIAL in self.remote.files else []
        if not (self._changed or self._gone or mark):
            return None
        limit = self._files_a_commit
        if len(self._changed) + len(self._gone) + len(mark) <= limit and self._weight(*self._changed) <= _COMMIT_BYTES:
            return Batch(self._changed, self._gone + mark, last=True)
        room = max(1, limit if mark else limit - 1)  # the first one carries the mark, too
        if self._gone:
            return Batch([], self._gone[:room], last=False)
        batch: list[str] = []
        weight = 0
        for path in self._changed:
            weight += self._weight(path)
            if path in (FILE, FRONT_PAGE) or len(batch) == room or (batch and weight > _COMMIT_BYTES):
                break
            batch.append(path)
        return Batch(batch, [], last=False) if batch else Batch(self._changed, mark, last=True)

    def _weight(self, *paths: str) -> int:
        """Bytes that may travel in the commit itself."""
        sizes = (self._files[path].bytes for path in paths)
        return sum(size for size in sizes if size < _REGULAR_BYTES)

    def _step(self) -> None:
        """One commit. After a failure it looks first at what arrived."""
        if self._flying is not None:
            self._look_again(self._flying)
        batch = self._next()
        if batch is None:
            return
        operations: list[Any] = [CommitOperationDelete(path) for path in batch.delete]
        mark = not batch.last and PARTIAL not in self.remote.files
        if mark:
            paths = sorted({*self._files, *self.remote.ours})
            content = json.dumps({"schema_version": 1, "name": self._name, "paths": paths}).encode()
            operations.append(CommitOperationAdd(PARTIAL, content))
        first: dict[str, CommitOperationAdd] = {}
        for path in batch.add:
            operations.append(CommitOperationAdd(path, self._tree / path))
            first.setdefault(self._local(path).sha256, operations[-1])  # and it is still what was staged
        self._flying = batch
        try:
            if len(first) < len(batch.add):
                # Of one content under several names in one commit, the client would send each.
                self._target.send_ahead(list(first.values()))
            head = self._target.commit(operations, self.remote.head, f"Publish {self._name}: {_words(batch)}")
        except Exception as error:
            if is_too_much(error) and len(operations) > 1:
                self._files_a_commit = max(1, len(operations) // 2)
                logger.info(
                    "the Hub cannot take %d files in one commit; from now on %d", len(operations), self._files_a_commit
                )
            raise
        self._flying = None
        self._note(head, batch, mark)
        self._count(batch)

    def _look_again(self, batch: Batch) -> None:
        """After a failure nobody knows what arrived: look, and count ``batch`` if it did."""
        remote = self._target.look()
        if remote is None:
            raise GenselectError(f"{self._target.name}: was deleted meanwhile", "Publish again if that was not meant.")
        before, remote.ours = self.remote.head, self.remote.ours
        self.remote, self._flying = remote, None
        self._compare()
        if (
            remote.head != before
            and not set(batch.add) & set(self._changed)
            and not set(batch.delete) & set(remote.files)
        ):
            self._count(batch)

    def _note(self, head: str, batch: Batch, mark: bool) -> None:
        """What the repository holds now, without asking."""
        self.remote.head = head
        for path in batch.delete:
            del self.remote.files[path]
        for path in batch.add:
            found = self._local(path)
            self.remote.files[path] = RemoteFile(found.bytes, None, found.git_sha1)
        if mark:
            self.remote.files[PARTIAL] = RemoteFile(0, None, "")
        self.remote.ours |= set(batch.add)
        self._changed = self._changed[len(batch.add) :]
        self._gone = self._gone[len([path for path in batch.delete if path != PARTIAL]) :]

    def _count(self, batch: Batch) -> None:
        self._sent["files"] += len(batch.add)
        self._sent["bytes"] += sum(self._files[path].bytes for path in batch.add)
        self._sent["deleted"] += len([path for path in batch.delete if path != PARTIAL])
        self._sent["commits"] += 1
        logger.info(
            "commit %d: %s; %d left", self._sent["commits"], _words(batch), len(self._changed) + len(self._gone)
        )


def _words(batch: Batch) -> str:
    parts = [f"{len(batch.add)} files" if batch.add else "", f"{len(batch.delete)} deleted" if batch.delete else ""]
    return ", ".join(part for part in parts if part) + ("" if batch.last else " (more follow)")


def _some(paths: list[str]) -> str:
    return ", ".join(paths[:SHOWN]) + (f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else "")

"""A dataset repository of the Hugging Face Hub, as one token sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile

from genselect.errors import GenselectError
from genselect.publishing.patience import Patience, patiently

#: In the repository while the commits of a publication are on their way: whose they are, and every path that is or was ours.
PARTIAL = "publication.partial.json"
#: The Hub's own, in every repository.
GIT_ATTRIBUTES = ".gitattributes"
REPO_TYPE = "dataset"


@dataclass(frozen=True)
class RemoteFile:
    """A file of the repository, as the Hub lists it."""

    bytes: int
    sha256: str | None
    """Of a large file."""
    git_sha1: str
    """Of a small file; of a large one's pointer."""


@dataclass
class Remote:
    """The repository at one commit."""

    head: str
    private: bool
    files: dict[str, RemoteFile]
    ours: set[str] = field(default_factory=set)
    """Paths that an earlier publication, or a part of one, put there."""


class Repository:
    """A dataset repository of the Hub.

    Args:
        name: ``owner/name``.
        token: None reads what is public.
        patience: How long the Hub is waited for.
        endpoint: Address of the Hub; None takes ``HF_ENDPOINT`` or the public one.
        right: What the token is needed for, for messages.
    """

    def __init__(
        self, name: str, token: str | None, patience: Patience, endpoint: str | None = None, *, right: str = "write to"
    ) -> None:
        self.name = name
        self._patience = patience
        self._right = right
        # False: no token that lies somewhere in the home folder is used unasked.
        self._token: str | bool = token or False
        self._api = HfApi(endpoint=endpoint, token=self._token)

    def look(self, revision: str | None = None) -> Remote | None:
        """The repository at ``revision``, by default its newest commit; None when there is none, or none for this token.

        Raises:
            GenselectError: The Hub refuses or cannot be reached, or there is no such revision.
        """

        def info(**arguments: Any) -> Any:
            try:
                return self._api.repo_info(**arguments)
            except RepositoryNotFoundError as error:
                if error.response.status_code == 404:
                    return None
                raise

        found = self._call("looking at it", info, revision=revision)
        if found is None:
            return None
        return Remote(str(found.sha), bool(found.private), self.listing(str(found.sha)))

    def listing(self, revision: str) -> dict[str, RemoteFile]:
        """Every file at ``revision``."""

        def walk(**arguments: Any) -> dict[str, RemoteFile]:
            return {
                entry.path: RemoteFile(entry.size, entry.lfs.sha256 if entry.lfs else None, entry.blob_id)
                for entry in self._api.list_repo_tree(**arguments)
                if isinstance(entry, RepoFile)
            }

        return dict(self._call("listing its files", walk, revision=revision, recursive=True))

    def create(self) -> Remote:
        """Make it, empty and private.

        Raises:
            GenselectError: This token may not, or there is one that this token does not see.
        """

        def create(**arguments: Any) -> None:
            try:
                self._api.create_repo(**arguments)
            except HfHubHTTPError as error:
                if error.response.status_code != 409:  # there already: made by a try whose answer was lost?
                    raise

        self._call("creating it", create, private=True)
        remote = self.look()
        if remote is None:
            raise GenselectError(
                f"{self.name}: exists, and is hidden from the token in HF_TOKEN",
                f"Use a token that may write to {self.name}, or name another repository (publish.repository).",
            )
        return remote

    def make_public(self) -> None:
        """Let everybody read it."""
        self._call("making it public", self._api.update_repo_settings, private=False)

    def send_ahead(self, additions: list[Any]) -> None:
        """Bring the content of large files to the Hub's storage, before a commit names them."""
        self._api.preupload_lfs_files(repo_id=self.name, repo_type=REPO_TYPE, additions=additions)

    def commit(self, operations: list[Any], parent: str, message: str) -> str:
        """One commit on top of ``parent``, tried once: after a failure the caller looks first at what arrived. Its sha."""
        done = self._api.create_commit(
            repo_id=self.name, repo_type=REPO_TYPE, operations=operations, commit_message=message, parent_commit=parent
        )
        return str(done.oid)

    def read(self, path: str, revision: str, folder: Path) -> Path:
        """A file of ``revision``, downloaded into ``folder``."""
        download = self._api.hf_hub_download
        return Path(self._call(f"reading {path}", download, filename=path, revision=revision, local_dir=folder))

    def read_all(self, revision: str, folder: Path, *, but: list[str]) -> None:
        """Every file of ``revision`` except those named (as patterns), downloaded into ``folder``; whole files there are kept."""

        def download(**arguments: Any) -> None:
            snapshot_download(**arguments, token=self._token, endpoint=self._api.endpoint)

        self._call("downloading", download, revision=revision, local_dir=folder, ignore_patterns=but)

    def url(self, revision: str) -> str:
        """Where a person sees ``revision``."""
        return f"{self._api.endpoint}/datasets/{self.name}/tree/{revision}"

    def _call(self, what: str, call: Any, **arguments: Any) -> Any:
        return patiently(
            lambda: call(repo_id=self.name, repo_type=REPO_TYPE, **arguments),
            self._patience,
            what,
            self.name,
            right=self._right,
        )

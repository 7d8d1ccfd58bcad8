"""A base model from the Hugging Face Hub: one pinned commit, every file checked, the folder whole or not there."""

from __future__ import annotations

import datetime
import hashlib
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from genselect.base_model.folder import RECORD, check_replaceable, publish
from genselect.config import fingerprint
from genselect.errors import GenselectError
from genselect.formats import read_json, write_json
from genselect.provenance import check_seal, file_sha256, seal_path, write_seal

logger = logging.getLogger("genselect")

# The Hub client's bookkeeping in a folder it downloads into.
_CLIENT_FOLDER = ".cache"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of the repository, as the Hub describes it."""

    path: str
    """In the repository."""
    bytes: int
    """Size."""
    sha256: str | None
    """Known for large files."""
    git_sha1: str
    """Git's hash of a small file; of the pointer to a large one."""


def fetch_model(repo_id: str, revision: str, output: Path | str, *, endpoint: str | None = None) -> dict[str, Any]:
    """Download a model and return its record, which ``base_model.json`` holds and a seal covers.

    What an earlier start downloaded is kept in a hidden folder beside ``output`` and not fetched again. A folder that already
    holds this commit is checked and left as it is, without the network. A record that says the same keeps its seal.

    Args:
        repo_id: Such as ``Qwen/Qwen3.5-9B``.
        revision: A commit, as hex; a short one is resolved and the full one recorded.
        output: The model's folder.
        endpoint: Address of the Hub; None takes ``HF_ENDPOINT`` or the public one.

    Raises:
        GenselectError: The Hub cannot be reached or refuses, the commit does not exist, a file is not what the Hub says it
            is, or ``output`` holds something else.
    """
    started = datetime.datetime.now(datetime.UTC)
    output = Path(output)
    present = _present(output, repo_id, revision)
    if present:
        logger.info("%s already holds %s at %s", output, repo_id, present["revision"])
        return present
    with _explained(repo_id, revision):
        commit, files = _listing(repo_id, revision, endpoint)
    check_replaceable(output, {Path(file.path).parts[0] for file in files})
    partial = output.with_name(f".{output.name}.{commit[:12]}.partial")
    total = sum(file.bytes for file in files)
    logger.info("fetching %s at %s: %d files, %.2f GB", repo_id, commit, len(files), total / 1e9)
    with _explained(repo_id, revision):
        snapshot_download(repo_id, revision=commit, local_dir=partial, endpoint=endpoint)
    record = {"source": "hub", "repo_id": repo_id, "revision": commit, "files": _checked(partial, files)}
    shutil.rmtree(partial / _CLIENT_FOLDER, ignore_errors=True)
    write_json(partial / RECORD, record)
    if _sealed(output) == record:
        # Somebody else's, with a published experiment: it says what is here, and is part of what they published.
        shutil.copyfile(seal_path(output / RECORD), seal_path(partial / RECORD))
    else:
        write_seal(
            partial / RECORD,
            kind="base_model",
            counts={"files": len(files), "bytes": total},
            # Its record carries the sha256 of every other file, by its path in the repository.
            outputs=[partial / RECORD],
            inputs=[],
            started=started,
            fingerprints={"base_model": fingerprint(record)},
            config={"repo_id": repo_id, "revision": revision},
        )
    publish(partial, output)
    return record


def _sealed(output: Path) -> dict[str, Any] | None:
    """The record of ``output`` if it has one, and a seal with it."""
    if not (output / RECORD).is_file() or not seal_path(output / RECORD).is_file():
        return None
    check_seal(output / RECORD)
    return dict(read_json(output / RECORD))


def _present(output: Path, repo_id: str, revision: str) -> dict[str, Any] | None:
    """The record of ``output`` when it holds this commit, each file at its size; else None."""
    record = _sealed(output)
    if record is None or record.get("repo_id") != repo_id or not str(record.get("revision", "")).startswith(revision):
        return None
    for name, file in record["files"].items():
        path = output / name
        if not path.is_file() or path.stat().st_size != file["bytes"]:
            logger.info("%s is missing or has another size: fetching the model again", path)
            return None
    return record


def _listing(repo_id: str, revision: str, endpoint: str | None) -> tuple[str, list[HubFile]]:
    """The full commit and its files."""
    info = HfApi(endpoint=endpoint).model_info(repo_id, revision=revision, files_metadata=True)
    files = [
        HubFile(entry.rfilename, entry.size or 0, entry.lfs.sha256 if entry.lfs else None, entry.blob_id or "")
        for entry in info.siblings or []
    ]
    names = {file.path for file in files}
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise GenselectError(
            f"{repo_id} at {revision} is no model that can be loaded here: config.json and *.safetensors are needed",
            "Check models.base.repo_id; a repository of GGUF or adapter files is not a base model.",
        )
    return str(info.sha), sorted(files, key=lambda file: file.path)


def _checked(folder: Path, files: list[HubFile]) -> dict[str, dict[str, Any]]:
    """sha256 and size of every file by its path, after comparing each with what the Hub says."""
    checked = {}
    for file in files:
        path = folder / file.path
        digest = file_sha256(path) if path.is_file() else None
        expected = digest == file.sha256 if file.sha256 else path.is_file() and _git_sha1(path) == file.git_sha1
        if digest is None or not expected:
            path.unlink(missing_ok=True)
            raise GenselectError(
                f"{file.path}: what was downloaded is not what the Hub says it is (sha256 {(digest or 'absent')[:12]}…)",
                "The damaged file was removed; start again to fetch it anew.",
            )
        checked[file.path] = {"sha256": digest, "bytes": file.bytes}
    return checked


def _git_sha1(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def _explained(repo_id: str, revision: str) -> Iterator[None]:
    """Turn the client's errors into what a user can do."""
    try:
        yield
    except GatedRepoError as error:
        raise GenselectError(
            f"{repo_id}: the Hub refuses it (403): its licence must be accepted first",
            f"Accept it on https://huggingface.co/{repo_id}, then start again with that account's token in HF_TOKEN.",
        ) from error
    except RevisionNotFoundError as error:
        raise GenselectError(
            f"{repo_id}: there is no commit {revision} (404)",
            "Check models.base.revision against the repository's history on the Hub.",
        ) from error
    except RepositoryNotFoundError as error:
        raise GenselectError(
            f"{repo_id}: the Hub knows no such model, or hides it from this account ({_status(error)})",
            "Check models.base.repo_id; for a private model put a token that may read it in HF_TOKEN.",
        ) from error
    except (LocalEntryNotFoundError, IncompleteSnapshotError, OfflineModeIsEnabled, httpx.TransportError) as error:
        raise GenselectError(
            f"{repo_id}: the Hub cannot be reached: {_first_line(error)}",
            "Check the network, proxy and HF_HUB_OFFLINE, then start again: what is there is kept. On a machine without network "
            "copy the model over and set models.base.source to local.",
        ) from error
    except HfHubHTTPError as error:
        raise GenselectError(
            f"{repo_id}: the Hub answers {_status(error)}: {_first_line(error)}", _hint(error)
        ) from error


def _hint(error: HfHubHTTPError) -> str:
    if _status(error) in (401, 403):
        return "The token in HF_TOKEN is wrong, expired or may not read this model; without one, public models only."
    return "Wait and start again: what is there is kept."


def _status(error: HfHubHTTPError) -> int | None:
    return error.response.status_code if error.response is not None else None


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)

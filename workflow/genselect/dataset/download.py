"""Bring one raw shard into place: from the Hugging Face Hub or from a folder, checked, and whole or not at all."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from genselect.config import Dataset
from genselect.dataset.shards import open_shards
from genselect.errors import GenselectError
from genselect.formats import atomic_path
from genselect.provenance import file_sha256, write_seal

__all__ = ["fetch_shard"]

_FULL_COMMIT = 40

logger = logging.getLogger(__name__)


def fetch_shard(dataset: Dataset, name: str, output: Path | str) -> None:
    """Put the shard ``name`` (its path in the repository, or its file name) at ``output``, with a seal.

    A download that was cut goes on where it stopped when the same call is made again. The sha256 must be the one in
    ``dataset.checksums`` or, when that does not list the shard, the one that the Hub holds for it.

    Raises:
        GenselectError: The shard is not of this dataset, cannot be reached or read, is not the expected one, or is no shard.
    """
    started = datetime.datetime.now(datetime.UTC)
    output = Path(output)
    if dataset.source == "generated":
        raise GenselectError(
            f"{name}: dataset.source is generated, so there is nothing to download",
            "make_mini_shards.py writes those shards.",
        )
    origin = _from_folder(dataset, name, output) if dataset.source == "local" else _from_hub(dataset, name, output)
    shard = open_shards([output])[0]
    write_seal(
        output, kind="shard", counts={"rows": shard.rows}, outputs=[output], inputs=[], started=started, config=origin
    )
    logger.info("%s: %d rows", output, shard.rows)


def _from_folder(dataset: Dataset, name: str, output: Path) -> dict[str, Any]:
    folder = dataset.local_dir or Path()
    source = folder / PurePosixPath(name).name
    if not source.is_file():
        there = ", ".join(sorted(path.name for path in folder.glob("*.parquet"))) or "no *.parquet file"
        raise GenselectError(
            f"{source}: there is no such shard; dataset.local_dir holds {there}",
            "Check dataset.local_dir and the name.",
        )
    digest = file_sha256(source)
    _check_sum(str(source), digest, _listed_sum(dataset, name), "dataset.checksums")
    with atomic_path(output) as temporary:
        try:
            # A second name for the same bytes costs nothing.
            os.link(source.resolve(), temporary)
        except OSError:
            shutil.copyfile(source, temporary)
    return {"source": "local", "file": str(source), "sha256": digest}


def _from_hub(dataset: Dataset, name: str, output: Path) -> dict[str, Any]:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    path = _path_in_repository(dataset, name)
    where = f"{dataset.repo_id}@{dataset.revision}/{path}"
    with _explained(dataset, path):
        api = HfApi()
        commit = _full_commit(api, dataset)
        found = api.get_paths_info(dataset.repo_id, [path], revision=commit, repo_type="dataset")
        if not found or not isinstance(found[0], RepoFile):
            raise GenselectError(
                f"{where}: there is no such file in the repository at that commit",
                "Check dataset.shards against the files on the dataset's page, at dataset.revision.",
            )
        listed, lfs = _listed_sum(dataset, name), found[0].lfs
        wanted, whose = (listed, "dataset.checksums") if listed else (lfs.sha256 if lfs else None, "the Hub")
        # Beside the output, so that the last step is a rename, and named by the content, so that the next try goes on with it.
        part = output.with_name(f".{output.name}.{(wanted or commit)[:12]}.part")
        logger.info("downloading %s", where)
        _download(dataset, path, commit, part, found[0].size)
    digest = file_sha256(part)
    try:
        _check_sum(where, digest, wanted, whose)
        open_shards([part])
    except GenselectError:
        # Kept, it would be taken for a finished download the next time.
        part.unlink()
        raise
    with atomic_path(output) as temporary:
        part.replace(temporary)
    return {
        "source": "hub",
        "repo_id": dataset.repo_id,
        "revision": commit,
        "file": path,
        "sha256": digest,
        "sha256_from": whose if wanted else None,
    }


def _download(dataset: Dataset, path: str, commit: str, part: Path, size: int) -> None:
    """Fetch what ``part`` lacks of the file.

    ``hf_hub_download`` throws a partial file away when its process ends (huggingface_hub pull request 4228); its own
    ``http_get`` takes one up again. Once ``hf_hub_download`` resumes over processes again, it can take this place.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # public, but not in __all__

    part.parent.mkdir(parents=True, exist_ok=True)
    part.touch()
    with part.open("r+b") as handle:
        done = part.stat().st_size
        if done > size:
            done = handle.truncate(0)
        handle.seek(done)
        url = hf_hub_url(dataset.repo_id, path, repo_type="dataset", revision=commit)
        http_get(url, handle, resume_size=done, expected_size=size, headers=build_hf_headers(), displayed_filename=path)


def _path_in_repository(dataset: Dataset, name: str) -> str:
    matches = [path for path in dataset.shards if name in (path, PurePosixPath(path).name)]
    if len(matches) != 1:
        raise GenselectError(
            f"{name}: {'more than one' if matches else 'none'} of dataset.shards has that name",
            f"dataset.shards lists {', '.join(dataset.shards[:3])}{', …' if dataset.shards[3:] else ''}",
        )
    return matches[0]


def _full_commit(api: Any, dataset: Dataset) -> str:
    """The commit that ``dataset.revision`` abbreviates. The Hub's file addresses take full ones only."""
    if len(dataset.revision) == _FULL_COMMIT:
        return dataset.revision
    commits = [commit.commit_id for commit in api.list_repo_commits(dataset.repo_id, repo_type="dataset")]
    matches = [commit for commit in commits if commit.startswith(dataset.revision)]
    if len(matches) != 1:
        raise GenselectError(
            f"{dataset.repo_id}: {len(matches)} of its {len(commits)} commits begin with {dataset.revision}",
            "Give dataset.revision all forty digits of the commit (History, on the dataset's page).",
        )
    return str(matches[0])


def _listed_sum(dataset: Dataset, name: str) -> str | None:
    return dataset.checksums.get(name) or dataset.checksums.get(PurePosixPath(name).name)


def _check_sum(where: str, digest: str, wanted: str | None, whose: str) -> None:
    if wanted is None:
        logger.warning("%s: no checksum to compare with; its sha256 is %s", where, digest)
    elif digest != wanted:
        raise GenselectError(
            f"{where}: sha256 is {digest}, but {whose} says {wanted}",
            "Start the same command again to fetch it anew; if it stays so, the file was changed or the checksum is of another one.",
        )


@contextlib.contextmanager
def _explained(dataset: Dataset, path: str) -> Iterator[None]:
    """Turn the Hub client's exceptions into what a user can do about them."""
    import httpx
    from huggingface_hub import errors

    repository, revision = dataset.repo_id, dataset.revision
    try:
        yield
    except errors.GatedRepoError as error:
        raise GenselectError(
            f"{repository}: access is gated and this account has none: {_first_line(error)}",
            "Accept the conditions on the dataset's page, then set HF_TOKEN to a token of that account.",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise GenselectError(
            f"{repository}: there is no commit {revision}",
            "Set dataset.revision to a commit listed under History on the dataset's page.",
        ) from error
    except errors.EntryNotFoundError as error:
        if isinstance(error.__cause__, httpx.TransportError):
            raise _unreachable(repository, error.__cause__) from error
        raise GenselectError(
            f"{repository}@{revision}/{path}: there is no such file: {_first_line(error)}",
            "Check dataset.shards against the files on the dataset's page, at dataset.revision.",
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise GenselectError(
            f"{repository}: the Hub client is set to work offline (HF_HUB_OFFLINE)",
            "Unset HF_HUB_OFFLINE, or set dataset.source: local with the shards in dataset.local_dir.",
        ) from error
    except errors.HfHubHTTPError as error:
        raise _refused(repository, error.response.status_code, error) from error
    except (httpx.TransportError, errors.FileMetadataError) as error:
        raise _unreachable(repository, error) from error
    except OSError as error:
        # The client finds a short body by its size.
        if error.errno is None and "onsistency check failed" in str(error):
            raise _unreachable(repository, error) from error
        raise


def _refused(repository: str, status: int, error: Exception) -> GenselectError:
    if status in (401, 403):
        return GenselectError(
            f"{repository}: the Hub refused access ({status}): {_first_line(error)}",
            "If it is private or gated, set HF_TOKEN to a token of an account that may read it; if not, check dataset.repo_id.",
        )
    if status == 404:
        return GenselectError(
            f"{repository}: the Hub knows no such dataset (404)",
            "Check dataset.repo_id; if it is private, set HF_TOKEN to a token of an account that may read it.",
        )
    return GenselectError(
        f"{repository}: the Hub answered {status}: {_first_line(error)}",
        "Start the same command again later: a download goes on where it stopped.",
    )


def _unreachable(repository: str, error: BaseException) -> GenselectError:
    return GenselectError(
        f"{repository}: the Hub could not be reached, or the connection was cut: {_first_line(error)}",
        "Check the network and proxy (HF_ENDPOINT, HTTPS_PROXY), then start the same command again: it goes on where it stopped. "
        "Without a network, set dataset.source: local.",
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in re.sub(r"\(Request ID[^)]*\)", "", str(error)).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__

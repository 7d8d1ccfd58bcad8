"""Publishing a staged tree on the Hugging Face Hub: private first, compared before and after, a receipt at the end."""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from genselect.errors import GenselectError
from genselect.provenance import file_sha256
from genselect.publishing.patience import PATIENCE, Patience
from genselect.publishing.publication import FILE, FRONT_PAGE, PublishedFile
from genselect.publishing.receipt import Receipt, client_versions, now, totals
from genselect.publishing.repository import Repository
from genselect.publishing.sums import SHOWN, open_tree
from genselect.publishing.upload import Upload

logger = logging.getLogger(__name__)

# Read back and compared after an upload.
_SAMPLE_FILES = 16
_SAMPLE_BYTES = 256 * 1024 * 1024


def publish_to_hub(
    tree: Path | str,
    repository: str,
    *,
    token: str | None,
    public: bool = False,
    endpoint: str | None = None,
    patience: Patience = PATIENCE,
) -> Receipt:
    """Make ``repository`` hold the staged tree. The receipt is the caller's to write.

    What is there already is not sent again. A repository that is not there is created private; it becomes public, at the end, only if
    ``public`` says so.

    Args:
        tree: A staged tree of the target ``hub``.
        repository: ``owner/name``.
        token: May write there.
        public: Everybody may read it.
        endpoint: Address of the Hub; None takes ``HF_ENDPOINT`` or the public one.
        patience: How long the Hub is waited for.

    Raises:
        GenselectError: The tree is not what its ``publication.json`` says, the Hub refuses or cannot be reached, the repository holds
            something else, or is public though this was not asked for.
    """
    started = now()
    tree = Path(tree)
    publication, files = open_tree(tree)
    if publication.target != "hub":
        raise GenselectError(
            f"{tree}: was staged as {publication.target}, not for the Hub", "Name the tree beside it, `hub`."
        )
    if not token:
        raise GenselectError(
            f"{repository}: HF_TOKEN is not set, and publishing on the Hub needs a token that may write there",
            "Set it in the environment of the command (https://huggingface.co/settings/tokens); it is written nowhere.",
        )
    target = Repository(repository, token, patience, endpoint)
    remote = target.look()
    if remote is None:
        remote = target.create()
        logger.info("%s: created, private", repository)
    private = remote.private
    if not private and not public:
        raise GenselectError(
            f"{repository}: is public, and publish.public is false: everybody could read at once what is published there",
            "Set publish.public: true (or --public) if that is meant; if not, make it private on its settings page, or name another.",
        )
    upload = Upload(target, tree, publication.name, files, remote)
    uploaded = upload.run(patience)
    commit = upload.remote.head
    read_back = _verify(target, commit, files, upload)
    strangers = upload.strangers()
    if strangers:
        logger.info("%s: left as they are: %s", repository, ", ".join(strangers[:SHOWN]))
    if public and private:
        target.make_public()
        logger.info("%s: is public now", repository)
    return Receipt(
        name=publication.name,
        to="hub",
        folder=None,
        repository=repository,
        commit=commit,
        url=target.url(commit),
        visibility="public" if public else "private",
        **totals(files),
        uploaded=uploaded,
        not_ours=tuple(strangers),
        read_back=tuple(read_back),
        client=client_versions("huggingface_hub", "hf_xet"),
        started=started,
        finished=now(),
    )


def _verify(target: Repository, commit: str, files: dict[str, PublishedFile], upload: Upload) -> list[str]:
    """Every file's sum as the Hub lists it at ``commit``, and a sample read back; the sample's paths.

    Raises:
        GenselectError: Something is missing there, or has another content.
    """
    listed = target.listing(commit)
    missing = sorted(path for path in files if path not in listed)
    if missing:
        raise GenselectError(
            f"{target.name}: {len(missing)} file(s) are not there after the upload: {', '.join(missing[:SHOWN])}",
            "A .gitignore in that repository makes the Hub skip files; delete it there and publish again.",
        )
    other = sorted(path for path in files if not upload.same(path, listed[path]))
    if other:
        raise GenselectError(
            f"{target.name}: {len(other)} file(s) have another content there after the upload: {', '.join(other[:SHOWN])}",
            "Somebody else writes there at the same time. Publish again when they are done.",
        )
    sample = list(_sample(files))
    with tempfile.TemporaryDirectory() as folder:
        for path in sample:
            found = target.read(path, commit, Path(folder))
            if file_sha256(found) != files[path].sha256:
                raise GenselectError(
                    f"{target.name}: {path} reads back with another content than was published",
                    "Publish again; if it stays so, the Hub or what lies between has a fault: do not announce this commit.",
                )
            found.unlink()
    logger.info(
        "%s: all %d files listed with their sums, %d of them read back and compared",
        target.name,
        len(files),
        len(sample),
    )
    return sample


def _sample(files: dict[str, PublishedFile]) -> Iterator[str]:
    """``publication.json``, the front page and some others, drawn by a seed that the publication decides."""
    others = sorted(path for path in files if path not in (FILE, FRONT_PAGE))
    random.Random(files[FILE].sha256).shuffle(others)
    count, room = 0, _SAMPLE_BYTES
    for path in [FILE, *([FRONT_PAGE] if FRONT_PAGE in files else []), *others]:
        if count < _SAMPLE_FILES and files[path].bytes <= room:
            count, room = count + 1, room - files[path].bytes
            yield path

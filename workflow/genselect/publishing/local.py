"""Publishing into a folder: the staged tree as it lies, checked, or a checked copy elsewhere."""

from __future__ import annotations

import logging
from pathlib import Path

from genselect.errors import GenselectError
from genselect.provenance import file_sha256
from genselect.publishing.placing import Move, clear_leftovers, place
from genselect.publishing.publication import FILE, PublishedFile, read_publication
from genselect.publishing.receipt import Receipt, Uploaded, now, totals
from genselect.publishing.sums import SHOWN, check_tree, open_tree

logger = logging.getLogger(__name__)


def publish_locally(tree: Path | str, to: Path | str | None = None) -> Receipt:
    """Check the staged tree and, with ``to``, bring that folder to the same state. The receipt is the caller's to write.

    In ``to``, files that are there already are not copied again, ``publication.json`` comes last, and files of an earlier publication
    that this one no longer has go. Files that no publication lists are left alone and named.

    Raises:
        GenselectError: The tree is not what its ``publication.json`` says, or ``to`` holds other things, or another experiment.
    """
    started = now()
    tree = Path(tree)
    if to is None:
        publication, files = check_tree(tree)
        uploaded, strangers, folder = Uploaded(), [], tree
    else:
        publication, files = open_tree(tree)
        folder = Path(to)
        earlier = _earlier(folder, publication.name, files)
        uploaded = _copy(tree, folder, files, earlier)
        there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        strangers = sorted(there - set(files))
        wrong = [path for path, file in files.items() if file_sha256(folder / path) != file.sha256]
        if wrong:
            raise GenselectError(
                f"{folder}: what was copied reads back different: {', '.join(wrong[:SHOWN])}",
                "Check that disk, then start the same command again.",
            )
    logger.info(
        "%s: %d files, %d copied, %d deleted, every sum compared", folder, len(files), uploaded.files, uploaded.deleted
    )
    return Receipt(
        name=publication.name,
        to="folder",
        folder=str(folder),
        repository=None,
        commit=None,
        url=None,
        visibility=None,
        **totals(files),
        uploaded=uploaded,
        not_ours=tuple(strangers),
        read_back=tuple(sorted(files)),
        client={},
        started=started,
        finished=now(),
    )


def _earlier(folder: Path, name: str, files: dict[str, PublishedFile]) -> set[str]:
    """The paths that an earlier publication of this experiment put into ``folder``."""
    if not folder.exists():
        return set()
    clear_leftovers(folder / path for path in files)
    if (folder / FILE).is_file():
        earlier = read_publication(folder)
        if earlier.name != name:
            raise GenselectError(
                f"{folder}: holds the publication of {earlier.name}, and this is {name}", "Name another folder."
            )
        return {file.path for file in earlier.files}
    # Without publication.json it is a copy that was cut, or somebody's folder.
    there = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    strangers = sorted(path for path in there if path not in files)
    if strangers:
        raise GenselectError(
            f"{folder}: holds other files ({', '.join(strangers[:SHOWN])}{', …' if len(strangers) > SHOWN else ''}) and no {FILE}",
            "Name a new or an empty folder.",
        )
    return set()


def _copy(tree: Path, folder: Path, files: dict[str, PublishedFile], earlier: set[str]) -> Uploaded:
    """Make ``folder`` hold ``files``; what was done."""
    missing = [
        file
        for path, file in files.items()
        if not (folder / path).is_file()
        or (folder / path).stat().st_size != file.bytes
        or file_sha256(folder / path) != file.sha256
    ]
    gone = sorted(path for path in earlier - set(files) if (folder / path).is_file())
    # The old list goes once nothing but it knows of is left, the new one comes last: whatever is cut, the next start can go on.
    for path in gone:
        (folder / path).unlink()
    if missing:
        (folder / FILE).unlink(missing_ok=True)
    place(Move(tree / file.path, folder / file.path, link=False) for file in missing if file.path != FILE)
    place([Move(tree / FILE, folder / FILE, link=False)] if missing else [])
    return Uploaded(files=len(missing), bytes=sum(file.bytes for file in missing), deleted=len(gone))

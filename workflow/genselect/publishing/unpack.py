"""Unpacking the archives of a published tree: only what the publication says is in them, and all of it."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from genselect.errors import GenselectError
from genselect.provenance import file_sha256
from genselect.publishing.publication import Archive

_PIECE = 1 << 20


def check_path(path: str, where: str) -> str:
    """``path`` if it stays below the folder that it is relative to.

    Raises:
        GenselectError: It does not. ``where`` names the file that says it.
    """
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\\" in path or pure.as_posix() != path or "\0" in path:
        raise GenselectError(
            f"{where}: names the path {path!r}, which leads elsewhere or is none",
            "Do not use this publication: no version of genselect writes such a path.",
        )
    return path


def unpack(tar: Path, archive: Archive, into: Path) -> list[str]:
    """Unpack ``tar`` so that ``archive.folder`` stands below ``into``; the paths of its files, relative to ``into``.

    Raises:
        GenselectError: It is no tar, or holds anything but the files that ``archive`` speaks of: another number or content, links,
            devices, paths that lead elsewhere.
    """
    folder = PurePosixPath(check_path(archive.folder, str(tar)))
    sums: dict[str, str] = {}
    try:
        with tarfile.open(tar) as handle:
            for member in handle:
                name = PurePosixPath(check_path(member.name, str(tar)))
                if not member.isreg() or name.parts[0] != folder.name or len(name.parts) < 2:
                    raise _foreign(tar, f"{member.name} is no file of {archive.folder}")
                inner = "/".join(name.parts[1:])
                if inner in sums:
                    raise _foreign(tar, f"{member.name} is in it twice")
                sums[inner] = _extract(handle, member, into / folder / inner)
    except (tarfile.TarError, EOFError) as error:
        raise _foreign(tar, str(error)) from error
    if len(sums) != archive.members or members_sha256(sums.items()) != archive.members_sha256:
        raise _foreign(tar, f"its {len(sums)} files are not the {archive.members} that were packed")
    return [f"{folder}/{inner}" for inner in sorted(sums)]


def is_unpacked(archive: Archive, results: Path) -> bool:
    """Whether ``archive.folder`` stands in ``results`` with exactly what the archive holds."""
    folder = results / archive.folder
    if not folder.is_dir():
        return False
    files = [path for path in folder.rglob("*") if path.is_file()]
    if len(files) != archive.members or sum(path.stat().st_size for path in files) != archive.bytes:
        return False
    return (
        members_sha256((path.relative_to(folder).as_posix(), file_sha256(path)) for path in files)
        == archive.members_sha256
    )


def members_sha256(sums: Iterable[tuple[str, str]]) -> str:
    """As :class:`genselect.publishing.publication.Archive` defines it, of pairs of path and sha256."""
    return hashlib.sha256("".join(f"{digest}  {path}\n" for path, digest in sorted(sums)).encode()).hexdigest()


def _extract(handle: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> str:
    source = handle.extractfile(member)
    assert source is not None  # a regular file
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    # Written, not extracted: a member's mode, owner and links have no say here.
    with target.open("wb") as out:
        while piece := source.read(_PIECE):
            digest.update(piece)
            out.write(piece)
    return digest.hexdigest()


def _foreign(tar: Path, what: str) -> GenselectError:
    return GenselectError(
        f"{tar}: is not the archive that was published: {what}", "Fetch it again; it was cut or exchanged."
    )

"""A small published tree, made by hand."""

import hashlib
import random
import tarfile

from genselect.publishing.publication import Archive, Publication, PublishedFile, write_publication

README = b"---\nlicense: cc-by-4.0\n---\n# An experiment\n"


def small_files(*, steps=12, large=3, seed=1):
    """A front page, ``steps`` small files and ``large`` large ones."""
    draw = random.Random(seed)
    files = {"README.md": README, "data/mini/empty.txt": b""}
    files |= {f"runs/formal/potential/step_{step}.json": b'{"step": %d}\n' % step for step in range(1, steps + 1)}
    files |= {f"runs/formal/records/step_{step}.parquet": draw.randbytes(3000) for step in range(1, large + 1)}
    return files


def write_tree(folder, files, *, name="mini", archives=(), target="hub"):
    """Write ``files`` and their publication.json into ``folder``, which holds nothing else afterwards."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.unlink()
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    listed = tuple(
        PublishedFile(path, len(content), hashlib.sha256(content).hexdigest(), "kind")
        for path, content in sorted(files.items())
    )
    write_publication(folder, Publication(name, target, listed, tuple(archives), ()))
    return folder


def pack(tmp_path, folder, members, *, change=None):
    """A tar of ``members`` (content by path below ``folder``) and its entry; ``change`` may alter the tar's list of (info, content)."""
    import io

    inner = folder.rpartition("/")[2]
    entries = []
    for path, content in sorted(members.items()):
        info = tarfile.TarInfo(f"{inner}/{path}")
        info.size = len(content)
        entries.append((info, content))
    if change:
        change(entries)
    tar_path = tmp_path / "packed.tar"
    with tarfile.open(tar_path, "w") as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    lines = "".join(f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in sorted(members.items()))
    entry = Archive(
        f"{folder}.tar",
        folder,
        len(members),
        sum(map(len, members.values())),
        hashlib.sha256(lines.encode()).hexdigest(),
    )
    return tar_path.read_bytes(), entry


def contents(folder):
    """Content by path of every file in ``folder``."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

"""Model folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from genselect.errors import GenselectError
from genselect.formats.atomic import sync_directory
from genselect.provenance import file_sha256, seal_path

#: In every model folder: what the model is and where it comes from. Sealed.
RECORD = "base_model.json"


def check_replaceable(output: Path, names: Collection[str]) -> None:
    """Refuse to replace ``output`` if that would delete anything but an earlier model.

    Args:
        output: Where the model folder is to appear.
        names: Files and folders that a model folder holds, besides the record and its seal.

    Raises:
        GenselectError: ``output`` is a file, or a folder that holds something else.
    """
    if not output.exists():
        return
    if not output.is_dir():
        raise GenselectError(
            f"{output}: is a file, and a model is a folder", "Name another folder, or remove the file."
        )
    known = {*names, RECORD, seal_path(RECORD).name}
    strangers = sorted(entry.name for entry in output.iterdir() if entry.name not in known)
    if strangers:
        raise GenselectError(
            f"{output}: holds other files ({', '.join(strangers[:3])}{', …' if len(strangers) > 3 else ''}), "
            "which writing the model there would delete",
            "Name an empty or a new folder.",
        )


def weights_sha256(folder: Path) -> dict[str, str]:
    """sha256 of each file of weights by its name: which weights these are. Reads all of them (18 GB of the 9B model).

    Raises:
        GenselectError: The folder has no ``*.safetensors``.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise GenselectError(f"{folder}: holds no *.safetensors", "Name the folder of the base model.")
    return {path.name: file_sha256(path) for path in files}


@contextlib.contextmanager
def whole_folder(output: Path) -> Iterator[Path]:
    """An empty folder beside ``output`` that takes its name when the block ends well, and vanishes when it does not.

    What a killed block left is removed by the next one, so only one at a time may make ``output``.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    for leftover in output.parent.glob(f".{output.name}.*.tmp"):
        if re.fullmatch(r"\.[0-9a-f]{8}\.tmp", leftover.name.removeprefix(f".{output.name}")):
            shutil.rmtree(leftover, ignore_errors=True)
    staged = output.with_name(f".{output.name}.{secrets.token_hex(4)}.tmp")
    staged.mkdir()
    try:
        yield staged
        publish(staged, output)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def publish(staged: Path, output: Path) -> None:
    """Give the finished folder ``staged`` the name ``output``, durably; an earlier ``output`` goes."""
    # Some libraries write weights for their owner alone; whoever may read the folder may read what is in it.
    readable = staged.stat().st_mode & 0o666
    for path in sorted(staged.rglob("*")):
        if path.is_file():
            path.chmod(readable)
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
        else:
            sync_directory(path)
    sync_directory(staged)
    # A folder cannot be renamed onto one that holds files: the earlier one steps aside first.
    replaced = output.with_name(f".{output.name}.{secrets.token_hex(4)}.old")
    if output.exists():
        output.rename(replaced)
    staged.rename(output)
    sync_directory(output.parent)
    shutil.rmtree(replaced, ignore_errors=True)

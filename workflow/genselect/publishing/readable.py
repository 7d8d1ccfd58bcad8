"""What a person could read in a file, as blocks of bytes: lines as they are, strings of Parquet columns, members of archives.

Whoever finds something in a block asks it where that stands.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from genselect.errors import GenselectError

#: Bytes of a block, and bytes that the next one repeats, so that nothing is cut in two.
_BLOCK, _OVERLAP = 8 << 20, 4 << 10
#: Rows of a Parquet file at a time; the texts of a step of the study are hundreds of megabytes.
_ROWS = 256
#: Archives in archives are opened so deep.
_DEPTH = 4
#: What is unpacked is held in memory up to this size, and in a temporary file beyond.
_SPOOLED = 64 << 20

Place = Callable[[int, int], str | None]


@dataclass(frozen=True)
class Block:
    """Some bytes of a file."""

    data: bytes
    place: Place
    """Where the bytes from start to end stand, such as ``line 12``; None when they are no one value."""


def read_blocks(path: Path) -> Iterator[Block]:
    """The blocks of the file at ``path``.

    Raises:
        GenselectError: It cannot be looked into: damaged, encrypted, or archives in archives too deep.
    """
    try:
        with path.open("rb") as handle:
            yield from _blocks(handle, "", 0)
    except (pa.ArrowException, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, RuntimeError,
            gzip.BadGzipFile) as error:  # fmt: skip
        raise GenselectError(
            f"{path}: cannot be looked into, so nobody can say what it holds: {error}",
            "Restore the file, or leave it out (publish.leave_out).",
        ) from None


def _blocks(handle: IO[bytes], inside: str, depth: int) -> Iterator[Block]:
    """``inside`` is where in an archive, for places."""
    head = handle.read(512)
    handle.seek(0)
    opened = _unpacked(head, handle)
    if opened is None and head.startswith(b"PAR1"):
        yield from _parquet(handle, inside)
    elif opened is None and head[257:262] != b"ustar" and not head.startswith(b"PK\x03\x04"):
        yield from _lines(handle, inside)
    elif depth == _DEPTH:
        raise RuntimeError(f"archives in archives, more than {_DEPTH} deep")
    elif opened is not None:
        with _spooled(opened) as unpacked:
            yield from _blocks(unpacked, inside, depth + 1)
    elif head.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(handle) as archive:
            for number, entry in enumerate(archive.infolist(), start=1):
                with archive.open(entry) as member, _spooled(member) as unpacked:
                    yield from _member(unpacked, entry.filename, number, inside, depth)
    else:
        with tarfile.open(fileobj=handle) as tar:
            for number, info in enumerate(tar, start=1):
                if (part := tar.extractfile(info)) is not None:
                    yield from _member(part, info.name, number, inside, depth)


def _member(handle: IO[bytes], name: str, number: int, inside: str, depth: int) -> Iterator[Block]:
    """A member of an archive: its name, which may itself hold something, and what is in it. Places give its number, for that reason."""
    yield Block(name.encode(errors="surrogateescape"), lambda start, end: f"{inside}the name of member {number}")
    yield from _blocks(handle, f"{inside}member {number}, ", depth + 1)


def _unpacked(head: bytes, handle: IO[bytes]) -> IO[bytes] | None:
    """The content of a compressed file; None when it is not compressed."""
    if head.startswith(b"\x1f\x8b"):
        return gzip.open(handle)  # type: ignore[return-value]
    if head.startswith(b"BZh"):
        return bz2.open(handle)
    return lzma.open(handle) if head.startswith(b"\xfd7zXZ\x00") else None


def _spooled(handle: IO[bytes]) -> tempfile.SpooledTemporaryFile[bytes]:
    spooled = tempfile.SpooledTemporaryFile(_SPOOLED)  # noqa: SIM115 (the caller closes it)
    while piece := handle.read(_BLOCK):
        spooled.write(piece)
    spooled.seek(0)
    return spooled


def _lines(handle: IO[bytes], inside: str) -> Iterator[Block]:
    before, kept = 0, b""
    while piece := handle.read(_BLOCK):
        data, first = kept + piece, before

        def place(start: int, end: int, data: bytes = data, first: int = first) -> str:
            line = first + data.count(b"\n", 0, start) + 1
            return f"{inside}line {line}"

        yield Block(data, place)
        kept = data[-_OVERLAP:]
        before = first + data.count(b"\n", 0, len(data) - len(kept))


def _parquet(handle: IO[bytes], inside: str) -> Iterator[Block]:
    with pq.ParquetFile(handle) as file:
        schema = file.schema_arrow
        described = [*schema.names, *(f"{key!r}: {value!r}" for key, value in (file.metadata.metadata or {}).items())]
        fields = [field.metadata for field in schema if field.metadata]
        told = "\n".join([*described, *map(repr, fields)]).encode()
        yield Block(told, lambda start, end: f"{inside}its schema and metadata")
        columns = [field.name for field in schema if any(True for _ in _leaf_types(field.type))]
        first = 0
        # Most files are small: threads would cost more than they save.
        for batch in file.iter_batches(_ROWS, columns=columns, use_threads=False):
            rows = np.arange(first, first + batch.num_rows)
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                for strings, of_rows in _leaves(array, rows):
                    yield _strings(strings, of_rows, f"column {name}", inside)
            first += batch.num_rows


def _leaf_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types of strings and bytes within a type."""
    if pa.types.is_dictionary(kind):
        yield from _leaf_types(kind.value_type)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or (
        pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    ):  # fmt: skip
        yield kind
    elif pa.types.is_nested(kind):
        for number in range(kind.num_fields):
            yield from _leaf_types(kind.field(number).type)


def _leaves(array: Any, rows: np.ndarray[Any, Any]) -> Iterator[tuple[Any, np.ndarray[Any, Any]]]:
    """The arrays of strings within an array, each with the row that every string belongs to."""
    kind = array.type
    if not any(True for _ in _leaf_types(kind)):
        return
    if pa.types.is_struct(kind):
        for child in array.flatten():
            yield from _leaves(child, rows)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _leaves(array.flatten(), rows[pc.list_parent_indices(array).to_numpy()])
    elif pa.types.is_nested(
        kind
    ):  # maps, unions: rare, and pyarrow has no function that gives their entries with their rows
        yield pa.array([repr(value) for value in array.to_pylist()]), rows
    else:
        if pa.types.is_dictionary(kind):
            array = array.dictionary_decode()
        valid = pc.is_valid(array).to_numpy(zero_copy_only=False)
        yield array.drop_null(), rows[valid]


def _strings(strings: Any, rows: np.ndarray[Any, Any], column: str, inside: str) -> Block:
    """One block of all strings, each on a line of its own."""
    strings = strings.cast(pa.large_binary())
    one = pa.LargeListArray.from_arrays([0, len(strings)], strings)
    data = pc.binary_join(one, pa.scalar(b"\n", pa.large_binary()))[0].as_py()
    starts = np.concatenate([[0], np.cumsum(pc.binary_length(strings).to_numpy() + 1)])

    def place(start: int, end: int) -> str | None:
        at = int(np.searchsorted(starts, start, side="right")) - 1
        return f"{inside}row {rows[at]}, {column}" if end < starts[at + 1] else None

    return Block(data, place)

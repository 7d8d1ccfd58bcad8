"""Find the raw GenSelect shards, check them, and read the needed columns a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from genselect.errors import GenselectError
from genselect.provenance import file_sha256

__all__ = [
    "COLUMNS",
    "OPTIONAL_COLUMNS",
    "SHARD_SCHEMA",
    "Shard",
    "find_shards",
    "open_shards",
    "read_batches",
    "string_buffers",
]

#: Columns of a shard, in the publisher's order.
SHARD_SCHEMA = pa.schema(
    [
        ("expected_answer", pa.string()),
        ("problem_type", pa.string()),
        ("problem_source", pa.string()),
        ("generation_model", pa.string()),
        ("pass_rate_72b_tir", pa.string()),
        ("problem", pa.string()),
        ("generated_solution", pa.string()),
        ("inference_mode", pa.string()),
        ("used_in_kaggle", pa.bool_()),
    ]
)
#: Older revisions of the dataset lack these.
OPTIONAL_COLUMNS = frozenset({"used_in_kaggle"})
#: Those that the merge reads.
COLUMNS = ("expected_answer", "problem_type", "problem_source", "pass_rate_72b_tir", "problem", "generated_solution")

#: Rows decoded at a time: about 12 MB of prompts.
BATCH_ROWS = 1024

_FETCH_AGAIN = "Fetch the shard again: delete it and run the download, or copy it anew and compare its sha256."


@dataclass(frozen=True, slots=True)
class Shard:
    """One checked Parquet file."""

    path: Path
    rows: int


def find_shards(arguments: Iterable[Path | str]) -> list[Path]:
    """The shards that ``arguments`` name, in reading order: files as given, a folder's ``*.parquet`` in name order.

    Raises:
        GenselectError: A path does not exist, a folder holds no shard, or a file is named twice.
    """
    found: list[Path] = []
    for argument in map(Path, arguments):
        if argument.is_dir():
            inside = sorted(argument.glob("*.parquet"))
            if not inside:
                raise GenselectError(
                    f"{argument}: no *.parquet file in this folder", "Name the folder that holds the shards themselves."
                )
            found += inside
        elif argument.exists():
            found.append(argument)
        else:
            raise GenselectError(
                f"{argument}: there is no such file or folder", "Download the shards first, or check the path."
            )
    if not found:
        raise GenselectError("no shard was named", "Name Parquet files or folders that hold them.")
    seen: dict[Path, Path] = {}
    for path in found:
        real = path.resolve()
        if real in seen:
            raise GenselectError(
                f"{path}: this shard is given twice (also as {seen[real]})",
                "Name each file once, and not both a folder and a file in it: its rows would be counted twice.",
            )
        seen[real] = path
    return found


def open_shards(paths: Sequence[Path]) -> list[Shard]:
    """Check every shard's schema before anything is read.

    Raises:
        GenselectError: A file is not whole Parquet, lacks a column, has one too many or of another type, has no row, or
            has the bytes of another one.
    """
    shards = [_open(path) for path in paths]
    _refuse_copies(paths)
    return shards


def read_batches(shard: Shard, columns: Sequence[str] = COLUMNS) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The needed columns in small batches, each with the number (from 0) of its first row. Strings are valid UTF-8.

    Raises:
        GenselectError: A page cannot be decoded, or a string is not UTF-8.
    """
    first = 0
    try:
        with pq.ParquetFile(shard.path, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(columns), use_threads=False):
                for name in columns:
                    _check_utf8(batch.column(name), name, shard.path, first)
                yield first, batch
                first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise GenselectError(f"{shard.path}: damaged after row {first}: {_one_line(error)}", _FETCH_AGAIN) from error


def _open(path: Path) -> Shard:
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except PermissionError as error:
        raise GenselectError(f"{path}: cannot be read: {error.strerror}", "Check its permissions.") from error
    except (pa.ArrowException, OSError) as error:
        raise GenselectError(f"{path}: not a whole Parquet file: {_one_line(error)}", _FETCH_AGAIN) from error
    _check_schema(schema, path)
    if rows == 0:
        raise GenselectError(
            f"{path}: the shard holds no row", "Leave it out, or fetch it again if it should hold some."
        )
    return Shard(path, rows)


def _check_schema(schema: pa.Schema, path: Path) -> None:
    names = schema.names
    missing = [name for name in SHARD_SCHEMA.names if name not in names and name not in OPTIONAL_COLUMNS]
    extra = [name for name in names if name not in SHARD_SCHEMA.names]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if missing or extra or doubled:
        faults = [
            f"{what} {', '.join(which)}"
            for what, which in (("missing", missing), ("unknown", extra), ("doubled", doubled))
            if which
        ]
        raise GenselectError(
            f"{path}: not the columns of a genselect shard: {'; '.join(faults)}",
            f"The columns are {', '.join(SHARD_SCHEMA.names)} (used_in_kaggle may lack). Is this another split, or another dataset?",
        )
    for name in names:
        wanted, got = SHARD_SCHEMA.field(name).type, schema.field(name).type
        if got != wanted:
            raise GenselectError(
                f"{path}: column {name} must be {wanted}, not {got}",
                "Use the publisher's file as it is; a copy made with another tool may have changed the type.",
            )


def _refuse_copies(paths: Sequence[Path]) -> None:
    by_size: dict[int, list[Path]] = {}
    for path in paths:
        by_size.setdefault(path.stat().st_size, []).append(path)
    for group in by_size.values():
        if len(group) == 1:
            continue
        seen: dict[str, Path] = {}
        for path in group:
            other = seen.setdefault(file_sha256(path), path)
            if other is not path:
                raise GenselectError(
                    f"{path}: the same shard as {other}, byte for byte",
                    "Name each shard once: its rows would be counted twice.",
                )


def _check_utf8(column: Any, name: str, path: Path, first: int) -> None:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        data, offsets = string_buffers(column)
        for row in range(len(column)):
            try:
                data[offsets[row] : offsets[row + 1]].tobytes().decode()
            except UnicodeDecodeError as fault:
                raise GenselectError(
                    f"{path}, row {first + row} (from 0), column {name}: not UTF-8: {fault.reason} at byte {fault.start}",
                    "The file is damaged or was written in another encoding; fetch it again.",
                ) from None
        raise GenselectError(f"{path}, column {name}: {_one_line(error)}", _FETCH_AGAIN) from error


def string_buffers(column: Any) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """The bytes of a string column and its offsets into them, shape (rows + 1,), without a copy."""
    _, offsets, data = column.buffers()
    table = np.frombuffer(offsets, dtype=np.int32, count=len(column) + 1, offset=4 * column.offset)
    return np.frombuffer(data if data is not None else b"", dtype=np.uint8), table


def _one_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__

"""Finds rows of benchmarks whose questions may not be published, by what the rows themselves say."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from genselect.config import Config
from genselect.errors import GenselectError

#: Columns, or keys, that name a row's benchmark: as text, or as a mapping with ``name``.
_COLUMNS = ("benchmark", "benchmark_spec")


@dataclass(frozen=True)
class GatedRow:
    """The first such row of a file."""

    place: str
    """``row 3`` or ``line 4``."""
    benchmark: str


def check_experiment(config: Config) -> None:
    """Refuse an experiment whose rows are such a benchmark's: everything holds its questions, and files before the rows do not say so.

    Raises:
        GenselectError: ``build.benchmark`` or ``dataset.repo_id`` names one.
    """
    for key, name in (("build.benchmark", config.build.benchmark), ("dataset.repo_id", config.dataset.repo_id)):
        if names_gated(name, config.publish.gated_benchmarks):
            raise GenselectError(
                f"{key} is {name}, whose questions may not be published (publish.gated_benchmarks)",
                "Do not publish this experiment. If its publisher allows it after all, take the name out of publish.gated_benchmarks.",
            )


def names_gated(name: str, benchmarks: Collection[str]) -> bool:
    """Whether a benchmark's name is one of ``benchmarks``, or has one as a part: ``gpqa``, ``GPQA-diamond``, ``Idavidrein/gpqa``."""
    parts = set(re.split(r"[^a-z0-9]+", name.casefold()))
    return name.casefold() in map(str.casefold, benchmarks) or bool(parts & {name.casefold() for name in benchmarks})


def gated_row(path: Path, benchmarks: Collection[str]) -> GatedRow | None:
    """The first row of a file that names a gated benchmark; None when there is none, or when the file has no rows.

    Raises:
        GenselectError: The file is damaged.
    """
    try:
        if path.suffix == ".parquet":
            rows = _parquet_rows(path)
        elif path.suffix in (".jsonl", ".json"):
            rows = _json_rows(path)
        else:
            return None
        for place, row in rows:
            for name in _benchmarks(row):
                if names_gated(name, benchmarks):
                    return GatedRow(place, name)
    except (pa.ArrowException, OSError) as error:
        raise GenselectError(
            f"{path}: cannot be looked into, so nobody can say what it holds: {error}",
            "Restore the file, or leave it out (publish.leave_out).",
        ) from None
    return None


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with pq.ParquetFile(path) as file:
        # Leaves such as extra_info.benchmark_spec.name; the texts beside them are not read.
        leaves = [file.schema.column(number).path for number in range(len(file.schema))]
        columns = [leaf for leaf in leaves if set(leaf.split(".")) & set(_COLUMNS)]
        if not columns:
            return
        first = 0
        for batch in file.iter_batches(columns=columns):
            for number, row in enumerate(batch.to_pylist()):
                yield f"row {first + number}", row
            first += batch.num_rows


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as handle:
        if path.suffix == ".json":
            content = handle.read()
            if b'"benchmark' in content:
                value = _value(content)
                for number, row in enumerate(value if isinstance(value, list) else [value]):
                    yield f"entry {number}", row
            return
        for number, line in enumerate(handle, start=1):
            if b'"benchmark' in line:
                yield f"line {number}", _value(line)


def _value(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None  # a torn line of superseded metrics, say: no row


def _benchmarks(value: Any) -> Iterator[str]:
    """Every benchmark that a row names, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in _COLUMNS:
                name = inner.get("name") if isinstance(inner, dict) else inner
                if isinstance(name, str):
                    yield name
            yield from _benchmarks(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _benchmarks(inner)

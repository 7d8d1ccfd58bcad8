"""What an arm of the evaluation answered: one Parquet row an answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from genselect.errors import GenselectError
from genselect.formats.atomic import atomic_path

#: A row of ``arms/<arm>.parquet``.
ARM_SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("seed", pa.int64()),
        ("sample", pa.int32()),
        ("correct", pa.int8()),
        ("shown", pa.int32()),
        ("answer", pa.string()),
        ("explores", pa.int32()),
        ("end", pa.string()),
        ("tokens", pa.int32()),
        ("verdict_source", pa.string()),
    ]
)


def write_arm_results(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write an arm's answers, sorted by question, seed and sample: the same answers give the same bytes."""
    ordered = sorted(rows, key=lambda row: (row["question_id"], row["seed"], row["sample"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as target:
        pq.write_table(pa.Table.from_pylist(ordered, schema=ARM_SCHEMA), target, compression="zstd")
    return path


def read_arm_results(path: Path) -> pa.Table:
    """An arm's answers.

    Raises:
        GenselectError: The file is missing, or is no such file.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise GenselectError(
            f"{path}: no results of an arm: {error}", "Evaluate the arm: snakemake evaluate."
        ) from None
    if not table.schema.equals(ARM_SCHEMA):
        raise GenselectError(f"{path}: has not the columns of an arm's results", "Evaluate the arm again.")
    return table

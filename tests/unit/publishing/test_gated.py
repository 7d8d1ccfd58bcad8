"""Questions of gated benchmarks do not leave the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_results import mini, publish, small_results

from genselect.config import Config
from genselect.errors import GenselectError
from genselect.formats import ROW_SCHEMA
from genselect.publishing.gated import gated_row, names_gated

GATED = ["hle", "gpqa"]


@pytest.mark.parametrize(
    ("name", "gated"),
    [("hle", True), ("GPQA-diamond", True), ("Idavidrein/gpqa", True), ("gpqa_diamond", True), ("omr", False), ("athlete", False),
     ("", False)],
)  # fmt: skip
def test_a_benchmark_is_known_by_its_name_or_a_part_of_it(name: str, gated: bool) -> None:
    assert names_gated(name, GATED) is gated


def rows(*benchmarks: str) -> list[dict]:
    return [
        {"extra_info": {"question": "secret question", "benchmark": name, "benchmark_spec": {"name": name}}}
        for name in benchmarks
    ]


def test_the_row_is_named_in_parquet_and_json_lines(tmp_path: Path) -> None:
    mixed = rows("omr", "omr", "gpqa_diamond", "gpqa")
    pq.write_table(pa.Table.from_pylist(mixed, schema=ROW_SCHEMA), tmp_path / "val.parquet")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mixed))
    (tmp_path / "b.json").write_text(json.dumps(mixed))
    spec_only = [{"benchmark_spec": {"name": "hle", "judge": None}}]
    pq.write_table(pa.Table.from_pylist(spec_only), tmp_path / "c.parquet")
    (tmp_path / "clean.jsonl").write_text('{"question": "is gpqa a benchmark?", "benchmark": "omr"}\n{"torn": "benchm')
    found = {path.name: gated_row(path, GATED) for path in tmp_path.iterdir()}
    told = {name: (row.place, row.benchmark) for name, row in found.items() if row}
    assert told == {
        "val.parquet": ("row 2", "gpqa_diamond"),
        "a.jsonl": ("line 3", "gpqa_diamond"),
        "b.json": ("entry 2", "gpqa_diamond"),
        "c.parquet": ("row 0", "hle"),
    }


def test_a_file_of_theirs_is_refused_by_name_and_can_be_left_out(tmp_path: Path) -> None:
    results = small_results(tmp_path / "results")
    table = pa.Table.from_pylist(rows("omr", "gpqa"), schema=ROW_SCHEMA)
    pq.write_table(table, results / "data/mini/overfit/control/val.parquet")
    with pytest.raises(GenselectError) as refused:
        publish(mini(), results)
    assert "data/mini/overfit/control/val.parquet, row 1: benchmark gpqa" in str(refused.value)
    assert "secret question" not in str(refused.value)
    assert not (results / "publication/mini/hub").exists()
    publish(mini(gated_benchmarks=["hle"]), results)
    publish(mini(leave_out=["data/mini/overfit/control/val.parquet"]), results)


@pytest.mark.parametrize(("key", "value"), [("build", {"benchmark": "gpqa"}), ("dataset", {"repo_id": "cais/hle"})])
def test_an_experiment_on_one_is_refused_whole(tmp_path: Path, key: str, value: dict) -> None:
    results = small_results(tmp_path / "results")
    values = mini().model_dump(mode="json")
    values[key] |= value
    with pytest.raises(GenselectError, match=f"{key}.{next(iter(value))} is .* may not be published"):
        publish(Config.model_validate(values), results)

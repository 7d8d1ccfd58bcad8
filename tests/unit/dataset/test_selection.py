"""Overfit selection: which rows are taken, that they are copied unchanged, and what is said when a band cannot be filled."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genselect.dataset.selection import SelectionSettings, select_bands, select_split_in_both
from genselect.errors import GenselectError
from genselect.formats import ROW_SCHEMA, read_json
from genselect.provenance import check_seal
from genselect.training.records import Trajectory, write_step

Passes = dict[int, int]


def question(number: int) -> str:
    return f"omr-{number:06d}"


def write_rows(path: Path, count: int) -> Path:
    rows = [
        {
            "data_source": "atts_omr",
            "agent_name": "atlas_sequential",
            "ability": "orchestration",
            "prompt": [{"role": "user", "content": f"problem {number}"}],
            "reward_model": {"style": "rule", "ground_truth": str(number)},
            "extra_info": {
                "question_id": question(number),
                "question": f"problem {number}",
                "max_explores": 8,
                "cached_candidates": [{"answer": None, "reasoning": "r", "cost_usd": 0.0, "is_correct": True}],
            },
        }
        for number in range(count)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=ROW_SCHEMA), path)
    return path


def record(
    folder: Path, passes: Passes, *, step: int = 1, attempt: int = 1, samples: int = 8,
    capped: dict[int, int] | None = None, tokens: dict[int, int] | None = None,
) -> Path:  # fmt: skip
    """A step's file in which question n has ``passes[n]`` right samples."""
    rows = []
    for number, passed in passes.items():
        for sample in range(samples):
            right, cut = sample < passed, samples - sample <= (capped or {}).get(number, 0)
            values: dict[str, Any] = {
                "question_id": question(number), "sample": sample, "step": step, "attempt": attempt, "explores": 0,
                "revealed": 0, "submitted": None if cut else "1", "verdict": right and not cut, "verdict_source": "rule",
                "well_formed": not cut, "end": "length" if cut else "submit", "score_verdict": float(right and not cut),
                "score_format": 0.0, "score_cost": 0.0, "shaping": 0.0, "prompt_tokens": 10,
                "response_tokens": (tokens or {}).get(number, 100) + sample, "turns": 1, "length_capped": cut,
                "decision_tokens": (0,), "decision_k": (0,), "text": "",
            }  # fmt: skip
            rows.append(Trajectory(**values))
    return write_step(folder, step, rows)


def spread(count: int) -> Passes:
    """Pass counts 0 to 8 in turn."""
    return {number: number % 9 for number in range(count)}


def lines(folder: Path) -> list[dict[str, str]]:
    with (folder / "selection.csv").open(newline="") as handle:
        return list(csv.DictReader(handle))


def test_each_band_is_filled_and_rows_are_copied_unchanged(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "built" / "train.parquet", 90)
    records = record(tmp_path / "records", spread(90))
    select_bands(rows, [records], tmp_path / "out", SelectionSettings(per_band=4))
    found = lines(tmp_path / "out")
    assert list(found[0]) == ["question_id", "pass_count", "mean_response_tokens"]
    assert sorted(line["pass_count"] for line in found) == [*"2222333344445555"]
    assert all(int(line["question_id"][-6:]) % 9 == int(line["pass_count"]) for line in found)
    assert {line["mean_response_tokens"] for line in found} == {"103.5"}
    chosen = pq.read_table(tmp_path / "out" / "train.parquet")
    original = pq.read_table(rows)
    assert chosen.schema.equals(original.schema)
    by_id = {row["extra_info"]["question_id"]: row for row in original.to_pylist()}
    assert chosen.to_pylist() == [by_id[line["question_id"]] for line in found]
    assert (tmp_path / "out" / "val.parquet").read_bytes() == (tmp_path / "out" / "train.parquet").read_bytes()
    seal = check_seal(tmp_path / "out" / "selection.csv")
    assert seal is not None
    assert [entry.path for entry in seal.outputs] == ["train.parquet", "val.parquet", "selection.csv"]
    assert seal.counts == {"rows": 16, "bands": {"2": 4, "3": 4, "4": 4, "5": 4}}
    assert seal.config["seed"] == 1


def test_the_seed_draws_and_nothing_else_does(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "train.parquet", 90)
    files = [record(tmp_path / "a", spread(45)), record(tmp_path / "b", {n: n % 9 for n in range(45, 90)}, step=2)]

    def chosen(name: str, order: list[Path], **changes: Any) -> list[dict[str, str]]:
        select_bands(rows, order, tmp_path / name, SelectionSettings(per_band=4, **changes))
        return lines(tmp_path / name)

    once = chosen("once", files)
    assert chosen("again", files[::-1]) == once
    assert (tmp_path / "again" / "train.parquet").read_bytes() == (tmp_path / "once" / "train.parquet").read_bytes()
    assert chosen("other", files, seed=2) != once
    # A band's draw does not depend on which other bands are wanted.
    assert chosen("fewer", files, bands=(3, 5)) == [line for line in once if line["pass_count"] in "35"]


def test_cut_and_long_draws_are_left_out(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "train.parquet", 6)
    limits = SelectionSettings(bands=(3,), per_band=2, max_mean_tokens=200.5)
    files = record(
        tmp_path / "records", dict.fromkeys(range(6), 3), capped={0: 2, 1: 1, 2: 2}, tokens={3: 197, 4: 196, 5: 5000}
    )
    # Mean tokens are 3.5 over the first sample's: 200.5, which is not under the limit, and 199.5.
    found = select_bands(rows, [files], tmp_path / "out", limits)
    assert [line["question_id"] for line in found] == [question(1), question(4)]
    with pytest.raises(GenselectError, match="band 3: 2 "):
        more = SelectionSettings(bands=(3,), per_band=3, max_mean_tokens=200.5)
        select_bands(rows, [files], tmp_path / "more", more)


def test_a_question_counts_with_its_first_whole_draw(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "train.parquet", 2)
    folder = tmp_path / "records"
    files = [
        record(folder, {0: 2}, step=1, samples=6),  # cut short by a stop
        record(folder, {0: 4, 1: 2}, step=2, attempt=1),
        record(folder, {0: 5, 1: 5}, step=2, attempt=2),
        record(folder, {0: 2, 1: 4}, step=3),
    ]
    found = select_bands(
        rows, [files[3], files[0], files[2]], tmp_path / "out", SelectionSettings(bands=(2, 4), per_band=1)
    )
    assert [(line["question_id"], line["pass_count"]) for line in found] == [(question(0), 4), (question(1), 2)]


def test_a_band_that_cannot_be_filled_says_what_there_is(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "train.parquet", 30)
    files = record(tmp_path / "records", {**spread(27), 29: 2}, capped={2: 3, 11: 1}, tokens={20: 20_000})
    record(tmp_path / "records", {28: 1}, attempt=2, samples=5)
    with pytest.raises(GenselectError) as caught:
        select_bands(rows, [files], tmp_path / "out", SelectionSettings(per_band=3))
    # Of pass count 2: question 2 is cut thrice, 11 passes, 20 is long, 29 passes.
    assert "3 rows a band are wanted, and there are band 2: 2, band 3: 3, band 4: 3, band 5: 3" in caught.value.message
    for words in (
        "28 drawn", "15 outside of the bands", "1 in a band with over 1 length-capped",
        "1 in a band with a mean response of 12000 tokens or more", "1 without a whole draw",
    ):  # fmt: skip
        assert words in caught.value.message
    assert "--per-band" in caught.value.hint
    assert not (tmp_path / "out").exists()


def band_set(tmp_path: Path) -> Path:
    rows = write_rows(tmp_path / "built" / "train.parquet", 90)
    records = record(tmp_path / "records", spread(90))
    select_bands(rows, [records], tmp_path / "64", SelectionSettings(per_band=6))
    return tmp_path / "64"


def test_the_split_set_takes_rows_that_both_draws_split(tmp_path: Path) -> None:
    folder = band_set(tmp_path)
    numbers = [int(line["question_id"][-6:]) for line in lines(folder)]
    bands = {int(line["question_id"][-6:]): int(line["pass_count"]) for line in lines(folder)}
    # In each band: one row all right in the first draw, one all wrong in the second, one not drawn again, three split in both.
    first, second = dict.fromkeys(numbers, 7), dict.fromkeys(numbers, 1)
    for band in (2, 3, 4, 5):
        members = [number for number in numbers if bands[number] == band]
        first[members[0]], second[members[1]] = 8, 0
        del second[members[2]]
    files = record(tmp_path / "one", first), record(tmp_path / "two", second, tokens=dict.fromkeys(numbers, 300))
    arguments = (folder / "train.parquet", folder / "selection.csv", [files[0]], [files[1]])
    select_split_in_both(*arguments, tmp_path / "32", SelectionSettings(per_band=3))
    found = lines(tmp_path / "32")
    assert list(found[0]) == [
        *("question_id", "pass_count", "first_pass_count", "second_pass_count", "mean_response_tokens")
    ]
    assert sorted(line["pass_count"] for line in found) == [*"222333444555"]
    assert {(line["first_pass_count"], line["second_pass_count"], line["mean_response_tokens"]) for line in found} == {
        ("7", "1", "203.5")
    }
    assert all(int(line["pass_count"]) == bands[int(line["question_id"][-6:])] for line in found)
    ids = [line["question_id"] for line in found]
    assert read_json(tmp_path / "32" / "partition.json") == {"population_ids": ids, "train_ids": ids}
    table = pq.read_table(tmp_path / "32" / "val.parquet")
    assert [row["extra_info"]["question_id"] for row in table.to_pylist()] == ids
    seal = check_seal(tmp_path / "32" / "selection.csv")
    assert seal is not None
    assert seal.output("partition.json") is not None
    with pytest.raises(
        GenselectError, match=r"band 2: 3, .*20 drawn in both.*8 all right or all wrong in one.*4 not whole"
    ) as caught:
        select_split_in_both(*arguments, tmp_path / "no", SelectionSettings(per_band=4))
    assert "another pair" in caught.value.hint


def test_faulty_inputs_are_named(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "train.parquet", 9)
    files = record(tmp_path / "records", spread(9))
    one = SelectionSettings(per_band=1)

    def fails(
        words: str, rows: Path = rows, records: list[Path] | None = None, output: Path = tmp_path / "out"
    ) -> None:
        with pytest.raises(GenselectError, match=words):
            select_bands(rows, [files] if records is None else records, output, one)

    fails("no such file", rows=tmp_path / "absent.parquet")
    fails("no such file", records=[tmp_path / "step_9.parquet"])
    fails("columns are missing: question_id", records=[rows])
    fails("holds no built rows", rows=files)
    fails("there twice", records=[files, files])
    fails("no row of .* has a whole draw", records=[record(tmp_path / "other", {77: 3})])
    fails("no row of .* has a whole draw", records=[])
    fails("would be overwritten", output=tmp_path)
    (tmp_path / "text.parquet").write_text("not Parquet")
    fails("not a readable Parquet", records=[tmp_path / "text.parquet"])
    pq.write_table(pa.concat_tables([pq.read_table(rows)] * 2), tmp_path / "double.parquet")
    fails("several rows", rows=tmp_path / "double.parquet")
    for text, words in [
        ("a,b\n1,2\n", "not a selection"),
        ("question_id,pass_count\nomr-000000,2\n", "omr-000001 is among"),
    ]:
        (tmp_path / "selection.csv").write_text(text)
        with pytest.raises(GenselectError, match=words):
            select_split_in_both(rows, tmp_path / "selection.csv", [files], [files], tmp_path / "out", one)
    for faulty in ({"bands": ()}, {"bands": (2, 9)}, {"bands": (2, 2)}, {"per_band": 0}, {"samples": 1}):
        with pytest.raises(GenselectError):
            SelectionSettings(**faulty)


def test_the_program_makes_both_sets(tmp_path: Path, script: Callable) -> None:
    rows = write_rows(tmp_path / "built" / "train.parquet", 45)
    records = record(tmp_path / "records", spread(45))
    done = script(
        "select_overfit", "--rows", rows, "--records", records, "--output-dir", tmp_path / "64", "--per-band", 3, "--bands", "2,4"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "selected 6 rows, 3 of each of the bands 2, 4" in done.stderr
    done = script(
        "select_overfit", "--rows", tmp_path / "64" / "train.parquet", "--records", records, "--second-records", records,
        "--output-dir", tmp_path / "32", "--per-band", 2, "--bands", "2,4",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(lines(tmp_path / "32")) == 4
    done = script(
        "select_overfit", "--rows", rows, "--records", records, "--output-dir", tmp_path / "x", "--per-band", 99
    )
    assert done.returncode == 2
    assert "band 2: 5" in done.stderr
    assert "Hint: " in done.stderr

"""The population that evaluation reads is that of the built rows, with the same eight candidates in the same order."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genselect.config import check_config
from genselect.dataset.build import build_rows
from genselect.errors import GenselectError
from genselect.evaluation import population_sha256, read_questions, read_row_questions
from genselect.formats import read_json, read_jsonl, write_json, write_jsonl


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Forty problems of ten candidates each, built."""
    problems, labels = [], []
    for number in range(40):
        words = " ".join(f"word{(number * 7919 + position * 104729) % 99991}" for position in range(12))
        problems.append(
            {
                "id": f"omr-{number:06d}", "problem": f"{number} {words}", "answer": "7", "pass_rate_72b_tir": "0.5",
                "problem_source": "forum",
                "candidates": [{"text": f"t{number}.{i}", "boxed": "7" if i % 2 else f"{i}"} for i in range(10)],
            }
        )  # fmt: skip
        labels += [
            {"id": f"omr-{number:06d}", "index": i, "correct": bool(i % 2), "judged": True, "reasoning": "", "finish_reason": "stop",
             "source": "rule"}
            for i in range(10)
        ]  # fmt: skip
    write_jsonl(tmp_path / "merged.jsonl", problems)
    write_jsonl(tmp_path / "labels.jsonl", labels)
    config = check_config({"dataset": {"name": "x"}, "judge": {"kind": "rule"}}, "test")
    build_rows(tmp_path / "merged.jsonl", tmp_path / "labels.jsonl", tmp_path / "data", config)
    return tmp_path / "data"


def read(folder: Path, split: Any = "held_out") -> list[Any]:
    return read_questions(folder / "questions.jsonl", folder / "partition.json", split)


def test_baselines_see_the_candidates_of_the_rows_in_their_order(built: Path) -> None:
    for file, split in (("train.parquet", "train"), ("val.parquet", "held_out")):
        rows = read_row_questions(built / file)
        asked = read(built, split)
        assert rows
        assert [row.question_id for row in rows] == [one.question_id for one in asked[: len(rows)]]
        for row, one in zip(rows, asked, strict=False):
            assert dataclasses.replace(row, problem_source=None) == dataclasses.replace(one, problem_source=None)
            assert len(one.candidates) == 8


def test_the_two_sides_make_up_the_population(built: Path) -> None:
    ids = [one.question_id for one in read(built, "train") + read(built)]
    assert ids == read_json(built / "partition.json")["population_ids"]


def test_files_of_different_builds_are_refused(built: Path) -> None:
    partition = read_json(built / "partition.json")
    lines = [row for _, row in read_jsonl(built / "questions.jsonl")]
    write_jsonl(built / "questions.jsonl", lines[:-1])
    with pytest.raises(GenselectError, match=r"1 question\(s\) of .* are missing .* such as omr-000039"):
        read(built)
    write_jsonl(built / "questions.jsonl", lines)
    write_json(built / "partition.json", {**partition, "train_ids": partition["population_ids"][:3]})
    with pytest.raises(GenselectError, match="different builds"):
        read(built)


def test_a_line_without_candidates_is_refused_by_its_number(built: Path) -> None:
    lines = [row for _, row in read_jsonl(built / "questions.jsonl")]
    del lines[4]["cached_candidates"][2]["is_correct"]
    write_jsonl(built / "questions.jsonl", lines)
    with pytest.raises(GenselectError, match=r"line 5: no question: 'is_correct'"):
        read(built)


def test_a_parquet_file_of_something_else_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(GenselectError, match="not built rows"):
        read_row_questions(tmp_path / "x.parquet")


def test_the_population_hash_knows_labels_and_not_the_order(built: Path) -> None:
    asked = read(built)
    assert population_sha256(asked) == population_sha256(asked[::-1])
    first = asked[0].candidates[0]
    changed = dataclasses.replace(
        asked[0], candidates=(dataclasses.replace(first, is_correct=not first.is_correct), *asked[0].candidates[1:])
    )
    assert population_sha256([changed, *asked[1:]]) != population_sha256(asked)

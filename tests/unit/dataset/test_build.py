"""Rows, population and split, as a reader of the built files sees them."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from genselect.config import Config, check_config
from genselect.dataset.build import OUTPUTS, build_rows
from genselect.errors import GenselectError
from genselect.formats import ROW_SCHEMA, read_json, write_json, write_jsonl
from genselect.provenance import check_seal, seal_path, write_seal

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def settings(**build: Any) -> Config:
    return check_config({"dataset": {"name": "x"}, "judge": {"kind": "rule"}, "build": build}, "test")


def statement(number: int) -> str:
    """Statements that are far from each other."""
    return f"{number:04d} " + " ".join(f"word{(number * 7919 + position * 104729) % 99991}" for position in range(12))


class Data:
    """A merge with labels, written as the earlier rules write them."""

    def __init__(self, folder: Path, problems: list[dict[str, Any]]) -> None:
        self.folder = folder
        self.merged, self.labels = folder / "merged.jsonl", folder / "labels.jsonl"
        write_jsonl(
            self.merged,
            (
                {
                    "id": f"omr-{number:06d}",
                    "problem": problem.get("problem", statement(number)),
                    "answer": problem.get("answer", str(number)),
                    "pass_rate_72b_tir": "0.5",
                    "problem_source": "forum",
                    "candidates": [
                        {"text": problem.get("text", f"solution {number}.{index}"), "boxed": f"box {index}"}
                        for index in range(len(problem["verdicts"]))
                    ],
                }
                for number, problem in enumerate(problems)
            ),
        )
        self.rows = [
            {
                "id": f"omr-{number:06d}",
                "index": index,
                "correct": verdict is True,
                "judged": verdict is not None,
                "reasoning": "",
                "finish_reason": "stop",
                "source": "none" if verdict is None else "rule",
            }
            for number, problem in enumerate(problems)
            for index, verdict in enumerate(problem["verdicts"])
        ]
        self.write_labels(self.rows)

    def write_labels(self, rows: list[dict[str, Any]], seal: bool = True) -> None:
        write_jsonl(self.labels, rows)
        seal_path(self.labels).unlink(missing_ok=True)
        if seal:
            write_seal(
                self.labels,
                kind="labels",
                counts={"judge_calls": 7},
                outputs=[self.labels],
                inputs=[self.merged],
                started=NOW,
                fingerprints={"judge": "f00d"},
            )

    def build(self, config: Config) -> dict[str, Any]:
        return build_rows(self.merged, self.labels, self.folder / "built", config)

    def read(self, name: str) -> list[dict[str, Any]]:
        return pq.read_table(self.folder / "built" / name).to_pylist()


def usual(count: int, right: int = 4, total: int = 8) -> list[dict[str, Any]]:
    return [{"verdicts": [index < right for index in range(total)]} for _ in range(count)]


def test_the_files_hold_what_their_description_says(tmp_path: Path) -> None:
    data = Data(tmp_path, usual(20))
    stats = data.build(settings(val_rows_online=3, cost_usd_per_candidate=0.25))
    partition = read_json(tmp_path / "built" / "partition.json")
    ids = [f"omr-{number:06d}" for number in range(20)]
    assert partition == {"population_ids": ids, "train_ids": ids[:16]}
    train, val = data.read("train.parquet"), data.read("val.parquet")
    assert [row["extra_info"]["question_id"] for row in train] == ids[:16]
    assert [row["extra_info"]["question_id"] for row in val] == ids[16:19]
    assert (stats["train_rows"], stats["held_out_rows"], stats["val_rows_online"]) == (16, 4, 3)
    row = train[0]
    assert list(row) == ["data_source", "agent_name", "ability", "prompt", "reward_model", "extra_info"]
    assert (row["data_source"], row["agent_name"], row["ability"]) == ("atts_omr", "atlas_sequential", "orchestration")
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert row["prompt"][1]["content"] == statement(0)
    assert row["reward_model"] == {"style": "rule", "ground_truth": "0"}
    extra = row["extra_info"]
    assert list(extra) == [
        *("question_id", "question", "benchmark", "benchmark_spec", "max_explores"),
        *("correct_of_eight", "pass_rate_72b_tir", "cached_candidates"),
    ]
    assert (extra["benchmark"], extra["max_explores"], extra["correct_of_eight"]) == ("omr", 8, 4)
    assert extra["benchmark_spec"] == {"name": "omr", "judge": {"kind": "rule", "model": None, "fingerprint": "f00d"}}
    first = extra["cached_candidates"][0]
    assert list(first) == ["answer", "reasoning", "cost_usd", "timed_out", "is_correct"]
    assert (first["cost_usd"], first["timed_out"]) == (0.25, False)
    assert pq.read_schema(tmp_path / "built" / "val.parquet").equals(ROW_SCHEMA)
    # As the README of the study says: pandas reads them, nested parts as objects.
    assert pd.read_parquet(tmp_path / "built" / "train.parquet").shape == (16, 6)


def test_candidates_keep_their_own_label_and_answer(tmp_path: Path) -> None:
    data = Data(tmp_path, [{"verdicts": [True, False, None, False, True, False, True, None, True, False, False]}] * 3)
    data.build(settings(train_fraction=0.5, near_duplicates={"threshold": 1.0}))
    for row in data.read("train.parquet"):
        candidates = row["extra_info"]["cached_candidates"]
        number = int(row["extra_info"]["question_id"][-6:])
        indices = [int(candidate["answer"].split()[1]) for candidate in candidates]
        assert len(set(indices)) == 8
        assert {2, 7}.isdisjoint(indices), "an unjudged candidate was drawn"
        assert [candidate["reasoning"] for candidate in candidates] == [
            f"solution {number}.{index}" for index in indices
        ]
        assert [candidate["is_correct"] for candidate in candidates] == [index in {0, 4, 6, 8} for index in indices]
        assert row["extra_info"]["correct_of_eight"] == sum(index in {0, 4, 6, 8} for index in indices)


def test_only_problems_with_one_to_seven_correct_of_eight_become_rows(tmp_path: Path) -> None:
    problems = [{"verdicts": [index < right for index in range(8)]} for right in range(9) for _ in range(3)]
    problems += usual(2, total=7) + [{"verdicts": [True, None] + [False] * 6}] * 2
    data = Data(tmp_path, problems)
    stats = data.build(settings(near_duplicates={"threshold": 1.0}))
    assert stats["problems_merged"] == 31
    assert stats["problems_with_eight_candidates"] == 27
    assert stats["problems_kept"] == 21
    assert stats["correct_of_eight"] == {str(count): 3 for count in range(1, 8)}
    assert stats["problems_dropped"] == {
        "too_few_candidates": 4,
        "too_few_correct": 3,
        "too_many_correct": 3,
        "near_duplicate": 0,
    }
    assert stats["candidates_unjudged_dropped"] == 2
    assert stats["candidates_judged"] == 27 * 8 + 14 + 14
    assert stats["candidates_correct"] == 3 * sum(range(9)) + 8 + 2


def test_same_inputs_and_seed_give_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    contents = []
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / folder).mkdir()
        data = Data(tmp_path / folder, usual(10, total=12, right=5))
        data.build(settings(seed=seed))
        contents.append([(tmp_path / folder / "built" / name).read_bytes() for name in OUTPUTS])
    assert contents[0] == contents[1]
    assert contents[0][1] != contents[2][1]


def test_one_problems_draw_does_not_depend_on_the_others(tmp_path: Path) -> None:
    drawn = []
    for folder, problems in (("a", usual(10, total=12)), ("b", [{"verdicts": [False] * 3}, *usual(9, total=12)])):
        (tmp_path / folder).mkdir()
        data = Data(tmp_path / folder, problems)
        data.build(settings())
        questions = [
            json.loads(line) for line in (tmp_path / folder / "built" / "questions.jsonl").read_text().splitlines()
        ]
        drawn.append({question["question_id"]: question["candidate_indices"] for question in questions})
    assert all(drawn[0][name] == indices for name, indices in drawn[1].items())


def test_questions_carry_the_whole_population_for_evaluation(tmp_path: Path) -> None:
    data = Data(tmp_path, usual(10))
    data.build(settings(val_rows_online=1))
    questions = [json.loads(line) for line in (tmp_path / "built" / "questions.jsonl").read_text().splitlines()]
    assert [question["split"] for question in questions] == ["train"] * 8 + ["held_out"] * 2
    assert all(len(question["cached_candidates"]) == 8 for question in questions)


def test_near_duplicates_never_straddle_the_line(tmp_path: Path) -> None:
    problems = usual(20)
    long = " ".join(statement(99) for _ in range(3))
    problems[3]["problem"] = long
    problems[17]["problem"] = long + " now"  # held out, and nearly a training problem
    problems[18]["problem"] = problems[19]["problem"] = "both held out " + statement(98)
    data = Data(tmp_path, problems)
    stats = data.build(settings())
    partition = read_json(tmp_path / "built" / "partition.json")
    assert "omr-000017" not in partition["population_ids"]
    assert {"omr-000018", "omr-000019"} <= set(partition["population_ids"])
    assert partition["train_ids"] == partition["population_ids"][: int(0.8 * 19)]
    assert stats["near_duplicates"]["held_out_dropped"] == 1
    assert (stats["near_duplicates"]["pairs"], stats["near_duplicates"]["problems_involved"]) == (2, 4)


def test_filters_are_counted(tmp_path: Path) -> None:
    problems = [*usual(10), {**usual(1)[0], "answer": "\\frac{1}{2}"}, {**usual(1)[0], "text": "x" * 300}]
    data = Data(tmp_path, problems)
    stats = data.build(settings(filters={"answer_pattern": "[0-9]{1,2}", "max_candidate_chars": 200}))
    assert stats["problems_kept"] == 10
    assert stats["problems_dropped"]["answer_pattern"] == 1
    assert stats["problems_dropped"]["too_few_candidates"] == 1
    assert stats["candidates_too_long_set_aside"] == 8


def test_upstream_judgments_audit_the_labels(tmp_path: Path) -> None:
    data = Data(tmp_path, [{"verdicts": [True, True, False, None, False, False, False, False, False]}] * 5)
    rows = [{"id": f"omr-{n:06d}", "selected": {"0": 3, "2": 1, "3": 2}, "unreadable": 1} for n in range(5)]
    write_jsonl(tmp_path / "merged.judgments.jsonl", rows)
    stats = data.build(settings(near_duplicates={"threshold": 1.0}))
    assert stats["upstream_agreement"] == {
        **{"rows": 35, "agree": 15, "disagree": 5, "not_judged": 10},
        **{"unreadable_judgment": 5, "rate": 0.75},
    }


def test_stats_say_who_judged_and_what_labelling_cost(tmp_path: Path) -> None:
    stats = Data(tmp_path, usual(5)).build(settings())
    assert stats["judge"]["kind"] == "rule"
    assert stats["judge"]["fingerprint"] == "f00d"
    assert stats["labelling"]["judge_calls"] == 7
    seal = check_seal(tmp_path / "built" / "stats.json")
    assert seal is not None
    assert {entry.path for entry in seal.outputs} == set(OUTPUTS)
    assert seal.fingerprints["judge"] == "f00d"


def refuse(data: Data, match: str, config: Config | None = None) -> str:
    with pytest.raises(GenselectError, match=match) as caught:
        data.build(config or settings())
    assert not (data.folder / "built").exists() or not any((data.folder / "built").iterdir())
    return str(caught.value)


def test_a_label_given_twice_is_refused(tmp_path: Path) -> None:
    data = Data(tmp_path, usual(3))
    data.write_labels([*data.rows, data.rows[5]])
    refuse(data, r"labels\.jsonl, line 25: omr-000000 candidate 5 is labelled twice")


def test_a_missing_label_is_refused(tmp_path: Path) -> None:
    data = Data(tmp_path, usual(3))
    data.write_labels(data.rows[:-1])
    refuse(data, r"problem omr-000002 has 8 candidates in the merge, and candidate\(s\) \[7\] have no label")


def test_labels_of_problems_that_the_merge_lacks_are_refused(tmp_path: Path) -> None:
    data = Data(tmp_path, usual(3))
    data.write_labels([*data.rows, {**data.rows[0], "id": "omr-000009"}], seal=False)
    refuse(data, r"there are labels for problem omr-000009, which the merge does not have")


def test_labels_of_another_merge_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    data, other = Data(tmp_path, usual(3)), Data(tmp_path / "other", usual(4))
    other.labels.rename(data.labels)
    seal_path(other.labels).rename(seal_path(data.labels))
    assert "Hint: Label this merge" in refuse(data, "these are labels of another merge")


def test_labels_changed_after_sealing_are_refused(tmp_path: Path) -> None:
    data = Data(tmp_path, usual(3))
    data.labels.write_text(data.labels.read_text().replace("true", "false", 1))
    refuse(data, r"its content is not what labels\.jsonl\.seal\.json sealed")


def test_labels_without_a_seal_are_taken_when_they_cover_the_merge(tmp_path: Path) -> None:
    data = Data(tmp_path, usual(5))
    data.write_labels(
        [{name: value for name, value in row.items() if name != "source"} for row in data.rows], seal=False
    )
    assert data.build(settings())["problems_kept"] == 5


def test_no_row_left_says_what_was_dropped(tmp_path: Path) -> None:
    message = refuse(Data(tmp_path, usual(3, right=8)), "of 3 merged problems 0 are left")
    assert "too_many_correct 3" in message
    assert "Hint: A row needs 8 judged candidates, 1 to 7" in message


def test_one_problem_cannot_be_split(tmp_path: Path) -> None:
    refuse(Data(tmp_path, usual(1)), "1 are left, 0 of them to train on")


def test_the_duplicates_of_the_merge_are_passed_on(tmp_path: Path) -> None:
    data = Data(tmp_path, usual(5))
    write_json(tmp_path / "merge_stats.json", {"duplicates": {"equal_text_within_a_prompt": 3}})
    assert data.build(settings())["duplicates"] == {"equal_text_within_a_prompt": 3}

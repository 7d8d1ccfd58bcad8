"""Records: what a reader finds in a step's files, and that one step is one sequence of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genselect.errors import GenselectError
from genselect.training.records import (
    TokenArrays,
    Trajectory,
    episode_metrics,
    read_records,
    read_tokens,
    records_path,
    tokens_path,
    write_step,
)


def trajectory(**changes: Any) -> Trajectory:
    values: dict[str, Any] = {
        "question_id": "omr-000001",
        "sample": 0,
        "step": 3,
        "attempt": 1,
        "explores": 2,
        "revealed": 2,
        "submitted": "42",
        "verdict": True,
        "verdict_source": "candidate",
        "well_formed": True,
        "end": "submit",
        "score_verdict": 1.0,
        "score_format": 0.0,
        "score_cost": -0.2,
        "shaping": -0.5,
        "prompt_tokens": 40,
        "response_tokens": 30,
        "turns": 3,
        "length_capped": False,
        "decision_tokens": (0, 10, 20),
        "decision_k": (0, 1, 2),
        "decision_phi": (0.5, 0.6, 0.7),
        "decision_logits": (0.0, 0.4, 0.8),
        "decision_values": (0.1, 0.2, 0.3),
        "text": "<tool_call>…",
    }
    return Trajectory(**{**values, **changes})


NO_CALL: dict[str, Any] = {
    "submitted": None, "verdict": False, "verdict_source": "none", "well_formed": False, "end": "no_call", "score_verdict": 0.0,
}  # fmt: skip


def arrays(row: Trajectory, values: bool = True) -> TokenArrays:
    numbers = np.linspace(-1, 0, row.response_tokens, dtype=np.float32)
    mask = np.arange(row.response_tokens) % 3 > 0
    return TokenArrays(
        *row.key, np.arange(row.response_tokens, dtype=np.int32), mask.astype(np.int8), numbers, numbers, numbers, numbers,
        numbers if values else None,
    )  # fmt: skip


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    rows = [trajectory(), trajectory(sample=1, **NO_CALL, decision_phi=(), decision_logits=(), decision_values=())]
    write_step(tmp_path, 3, rows, [arrays(rows[0]), arrays(rows[1], values=False)])
    assert read_records(records_path(tmp_path, 3)) == rows
    tokens = read_tokens(tokens_path(tmp_path, 3))
    assert list(tokens) == [row.key for row in rows]
    np.testing.assert_array_equal(tokens[rows[0].key].values, arrays(rows[0]).values)
    np.testing.assert_array_equal(tokens[rows[1].key].response_mask, arrays(rows[1]).response_mask)
    assert tokens[rows[1].key].values is None
    assert tokens[rows[0].key].response_ids.dtype == np.int32
    # Readers without this library find the sum of the pieces and the first value ready.
    frame = pd.read_parquet(records_path(tmp_path, 3))
    assert frame["score"].tolist() == [0.8, -0.2]
    assert frame["first_value"].tolist()[0] == 0.1
    assert frame["first_value"].isna().tolist() == [False, True]


def test_one_step_is_one_sequence_of_bytes_whatever_order_it_came_in(tmp_path: Path) -> None:
    rows = [trajectory(question_id=f"omr-{number:06d}", sample=sample) for number in range(4) for sample in range(8)]
    write_step(tmp_path / "a", 3, rows, map(arrays, rows))
    write_step(tmp_path / "b", 3, rows[::-1], map(arrays, rows[5:] + rows[:5]))
    for path in (records_path, tokens_path):
        assert path(tmp_path / "a", 3).read_bytes() == path(tmp_path / "b", 3).read_bytes()
    assert read_records(records_path(tmp_path / "b", 3)) == rows


def test_a_step_drawn_twice_keeps_both_draws_and_writing_a_draw_again_replaces_it(tmp_path: Path) -> None:
    first = [trajectory(sample=sample) for sample in range(2)]
    second = [trajectory(sample=sample, attempt=2, text="again") for sample in range(2)]
    write_step(tmp_path / "a", 3, first, map(arrays, first))
    write_step(tmp_path / "a", 3, second, map(arrays, second))
    path = records_path(tmp_path / "a", 3)
    assert read_records(path) == [first[0], second[0], first[1], second[1]]
    assert read_records(path, attempt=2) == second
    assert len(read_tokens(tokens_path(tmp_path / "a", 3))) == 4
    before = path.read_bytes()
    write_step(tmp_path / "a", 3, second, map(arrays, second))
    assert path.read_bytes() == before
    # The history of the file does not show in it.
    write_step(tmp_path / "b", 3, first + second)
    assert records_path(tmp_path / "b", 3).read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"end": "gave_up"}, "end is 'gave_up'"),
        ({"end": "length"}, "do not go together"),
        ({"submitted": None}, "do not go together"),
        ({**NO_CALL, "verdict": True}, "right without a submission"),
        ({"revealed": 3}, "3 candidates revealed by 2"),
        ({"decision_logits": (0.1,)}, "decision_logits has 1 entries for 3"),
        ({"decision_tokens": (0, 10, 30)}, "outside of the 30"),
    ],
)
def test_a_trajectory_that_contradicts_itself_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        trajectory(**changes)


def test_rows_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    row = trajectory()
    for rows, tokens, words in [
        ([], None, "no trajectory"),
        ([trajectory(step=4)], None, "step 4"),
        ([row, row], None, "twice"),
        ([row], [arrays(trajectory(sample=1))], "not those"),
    ]:
        with pytest.raises(ValueError, match=words):
            write_step(tmp_path, 3, rows, tokens)
    with pytest.raises(ValueError, match="lengths differ"):
        TokenArrays(*row.key, np.zeros(3, np.int32), np.zeros(2, np.int8))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_record_file_is_named(tmp_path: Path) -> None:
    path = records_path(tmp_path, 3)
    with pytest.raises(GenselectError, match=r"step_3\.parquet: there is no such file"):
        read_records(path)
    path.write_bytes(b"PAR1 cut")
    with pytest.raises(GenselectError, match="not a readable Parquet"):
        read_records(path)
    pq.write_table(pa.table({"question_id": ["a"]}), path)
    with pytest.raises(GenselectError, match="columns are missing: sample"):
        read_records(path)
    # Neither does a write destroy what it cannot read.
    with pytest.raises(GenselectError):
        write_step(tmp_path, 3, [trajectory()])
    assert pq.read_table(path).num_rows == 1


def test_episode_metrics_count_what_the_guards_read() -> None:
    rows = [
        trajectory(),
        trajectory(explores=0, revealed=0, score_cost=0.0),
        trajectory(explores=0, revealed=0, score_cost=0.0, **NO_CALL),
        trajectory(explores=9, revealed=8, **{**NO_CALL, "end": "length"}, length_capped=True),
    ]
    metrics = episode_metrics(rows, candidates=8)
    assert metrics["episode/no_submission_share"] == 0.5
    assert metrics["episode/zero_explore_share"] == 0.5
    assert metrics["episode/zero_explore_submissions"] == 1
    assert metrics["episode/mean_explores"] == 11 / 4
    assert metrics["episode/revealed_share"] == 10 / 32
    assert metrics["episode/length_capped_share"] == 0.25
    assert metrics["episode/verdict"] == 0.5

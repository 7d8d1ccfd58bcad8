"""The memory check fills the budgets, reports what was specified, and its gate looks at what it found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from genselect.training.memory_check import Budget, MemoryCheck, check_report, read_peaks, reset_peaks, row_lengths

PEAKS = {"actor and critic": [{"rank": 0, "peak": 70.5, "allocated": 60.0, "free": 20.0, "total": 140.0}]}


@pytest.mark.parametrize(
    ("tokens", "longest", "lengths"),
    [
        (81_920, 81_920, [81_920]),
        # The study's critic: two whole rows and what is left.
        (196_608, 81_920, [81_920, 81_919, 32_768]),
        # A row longer than the budget is a micro-batch of its own.
        (16_384, 81_920, [81_920]),
        (163_841, 81_920, [81_920, 81_919]),
    ],
)
def test_rows_fill_a_budget_of_tokens(tokens: int, longest: int, lengths: list[int]) -> None:
    assert row_lengths(Budget(tokens, 32, longest)) == lengths


def test_a_fixed_micro_batch_is_filled_with_the_longest_rows_and_no_two_alike() -> None:
    # verl 0.9.1 fails to split rows of one length.
    lengths = row_lengths(Budget(None, 32, 512))
    assert len(lengths) == len(set(lengths)) == 32
    assert max(lengths) == 512
    assert min(lengths) > 450


def check() -> MemoryCheck:
    budgets = {"actor": Budget(81_920, 8, 81_920), "critic": Budget(196_608, 8, 81_920)}
    production = {"problems": 64, "samples": 8, "prompt_tokens": 8192, "response_tokens": 73_728}
    return MemoryCheck("cuda", 8, budgets, production, ppo_epochs=2)


def test_the_report_has_what_the_study_wrote(tmp_path: Path) -> None:
    made = check()
    made.begin_step()
    made.stage("update_actor", [81_920] * 8, 12.5, PEAKS)
    path = made.write(
        tmp_path, {"timing_s": {"gen": 30.0}, "step_seconds": 50.0, "trajectories": 512, "metrics": {}, "peaks": PEAKS}
    )
    report = json.loads(path.read_text())
    assert path.name == "memory_check.json"
    assert report["steps"] == [
        {
            "step": 1,
            "stages": [{"stage": "update_actor", "rows": 8, "tokens": 655_360, "seconds": 12.5, "peaks": PEAKS}],
        }
    ]
    assert report["token_budgets"]["critic"] == {"tokens": 196_608, "rows": 8, "longest_row": 81_920}
    assert report["production_batch"]["trajectories"] == 512
    assert report["production_batch"]["tokens_at_most"] == 512 * 81_920
    assert report["ppo_epochs"] == 2
    assert report["measured"] == {"update_actor": 70.5, "real_step": 70.5}
    assert set(report["real_step"]) == {"timing_s", "step_seconds", "trajectories", "metrics", "peaks"}


def passed(report: dict[str, Any], steps: int = 1) -> list[bool]:
    return [found["passed"] for found in check_report(report, steps)]


def test_the_gate_fails_without_room_to_spare_and_without_every_step() -> None:
    made = check()
    made.begin_step()
    made.stage("update_actor", [81_920] * 8, 12.5, PEAKS)
    healthy = made.report({"peaks": PEAKS})
    assert passed(healthy) == [True, True]
    assert passed(healthy, steps=2) == [False, True]
    assert passed(made.report({})) == [False, True]
    full = [{"rank": 3, "peak": 139.0, "allocated": 135.0, "free": 1.0, "total": 140.0}]
    made.stage("update_critic", [81_920] * 8, 9.0, {"actor and critic": full})
    crowded = check_report(made.report({"peaks": PEAKS}), 1)
    assert [found["passed"] for found in crowded] == [True, False]
    assert "card 3 after update_critic" in crowded[1]["message"]


def test_a_processs_peak_is_its_own_since_the_reset() -> None:
    reset_peaks(None)
    before = read_peaks(None)["peak"]
    held = torch.ones(300_000_000 // 4)
    grown = read_peaks(None)["peak"]
    assert grown - before == pytest.approx(0.28, abs=0.05), "GiB of 300 MB"
    del held
    reset_peaks(None)
    assert read_peaks(None)["peak"] < grown - 0.2


def test_a_made_up_row_is_as_long_as_asked_and_trained_whole() -> None:
    from genselect.training.synthetic import make_row

    template = {
        "prompts": torch.tensor([5, 6, 7]),
        "responses": torch.tensor([8, 9]),
        "input_ids": torch.tensor([5, 6, 7, 8, 9]),
        "position_ids": torch.arange(5),
        "response_mask": torch.tensor([1, 0]),
        "rm_scores": torch.tensor([0.0, 1.0]),
        "submit_label": torch.tensor([1.0, 1.0]),
        "submit_mask": torch.tensor([1, 0]),
        "uid": "question",
    }
    row = make_row(template, prompt=4, response=6)
    assert row["input_ids"].tolist() == [5, 6, 7, 5, 8, 9, 8, 9, 8, 9]
    assert row["position_ids"].tolist() == list(range(10))
    assert row["response_mask"].tolist() == [1] * 6
    assert row["rm_scores"].tolist() == [0.0] * 6
    assert row["submit_mask"].dtype == torch.int64
    assert row["uid"] == "question"
    assert template["response_mask"].tolist() == [1, 0], "the template is a real row, which is trained on afterwards"
    three_axes = make_row({**template, "position_ids": torch.arange(5).expand(3, -1)}, prompt=4, response=6)
    assert three_axes["position_ids"].shape == (3, 10)

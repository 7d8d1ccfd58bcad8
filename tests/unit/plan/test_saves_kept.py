"""Which saves stand at the end of a run."""

from __future__ import annotations

from typing import Any

import pytest

from genselect.config.training import Run
from genselect.plan.saves import kept_saves


@pytest.mark.parametrize(
    ("schedule", "start", "kept"),
    [
        ({"steps": 12, "save_every": 2, "anchor_every": 4}, {}, [4, 8, 12]),
        ({"steps": 13, "save_every": 5, "anchor_every": 10}, {}, [10, 13]),
        ({"steps": 23, "save_every": 5, "anchor_every": 10}, {}, [10, 20, 23]),
        ({"steps": 13, "save_every": 5, "anchor_every": None, "keep_latest": 2}, {}, [10, 13]),
        ({"steps": 12, "save_every": 2, "anchor_every": 4}, {"run": "a", "step": 8}, [8, 12]),
        ({"steps": 12, "save_every": 2, "anchor_every": 4}, {"run": "a", "step": 7}, [8, 12]),
    ],
)
def test_the_saves_at_the_end_of_a_run(schedule: dict[str, Any], start: dict[str, Any], kept: list[int]) -> None:
    assert kept_saves(Run.model_validate({"schedule": schedule, "start": start})) == kept

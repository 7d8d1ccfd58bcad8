"""Runs extend each other, and one that says what differs is held to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from genselect.config import check_config, load_config
from genselect.errors import GenselectError
from genselect.plan.inputs import write_differences, write_resolved_config
from genselect.plan.runs import differences, gates, identity, resolved_runs

BASE = {"kind": "formal", "reward": {"cost_per_explore": 0.1}, "optimiser": {"actor_lr": 5e-5}}


def config(**runs: Any):
    return check_config({"dataset": {"name": "x"}, "runs": runs}, "my.yaml")


def test_an_extending_run_takes_over_everything_but_what_it_sets() -> None:
    runs = resolved_runs(config(a=BASE, b={"extends": "a", "set": {"optimiser.actor_lr": 1e-5}}))
    assert runs["b"].optimiser.actor_lr == 1e-5
    assert runs["b"].reward.cost_per_explore == 0.1
    assert runs["a"].optimiser.actor_lr == 5e-5


def test_jobs_read_the_runs_that_the_plan_resolved(tmp_path: Path) -> None:
    both = config(
        a=BASE,
        b={"extends": "a", "set": {"reward.cost_per_explore": 0.02}, "expect_difference": ["reward.cost_per_explore"]},
    )
    write_resolved_config(both, tmp_path / "config.yaml")
    again = resolved_runs(load_config(tmp_path / "config.yaml"))
    assert {name: identity(run) for name, run in again.items()} == {
        name: identity(run) for name, run in resolved_runs(both).items()
    }


def test_the_difference_is_proven() -> None:
    both = config(
        a=BASE,
        b={"extends": "a", "set": {"reward.cost_per_explore": 0.02}, "expect_difference": ["reward.cost_per_explore"]},
    )
    changes = differences(both, resolved_runs(both))["b"]
    assert [(change.key, change.before, change.after) for change in changes] == [("reward.cost_per_explore", 0.1, 0.02)]


def test_anything_more_than_the_expected_difference_is_refused() -> None:
    values = {"reward.cost_per_explore": 0.02, "optimiser.actor_lr": 2e-4}
    with pytest.raises(GenselectError, match=r"differs and is not expected: optimiser\.actor_lr"):
        resolved_runs(
            config(a=BASE, b={"extends": "a", "set": values, "expect_difference": ["reward.cost_per_explore"]})
        )


@pytest.mark.parametrize(
    ("runs", "what"),
    [
        ({"b": {"extends": "formall"}, "formal": BASE}, "Did you mean formal?"),
        ({"a": {"extends": "b"}, "b": {"extends": "a"}}, "circle"),
        ({"a": {**BASE, "start": {"run": "c", "step": 5}}}, "there is no run c"),
        ({"a": BASE, "b": {"extends": "a", "set": {"optimiser.actor_rl": 1.0}}}, "actor_rl"),
    ],
)
def test_runs_that_do_not_fit_together_are_named(runs: dict, what: str) -> None:
    with pytest.raises(GenselectError) as caught:
        resolved_runs(config(**runs))
    assert what in str(caught.value)
    assert "Hint: " in str(caught.value)


def test_a_start_names_run_and_step_together() -> None:
    with pytest.raises(GenselectError, match="run and step go together"):
        config(a={**BASE, "start": {"run": "b"}})


def test_a_misspelt_key_of_a_run_is_recognised() -> None:
    with pytest.raises(GenselectError, match=r"Did you mean runs\.a\.optimiser\.actor_lr\?"):
        config(a={"optimiser": {"actor_l": 1.0}})


def test_gates_are_the_runs_that_a_formal_one_waits_for_and_only_they_can_be_waived() -> None:
    runs = {"smoke": {"kind": "smoke"}, "formal": BASE}
    assert gates(resolved_runs(config(**runs))) == ["smoke"]
    waiving = check_config({"dataset": {"name": "x"}, "runs": runs, "waived_gates": {"formal": "why"}}, "my.yaml")
    with pytest.raises(GenselectError, match=r"waived_gates\.formal: no gate has that name"):
        resolved_runs(waiving)


def test_how_runs_differ_is_written_and_left_alone_until_it_changes(tmp_path: Path) -> None:
    both = config(formal=BASE, dear={"extends": "formal", "set": {"reward.cost_per_explore": 0.2}})
    path = tmp_path / "differences.json"
    write_differences(both, path)
    change = {"key": "reward.cost_per_explore", "before": 0.1, "after": 0.2}
    assert json.loads(path.read_text()) == [{"run": "dear", "base": "formal", "changes": [change]}]
    written = path.stat().st_mtime_ns
    write_differences(both, path)
    assert path.stat().st_mtime_ns == written
    write_differences(config(formal=BASE), path)
    assert json.loads(path.read_text()) == []

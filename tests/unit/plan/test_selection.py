"""Rollouts and overfit sets fit together, or the plan says what does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from genselect.config import check_config
from genselect.errors import GenselectError
from genselect.plan.runs import resolved_runs
from genselect.plan.selection import check_selections, rollout_identity

FORMAL = {"kind": "formal", "schedule": {"steps": 20, "problems": 64}}
ROLLOUTS = {"untrained": {"like": "formal"}}
SIXTY_FOUR = {"draws": {"rollout": "untrained"}}
CONTROL = {"kind": "overfit", "data": "overfit-64", "schedule": {"problems": 64}}


def check(**sections: Any) -> None:
    values = {
        "dataset": {"name": "x"},
        "runs": {"formal": FORMAL, "control": CONTROL},
        "rollouts": ROLLOUTS,
        "overfit_sets": {"overfit-64": SIXTY_FOUR},
        **sections,
    }
    config = check_config(values, "my.yaml")
    check_selections(config, resolved_runs(config))


def thirty_two(**changes: Any) -> dict[str, Any]:
    both = {"draws": {"run": "first"}, "of": "overfit-64", "second_draws": {"run": "second", "steps": [2, 3]}}
    return {**both, "per_band": 8, **changes}


def test_the_studys_sixty_four_and_thirty_two_are_accepted() -> None:
    drawing = {"kind": "overfit", "data": "overfit-64"}
    check(
        runs={"formal": FORMAL, "first": drawing, "second": drawing, "control": {**CONTROL, "data": "overfit-32",
              "schedule": {"problems": 32}}},
        overfit_sets={"overfit-64": SIXTY_FOUR, "overfit-32": thirty_two()},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sections", "what", "hint"),
    [
        (
            {"rollouts": {"untrained": {"like": "forml"}}},
            "rollouts.untrained.like: there is no run forml",
            "Did you mean formal?",
        ),
        (
            {"runs": {"formal": FORMAL, "control": {**CONTROL, "data": "overfit-46"}}},
            "runs.control.data: there is no overfit set overfit-46",
            "Did you mean overfit-64?",
        ),
        (
            {"overfit_sets": {"overfit-64": {"draws": {"rollout": "untraind"}}}},
            "overfit_sets.overfit-64.draws.rollout: there is no rollout untraind",
            "Did you mean untrained?",
        ),
        (
            {"overfit_sets": {"overfit-64": {"draws": {"run": "formall"}}}},
            "overfit_sets.overfit-64.draws.run: there is no run formall",
            "Did you mean formal?",
        ),
        (
            {"overfit_sets": {"overfit-64": SIXTY_FOUR, "b": thirty_two(of="overfit-65", draws={"run": "formal"})}},
            "overfit_sets.b.of: there is no overfit set overfit-65",
            "Did you mean overfit-64?",
        ),
        (
            {"overfit_sets": {"overfit-64": {**SIXTY_FOUR, "bands": [2, 9]}}},
            "overfit_sets.overfit-64.bands: [2, 9] with samples of 8",
            "from 0 to 8",
        ),
        (
            {"overfit_sets": {"overfit-64": {**SIXTY_FOUR, "samples": 16}}},
            "rollouts.untrained.samples is 8, and the set counts draws of 16 samples",
            "Set overfit_sets.overfit-64.samples to 8",
        ),
        (
            {"rollouts": {"untrained": {"like": "formal", "rows": "val"}}},
            "untrained plays held-out rows",
            "Set rollouts.untrained.rows to train",
        ),
        (
            {"overfit_sets": {"overfit-64": {**SIXTY_FOUR, "per_band": 8}}},
            "runs.control.schedule.problems: a step takes 64 problems, and overfit-64 has 32 rows",
            "raise overfit_sets.overfit-64.per_band",
        ),
        ({"overfit_sets": {"overfit-64": SIXTY_FOUR, "all": SIXTY_FOUR}}, "overfit_sets.all: that name", "another name"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_with_a_way_out(sections: dict[str, Any], what: str, hint: str) -> None:
    with pytest.raises(GenselectError) as caught:
        check(**sections)
    assert what in caught.value.message
    assert hint in caught.value.hint


def test_a_step_that_a_run_does_not_take_is_refused() -> None:
    runs = {"formal": FORMAL, "drawing": {"kind": "formal", "schedule": {"steps": 5}}}
    with pytest.raises(GenselectError, match=r"overfit_sets\.x\.draws\.steps: drawing has no step 6"):
        check(runs=runs, overfit_sets={"x": {"draws": {"run": "drawing", "steps": [1, 6]}}})


def test_a_band_that_the_other_set_lacks_is_refused() -> None:
    runs = {"formal": FORMAL, "first": {"kind": "smoke"}, "second": {"kind": "smoke"}}
    sets = {"overfit-64": SIXTY_FOUR, "x": thirty_two(bands=[2, 6], second_draws={"run": "second"})}
    with pytest.raises(GenselectError, match=r"overfit_sets\.x\.bands: overfit-64 has no rows of band 6"):
        check(runs=runs, overfit_sets=sets)


@pytest.mark.parametrize(
    ("sections", "chain"),
    [
        (
            {
                "runs": {"formal": FORMAL, "control": CONTROL},
                "overfit_sets": {"overfit-64": {"draws": {"run": "control"}}},
            },
            ["runs.control", "overfit_sets.overfit-64", "runs.control"],
        ),
        # A formal run waits for every gate, and so for the control that would train on rows drawn from it.
        (
            {"overfit_sets": {"overfit-64": {"draws": {"run": "formal"}}}},
            ["runs.formal", "runs.control", "overfit_sets.overfit-64", "runs.formal"],
        ),
        (
            {
                "runs": {"a": {**CONTROL, "start": {"run": "b", "step": 1}}, "b": {"kind": "smoke"}, "formal": FORMAL},
                "overfit_sets": {"overfit-64": {"draws": {"run": "a"}}},
            },
            ["runs.a", "overfit_sets.overfit-64", "runs.a"],
        ),
    ],
)
def test_what_waits_for_itself_is_told_as_a_chain(sections: dict[str, Any], chain: list[str]) -> None:
    with pytest.raises(GenselectError) as caught:
        check(**sections)
    assert " -> ".join(chain) in caught.value.message


def test_only_what_decides_an_episode_is_in_a_rollouts_identity() -> None:
    def identity(**changes: Any) -> Any:
        config = check_config(
            {"dataset": {"name": "x"}, "runs": {"formal": {**FORMAL, **changes}}, "rollouts": ROLLOUTS}, "my.yaml"
        )
        return rollout_identity(config.rollouts["untrained"], resolved_runs(config)["formal"])

    same = {"schedule": {"steps": 7}, "optimiser": {"actor_lr": 0.5}, "cards": 2, "tokens": {"actor_budget": 7}}
    for key, value in same.items():
        assert identity(**{key: value}) == identity(), key
    other = {"tokens": {"turn": 7}, "reward": {"cost_per_explore": 0.5}, "temperature": 0.5, "max_turns": 3}
    for key, value in other.items():
        assert identity(**{key: value}) != identity(), key


def test_the_example_of_the_docs_is_accepted(repository: Path) -> None:
    text = (repository / "docs" / "run-directory.md").read_text()
    example = next(block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "overfit-32" in block)
    values = yaml.safe_load(example.replace(", …}", "}"))
    values["runs"]["formal"] = FORMAL
    check(**values)

"""The evaluation fits the runs, or the plan says what does not."""

from __future__ import annotations

from typing import Any

import pytest

from genselect.config import check_config
from genselect.errors import GenselectError
from genselect.plan.evaluation import Plan, arm_identity, evaluation_plan
from genselect.plan.runs import resolved_runs

FORMAL = {"kind": "formal", "schedule": {"steps": 23, "save_every": 5, "anchor_every": 10}}
SECOND = {"extends": "formal", "set": {"seed": 2}}
THIRD = {"extends": "formal", "set": {"seed": 3, "temperature": 0.9}}
CHEAP = {"extends": "formal", "set": {"reward.cost_per_explore": 0.0}}
RUNS = {"smoke": {"kind": "smoke"}, "formal": FORMAL, "second": SECOND}


def plan(runs: dict[str, Any] = RUNS, **evaluation: Any) -> Plan:
    config = check_config({"dataset": {"name": "x"}, "runs": runs, "evaluation": evaluation}, "my.yaml")
    return evaluation_plan(config, resolved_runs(config))


def test_without_anchors_the_last_step_of_each_formal_run_is_compared() -> None:
    found = plan()
    assert list(found.played) == ["untrained", "untrained_selector", "formal@23", "second@23"]
    assert found.hypotheses == tuple(
        (arm, against) for arm in ("formal@23", "second@23") for against in ("untrained", "majority_8")
    )
    assert found.like == "formal"
    assert found.before == ["untrained"]
    assert found.arms[-1] == "adaptive_0.95"


def test_replicates_are_one_arm() -> None:
    found = plan(replicates={"main": ["formal", "second"]})
    assert found.trained == {"main@23": ("formal@23", "second@23")}


def test_the_selector_is_played_before_the_preregistration_when_something_is_compared_with_it() -> None:
    assert plan(against=["untrained_selector"]).before == ["untrained", "untrained_selector"]
    assert "untrained_selector" not in plan(selector={"enabled": False}).played


def test_without_a_formal_run_only_the_baselines_are_left() -> None:
    found = plan({"smoke": {"kind": "smoke"}})
    assert (found.like, found.played, found.hypotheses) == (None, {}, ())


@pytest.mark.parametrize(
    ("runs", "evaluation", "what", "hint"),
    [
        (RUNS, {"anchors": [{"run": "forml", "step": 10}]}, "evaluation.anchors[0].run: there is no run forml",
         "Did you mean formal?"),
        (RUNS, {"anchors": [{"run": "formal", "step": 15}]}, "no save of step 15 of formal is kept", "Kept are steps 10, 20, 23"),
        (RUNS, {"like": "frmal"}, "evaluation.like: there is no run frmal", "Did you mean formal?"),
        (RUNS, {"against": ["majorty_8"]}, "evaluation.against[0]: there is no arm majorty_8", "Did you mean majority_8?"),
        (RUNS, {"exploratory": ["formal@20"]}, "evaluation.exploratory[0]: there is no arm formal@20", "Did you mean formal@23?"),
        (RUNS, {"replicates": {"main": ["formal", "secnd"]}}, "there is no run secnd", "Did you mean second?"),
        (RUNS, {"replicates": {"main": ["formal"]}}, "two runs or more are replicates", "list the runs"),
        (RUNS, {"replicates": {"formal": ["formal", "second"]}}, "that is the name of a run", "a name of its own"),
        ({**RUNS, "cheap": CHEAP}, {"replicates": {"main": ["formal", "cheap"]}},
         "formal and cheap differ not in seed alone: reward.cost_per_explore", "several seeds"),
        (RUNS, {"replicates": {"main": ["formal", "second"]}, "anchors": [{"run": "formal", "step": 20}]},
         "main@20 lacks second", "list that step of each"),
        ({**RUNS, "third": THIRD}, {}, "third plays another episode than formal: temperature", "leave that run out"),
        (RUNS, {"like": "formal", "anchors": [{"run": "smoke", "step": 200}]}, "is of a run of kind smoke",
         "list smoke@200 under evaluation.exploratory"),
        (RUNS, {"against": ["untrained"], "exploratory": ["untrained"]}, "stands under against and under exploratory", "preregistered arm"),
        (RUNS, {"exploratory": ["formal@23", "second@23"]}, "there is no hypothesis", "Leave the policy"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_refused(runs, evaluation, what: str, hint: str) -> None:
    with pytest.raises(GenselectError) as caught:
        plan(runs, **evaluation)
    assert what in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("key", "value"), [("user", "{problem}"), ("candidate", "{text}"), ("user", "{problem} {candidates} {x}")]
)
def test_a_selector_prompt_without_its_fields_is_refused(key: str, value: str) -> None:
    with pytest.raises(GenselectError, match="each once"):
        plan(selector={key: value})


def test_what_decides_an_arm_is_its_identity_and_nothing_else() -> None:
    def identity(arm: str, runs: dict[str, Any] = RUNS, **evaluation: Any) -> dict[str, Any]:
        config = check_config({"dataset": {"name": "x"}, "runs": runs, "evaluation": evaluation}, "my.yaml")
        return arm_identity(config, resolved_runs(config), evaluation_plan(config, resolved_runs(config)), arm)

    first = identity("untrained")
    assert identity("untrained", alpha=0.01, power=0.9, thresholds=[0.7], selector={"prompt_tokens": 9}) == first
    assert identity("untrained", samples=9) != first
    assert identity("untrained_selector", selector={"prompt_tokens": 9}) != identity("untrained_selector")

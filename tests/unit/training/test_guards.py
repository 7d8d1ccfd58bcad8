"""Guards: the study's own broken steps, planted faults, and a healthy run that must stay quiet."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genselect.errors import GenselectError
from genselect.formats import write_json
from genselect.training.guards import (
    DEFAULT_RULES,
    Health,
    Kind,
    Level,
    Rule,
    Settings,
    evaluate,
    record_health,
    settings_from,
)

DEFAULT = Settings()


def healthy(steps: int, seed: int = 0) -> list[dict[str, Any]]:
    """A run that learns as the miniature's did: explores from 4.1 to 2.25, small divergences, a critic of little use."""
    generator = np.random.default_rng(seed)
    series = []
    for step in range(steps):
        progress = step / max(steps - 1, 1)
        noise = generator.normal(size=8)
        series.append(
            {
                "actor/ppo_kl": [float(value) for value in generator.normal(0.004, 0.012, size=4)],
                "actor/entropy": 0.42 - 0.15 * progress + 0.03 * noise[0],
                "actor/grad_norm": 0.8 + 0.1 * noise[1],
                "episode/no_submission_share": max(0.0, 0.04 + 0.02 * noise[2]),
                "episode/zero_explore_share": max(0.0, 0.03 + 0.015 * noise[3]),
                "episode/mean_explores": 4.1 - 1.85 * progress + 0.12 * noise[4],
                "episode/revealed_share": (4.1 - 1.85 * progress) / 8,
                "episode/length_capped_share": max(0.0, 0.03 + 0.01 * noise[5]),
                "critic/mc_explained_variance": 0.05 + 0.03 * noise[6],
                "critic/mc_explained_variance/k8": -0.4 + 0.2 * noise[7],
                "predictor/brier_skill": 0.08 + 0.03 * noise[6],
                "predictor/std": 0.12,
                "timing_s/step": 9.0,
                "critic/warming_up": None,
                "note": "text is no metric",
            }
        )
    return series


def judge(series: list[dict[str, Any]], settings: Settings = DEFAULT, first: int = 1) -> list[Health]:
    return [evaluate(series[:at], series[at], settings, step=first + at) for at in range(len(series))]


def spoken(health: Health) -> set[str]:
    return {finding.guard for finding in health.findings}


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_is_quiet(seed: int) -> None:
    for health in judge(healthy(40, seed)):
        assert health.findings == ()
        assert health.level is Level.HEALTHY


def with_last(changes: list[dict[str, Any]], before: int = 10) -> list[dict[str, Any]]:
    """A healthy series whose last steps have these changes."""
    series = healthy(before + len(changes))
    return series[:before] + [{**step, **change} for step, change in zip(series[before:], changes, strict=True)]


def test_the_studys_kl_of_steps_54_and_55_stops_the_run() -> None:
    series = with_last([{"actor/ppo_kl": [-0.10, -0.12, -0.09]}, {"actor/ppo_kl": [0.40, 1.50, 0.34]}])
    *before, step_54, step_55 = judge(series, first=44)
    assert all(health.level is Level.HEALTHY for health in before)
    assert (step_54.step, step_54.level, spoken(step_54)) == (54, Level.ALARM, {"kl"})
    assert "-0.12" in step_54.findings[0].message
    assert step_55.level is Level.STOP
    assert spoken(step_55) == {"kl", "kl_repeated", "kl_jump"}
    assert "1.5" in step_55.findings[0].message
    assert "Resume from the last healthy anchor" in step_55.findings[0].message


def test_the_studys_policy_without_calls_stops_the_run() -> None:
    change = {
        "episode/no_submission_share": 1.0, "episode/zero_explore_share": 1.0, "episode/mean_explores": 0.0,
        "episode/revealed_share": 0.0, "actor/entropy": 3.4,
    }  # fmt: skip
    health = judge(with_last([change]))[-1]
    assert health.level is Level.STOP
    assert {"never_submits", "entropy_jump", "zero_explores", "explores_fall"} <= spoken(health)
    assert health.policy_suspect
    # Even at the first step of an attempt, whose history is empty.
    assert evaluate([], change, DEFAULT, step=56).level is Level.STOP


def test_the_studys_kl_of_step_61_is_an_alarm_and_no_stop() -> None:
    # That policy went on to the run's best verdict at step 62, so one such step alone stops nothing.
    *_, health = judge(with_last([{"actor/ppo_kl": [0.106, 0.479, 0.154]}]))
    assert (health.level, spoken(health)) == (Level.ALARM, {"kl"})


def test_the_studys_fall_to_one_explore_is_an_alarm() -> None:
    base = healthy(3)
    explores = [(1.76, 13), (2.08, 28), (1.02, 107)]
    series = [
        {
            **step,
            "episode/mean_explores": mean,
            "episode/revealed_share": mean / 8,
            "episode/zero_explore_share": n / 512,
        }
        for step, (mean, n) in zip(base, explores, strict=True)
    ]
    first, second, third = judge(series, first=51)
    assert first.level is second.level is Level.HEALTHY
    assert (third.level, spoken(third)) == (Level.ALARM, {"explores_fall", "zero_explores"})
    assert "1.02" in next(finding.message for finding in third.findings if finding.guard == "explores_fall")


def test_a_constant_predictor_is_caught() -> None:
    change = {"predictor/std": 0.0, "predictor/brier_skill": -0.002}
    first, *_, last = judge(with_last([change] * 5))[-5:]
    assert (first.level, spoken(first)) == (Level.ALARM, {"predictor_constant"})
    assert spoken(last) == {"predictor_constant", "predictor_useless"}
    # It says nothing against the policy's saves.
    assert not last.policy_suspect


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float32("nan"), [0.1, math.nan], np.array([1.0, -math.inf])])
@pytest.mark.parametrize("metric", ["actor/grad_norm", "critic/loss", "predictor/brier"])
def test_anything_that_is_not_finite_stops(metric: str, value: Any) -> None:
    health = judge(with_last([{metric: value}]))[-1]
    assert (health.level, spoken(health)) == (Level.STOP, {"non_finite"})
    assert metric in health.findings[0].message
    lenient = Settings(may_be_non_finite=(metric,))
    assert judge(with_last([{metric: value}]), lenient)[-1].level is Level.HEALTHY


@pytest.mark.parametrize(
    ("change", "steps", "guard", "level"),
    [
        ({"episode/no_submission_share": 0.4}, 1, "no_submission", Level.ALARM),
        ({"episode/revealed_share": 0.99, "episode/mean_explores": 3.0}, 3, "explores_all", Level.NOTE),
        ({"episode/length_capped_share": 0.3}, 1, "length_capped", Level.ALARM),
        ({"actor/entropy": 1.1}, 1, "entropy_rise", Level.ALARM),
        ({"critic/mc_explained_variance": -0.01}, 5, "critic_useless", Level.NOTE),
        ({"critic/mc_explained_variance": -0.6}, 3, "critic_harmful", Level.ALARM),
        ({"critic/mc_explained_variance/k0": -2.0, "critic/mc_explained_variance/k3": 0.5}, 3, "critic_harmful_by_k", Level.NOTE),
        ({"predictor/brier_skill": -0.7}, 3, "predictor_harmful", Level.ALARM),
    ],
)  # fmt: skip
def test_each_guard_speaks_on_its_fault_after_its_patience(change: dict, steps: int, guard: str, level: Level) -> None:
    judged = judge(with_last([change] * steps))
    assert all(guard not in spoken(health) for health in judged[:-1])
    assert {finding.guard: finding.level for finding in judged[-1].findings}.get(guard) is level


def test_every_default_guard_tells_what_to_do_and_is_described(repository: Path) -> None:
    text = (repository / "docs" / "guards.md").read_text()
    for rule in DEFAULT_RULES:
        assert rule.advice.endswith(".")
        assert f"| `{rule.name}` |" in text
        assert f"{rule.limit:g}" in text.split(f"| `{rule.name}` |")[1].split("\n")[0]


def test_patience_needs_consecutive_steps_and_warm_up_waits() -> None:
    rule = Rule("low", "x", Kind.BELOW, 0.0, Level.STOP, patience=2, warm_up=3)
    values = [-1, -1, -1, 1, -1, None, -1, -1, -1]
    series = [{"x": value} for value in values]
    levels = [health.level for health in judge(series, Settings((rule,)))]
    assert [level is Level.STOP for level in levels] == [False] * 7 + [True, True]
    # The warm-up counts steps, and what happened in it still counts towards the patience.
    assert judge([{"x": -1}] * 4, Settings((rule,)))[3].level is Level.STOP
    assert judge([{"x": -1}] * 3, Settings((rule,)))[2].level is Level.HEALTHY


def test_a_configuration_changes_adds_and_removes_guards() -> None:
    changed = settings_from(
        {
            "kl": {"limit": 0.05, "level": "stop"},
            "length_capped": None,
            "slow": {"metric": "timing_s/step", "kind": "above", "limit": 60, "level": "note"},
        }
    )
    rules = {rule.name: rule for rule in changed.rules}
    assert (rules["kl"].limit, rules["kl"].level, rules["kl"].metric) == (0.05, Level.STOP, "actor/ppo_kl")
    assert "length_capped" not in rules
    health = evaluate(
        [], {"timing_s/step": 99.0, "actor/ppo_kl": -0.06, "episode/length_capped_share": 1.0}, changed, step=1
    )
    assert [finding.guard for finding in health.findings] == ["kl", "slow"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"kll": {"limit": 0.05}}, "Did you mean kl?"),
        ({"kl": {"limt": 0.05}}, "Did you mean limit?"),
        ({"kl": {"level": "alrm"}}, "Did you mean alarm?"),
        ({"kl": {"patience": 0}}, "patience 0"),
        ({"kl": {"limit": math.nan}}, "limit nan"),
        ({"new": None}, "needs metric, kind, limit, level"),
    ],
)
def test_a_faulty_configuration_is_refused(overrides: dict, words: str) -> None:
    with pytest.raises(GenselectError, match=words.replace("?", r"\?")):
        settings_from(overrides)


def run_log(series: list[dict[str, Any]], first: int, saves: list[int]) -> dict[str, Any]:
    log: dict[str, Any] | None = None
    for health in judge(series, first=first):
        log = record_health(log, health, [save for save in saves if save <= health.step])
    assert log is not None
    return log


def test_the_log_of_the_studys_collapse_names_step_50_and_marks_the_saves_after_it(tmp_path: Path) -> None:
    series = with_last([{"actor/ppo_kl": [-0.10, -0.12, -0.09]}, {"actor/ppo_kl": [0.40, 1.50, 0.34]}], before=4)
    log = run_log(series, first=50, saves=[45, 50, 55])
    assert (log["step"], log["level"], log["last_healthy_anchor"], log["broken_saves"]) == (55, "stop", 50, [55])
    assert log["findings"][0]["level"] == "stop"
    assert [entry["level"] for entry in log["steps"]] == ["healthy"] * 4 + ["alarm", "stop"]
    write_json(tmp_path / "health.json", log)
    assert json.loads((tmp_path / "health.json").read_text()) == log


def test_a_save_is_convicted_by_the_episodes_it_plays() -> None:
    # Step 55's own figures were fine; step 56 plays the policy saved there, and it makes no call.
    series = with_last([{"episode/no_submission_share": 1.0}], before=6)
    log = run_log(series, first=50, saves=[50, 55])
    assert (log["step"], log["last_healthy_anchor"], log["broken_saves"]) == (56, 50, [55])


def test_a_resumed_run_rewrites_the_steps_it_redoes() -> None:
    log = run_log(with_last([{"actor/ppo_kl": [2.0]}], before=5), first=50, saves=[50, 55])
    assert (log["level"], log["worst_level"]) == ("stop", "stop")
    log = record_health(log, evaluate([], healthy(1)[0], DEFAULT, step=51), [50])
    assert [entry["step"] for entry in log["steps"]] == [50, 51]
    assert (log["level"], log["worst_level"], log["last_healthy_anchor"], log["broken_saves"]) == (
        "healthy",
        "healthy",
        50,
        [],
    )
    none = record_health(None, evaluate([], {"actor/ppo_kl": math.nan}, DEFAULT, step=1), [1])
    assert (none["last_healthy_anchor"], none["broken_saves"]) == (None, [1])

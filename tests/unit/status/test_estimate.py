"""What a plan will cost: nothing guessed, totals that add up, a disk that is too small refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from genselect.config.training import Predictor, Run
from genselect.errors import GenselectError
from genselect.memory import model_architecture
from genselect.status.estimate import Job, check_disk, estimate, foreseen_save_bytes, text

FORMAL = Run.model_validate({"kind": "formal", "schedule": {"steps": 20, "save_every": 5, "anchor_every": 10}})
RUNS = {
    "formal": FORMAL,
    "again": FORMAL,
    "small": FORMAL.model_copy(update={"schedule": FORMAL.schedule.model_copy(update={"samples": 2})}),
}
JOBS = [Job("label_shard", "1-of-4", 1, 1440), Job("train_run", "formal", 8, 7200), Job("build_rows", "", 0, 60)]
SAVE = 5000


def trained(results: Path, run: str, step_s: float = 90.0) -> None:
    """A run of which three steps and a save are there."""
    folder = results / "runs" / run
    save = folder / "checkpoints" / "global_step_5"
    save.mkdir(parents=True)
    (save / "weights.pt").write_bytes(b"w" * SAVE)
    (save / "complete.json").write_text("")
    lines = [{"step": step, "timing_s/step": step_s + step} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def cost_of(jobs: list[Job], results: Path, rule: str):
    return next(cost for cost in estimate(jobs, RUNS, results, results / "benchmarks") if cost.job.rule == rule)


def test_before_anything_was_timed_only_the_limits_are_told(tmp_path: Path) -> None:
    costs = estimate(JOBS, RUNS, tmp_path, tmp_path / "benchmarks")
    assert [cost.job.rule for cost in costs] == ["train_run", "label_shard", "build_rows"]
    told = text(costs)
    assert "card hours: 984.0 at most; expected: unknown" in told
    assert "disk: 0.0 GiB of saves without 1 run(s) of which no save is there to measure" in told
    assert "build_rows" not in told
    assert "3 jobs; 1 of them take no card and little disk" in told


def test_steps_of_a_run_of_the_same_size_give_the_hours(tmp_path: Path) -> None:
    trained(tmp_path, "again")
    cost = cost_of(JOBS, tmp_path, "train_run")
    assert cost.expected_h == pytest.approx(20 * 92 / 3600)
    # Saves kept: anchors 10 and 20, the last of which is the latest.
    assert cost.disk == 2 * SAVE
    told = text(estimate(JOBS, RUNS, tmp_path, tmp_path / "benchmarks"))
    assert f"expected: {20 * 92 / 3600 * 8:.1f}, without 1 job(s) that nobody has timed yet" in told


def test_a_run_of_another_size_says_nothing_about_the_hours(tmp_path: Path) -> None:
    trained(tmp_path, "small")
    assert cost_of(JOBS, tmp_path, "train_run").expected_h is None


def test_the_configurations_own_seconds_come_first(tmp_path: Path) -> None:
    trained(tmp_path, "again")
    runs = {**RUNS, "formal": FORMAL.model_copy(update={"step_s": 1800.0})}
    cost = next(iter(estimate(JOBS[1:2], runs, tmp_path, tmp_path / "benchmarks")))
    assert cost.expected_h == pytest.approx(10.0)


def test_what_a_run_has_on_disk_is_not_needed_again(tmp_path: Path) -> None:
    trained(tmp_path, "formal")
    assert cost_of(JOBS, tmp_path, "train_run").disk == SAVE


def test_a_job_that_ran_before_is_expected_to_take_as_long(tmp_path: Path) -> None:
    clock = tmp_path / "benchmarks" / "label_shard" / "1-of-4.tsv"
    clock.parent.mkdir(parents=True)
    clock.write_text("s\th:m:s\n7200.0\t2:00:00\n")
    assert cost_of(JOBS, tmp_path, "label_shard").expected_h == pytest.approx(2.0)


def test_a_disk_that_cannot_hold_the_saves_is_refused(tmp_path: Path, monkeypatch) -> None:
    trained(tmp_path, "again")
    costs = estimate(JOBS, RUNS, tmp_path, tmp_path / "benchmarks")
    check_disk(costs, tmp_path / "not" / "there")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 2 * SAVE - 1}))
    with pytest.raises(GenselectError, match=r"the plan leaves .* of saves.*most of it: formal") as caught:
        check_disk(costs, tmp_path)
    assert "anchor_every" in caught.value.hint


def test_before_there_is_a_save_its_size_is_counted_from_the_trained_weights(tmp_path: Path) -> None:
    model = model_architecture("Qwen/Qwen3.5-9B")
    cost = next(iter(estimate(JOBS[1:2], RUNS, tmp_path, tmp_path / "benchmarks", model)))
    # Two kept saves of three adapters of 205 million weights, each with two moments, in 32 bits.
    assert cost.disk is not None
    assert cost.disk / 2**30 == pytest.approx(2 * 3 * 12 * 0.205e9 / 2**30, rel=0.01)
    alone = FORMAL.model_copy(update={"algorithm": "grpo", "predictor": Predictor(enabled=False)})
    assert foreseen_save_bytes(model, alone) < foreseen_save_bytes(model, FORMAL) / 2.9


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, "train_run formal  "),
        ({"layout": {"rollout": 3, "judge": 1}}, "train_run formal (4 train, 3 roll out, 1 judge)  "),
        ({"layout": {"judge": 1}, "schedule": {"mini_batch": 7}}, "train_run formal (7 train, 1 judge)  "),
        ({"nodes": 2}, "train_run formal (2 nodes)  "),
    ],
)
def test_a_layout_is_told_beside_the_cards(tmp_path: Path, changed: dict[str, object], told: str) -> None:
    run = Run.model_validate({"kind": "formal", "cards": 8, **changed})
    assert told in text(estimate(JOBS[1:2], {"formal": run}, tmp_path, tmp_path / "benchmarks"))

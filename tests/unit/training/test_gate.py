"""A gate passes on what a run shows, names what failed with its numbers, and can be waived only by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.formats import read_json
from genselect.training.gate import check_gate


def run_directory(folder: Path, verdicts: list[float], proof: bool = True, **metrics: Any) -> Path:
    lines = [
        {"step": step, "attempt": 1, "episode/verdict": verdict, "actor/ppo_kl": 0.01, **metrics}
        for step, verdict in enumerate(verdicts, start=1)
    ]
    # A validation before the first step has no episode figures.
    lines.insert(0, {"step": 0, "attempt": 1, "val/verdict": 0.4})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "proofs").mkdir(exist_ok=True)
    shown = {
        "name": "critic_first_value",
        "passed": proof,
        "numbers": {},
        "message": "largest std within a question 0.04",
    }
    (folder / "proofs" / "step_1.json").write_text(json.dumps([shown]))
    return folder


def judge(tmp_path: Path, run: Run, waived: dict[str, str] | None = None, **directory: Any) -> dict[str, Any]:
    folder = run_directory(tmp_path / "run", **directory)
    return check_gate("smoke", run, folder, tmp_path / "gate.json", waived or {})


def test_a_healthy_run_passes_and_its_numbers_are_kept(tmp_path: Path) -> None:
    run = Run(kind="smoke", assertions=["abs(actor/ppo_kl) < 0.05"])
    judge(tmp_path, run, verdicts=[0.5])
    verdict = read_json(tmp_path / "gate.json")
    assert verdict["passed"] is True
    assert verdict["waived"] is None
    assert [check["check"] for check in verdict["checks"]] == ["proof critic_first_value", "abs(actor/ppo_kl) < 0.05"]
    assert verdict["last_metrics"]["episode/verdict"] == 0.5


def test_a_failed_proof_fails_the_gate_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(GenselectError, match=r"gate smoke fails") as caught:
        judge(tmp_path, Run(kind="smoke"), verdicts=[0.5], proof=False)
    assert "largest std within a question 0.04" in str(caught.value)
    assert not (tmp_path / "gate.json").exists()


def test_a_failed_assertion_names_the_value(tmp_path: Path) -> None:
    run = Run(kind="smoke", assertions=["abs(actor/ppo_kl) < 0.05"])
    with pytest.raises(GenselectError, match=r"0\.2"):
        judge(tmp_path, run, verdicts=[0.5], **{"actor/ppo_kl": 0.2})


def test_a_waived_gate_passes_on_with_its_reason(tmp_path: Path) -> None:
    judge(tmp_path, Run(kind="smoke"), {"smoke": "known fault, issue 7"}, verdicts=[0.5], proof=False)
    verdict = read_json(tmp_path / "gate.json")
    assert (verdict["passed"], verdict["waived"]) == (False, "known fault, issue 7")


@pytest.mark.parametrize(
    ("verdicts", "passes"), [([0.45, 0.6, 0.9, 0.88, 0.86], True), ([0.45, 0.5, 0.9, 0.4, 0.5], False)]
)
def test_an_overfitting_control_must_rise_over_several_steps(
    tmp_path: Path, verdicts: list[float], passes: bool
) -> None:
    run = Run(kind="overfit", min_gain=0.3, schedule={"critic_warmup": 1})
    if passes:
        judge(tmp_path, run, verdicts=verdicts)
    else:
        with pytest.raises(GenselectError, match="the training verdict rises"):
            judge(tmp_path, run, verdicts=verdicts)


def test_a_memory_check_is_part_of_the_gate_and_its_absence_is_told(tmp_path: Path) -> None:
    run = Run(kind="smoke", synthetic_steps=2)
    with pytest.raises(GenselectError, match=r"no memory_check\.json, and the run asks for synthetic_steps"):
        judge(tmp_path, run, verdicts=[0.5])
    report = {"device": "cpu", "steps": [{"stages": []}], "real_step": {"peaks": {}}, "measured": {"update_actor": 2.0}}
    (tmp_path / "run" / "memory_check.json").write_text(json.dumps(report))
    with pytest.raises(GenselectError, match=r"1 of 2 synthetic steps; largest peak 2\.00 GiB, in update_actor"):
        judge(tmp_path, run, verdicts=[0.5])
    report["steps"] *= 2
    (tmp_path / "run" / "memory_check.json").write_text(json.dumps(report))
    assert judge(tmp_path, run, verdicts=[0.5])["passed"] is True


def test_the_rise_is_measured_from_all_that_the_untrained_policy_played(tmp_path: Path) -> None:
    # A lucky first step must not fail a control that learns: with a warm-up of two, two steps are the untrained policy's.
    verdicts = [0.61, 0.41, 0.6, 0.75, 0.8, 0.85]
    warm = Run(kind="overfit", min_gain=0.25, schedule={"critic_warmup": 2})
    assert judge(tmp_path, warm, verdicts=verdicts)["passed"] is True
    with pytest.raises(GenselectError, match=r"from 0\.610 over the first 1 to 0\.800 over the last 3 step"):
        judge(tmp_path, Run(kind="overfit", min_gain=0.25, schedule={"critic_warmup": 0}), verdicts=verdicts)

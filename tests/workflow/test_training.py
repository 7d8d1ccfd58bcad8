"""The miniature trains: base model, smoke run and gate, a formal run that is stopped and goes on, another one that goes on from it,
on Slurm where there is one. Real verl, Ray and vLLM."""

from __future__ import annotations

import csv
import html
import json
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
import yaml
from cluster import Slurm, why_not

from genselect.provenance import check_seal, file_sha256
from genselect.training.records import read_records, recorded_steps
from processes import running, trainer_below

# A verl launch takes one to two minutes on two cores before its first step.
pytestmark = pytest.mark.timeout(1800)
STEPS = 4
_CHANGES = {
    "algorithm": "grpo",
    "predictor.enabled": False,
    "potential": [],
    "start.run": "formal",
    "start.step": STEPS,
    "schedule.steps": STEPS + 1,
    "schedule.validate_every": 0,
}
#: Goes on from the formal run's last save with another algorithm, without critic and predictor.
CONTINUED = {"extends": "formal", "set": _CHANGES, "expect_difference": list(_CHANGES)}
ONE_STEP = {
    "steps": 1,
    "samples": 4,
    "mini_batch": 4,
    "epochs": 1,
    "critic_warmup": 0,
    "validate_every": 0,
    "save_every": 1,
}


@pytest.fixture(scope="module")
def training(selected, tmp_path_factory):
    """A copy of the data, base model and chosen rows in which smoke run, overfitting control and their gates have been made."""
    root = tmp_path_factory.mktemp("training") / "checkout"
    shutil.copytree(selected.root, root, symlinks=True)
    copy = type(selected)(root)
    copy.configure(
        [
            ("runs.formal.schedule.steps", STEPS),
            ("runs.formal.schedule.save_every", 2),
            ("runs.formal.schedule.validate_every", STEPS),
            ("runs.formal.potential", [{"name": "submit_probability", "weight": 0.1}]),
            ("runs.continued", CONTINUED),
            # One step, to see that it trains on the chosen rows; whether it learns is the benchmarks' affair.
            ("runs.overfit.schedule", {**ONE_STEP, "problems": 4}),
            ("runs.overfit.min_gain", -1.0),
            ("evaluation.anchors", [{"run": "formal", "step": STEPS}]),
            ("evaluation.selector.enabled", False),
        ]
    )
    # Another run is compared than the one that was registered there: register again, before it starts.
    for name in ("preregistration.json", "preregistration.json.seal.json"):
        (root / "results" / "evaluation" / "mini" / name).unlink()
    copy.snakemake("gates", timeout=1500)
    return copy


def test_the_base_model_plays_well_formed_episodes_at_the_mean_candidates_accuracy(training) -> None:
    folder = training.root / "results" / "models" / "mini"
    assert check_seal(folder / "base_model.json") is not None
    measured = json.loads((folder / "base_model.json").read_text())["evaluation"]
    assert measured["plain"]["well_formed"] > 0.9
    assert abs(measured["plain"]["accuracy"] - measured["mean_candidate"]) < 0.15
    # The skill is in the network, under another prompt: that is what RL has to find.
    assert measured["careful"]["accuracy"] > measured["plain"]["accuracy"] + 0.15


def test_the_smoke_gate_proves_the_trainer(training) -> None:
    verdict = json.loads((training.root / "results" / "gates" / "smoke.json").read_text())
    assert verdict["passed"] is True
    names = {check["check"] for check in verdict["checks"]}
    assert {
        "proof predictor_k0",
        "proof critic_first_value",
        "proof first_update_on_policy",
        "proof rollout_matches_actor",
        "proof packed_actor",
        "proof packed_critic",
        "proof packed_predictor",
    } <= names
    records = read_records(training.root / "results" / "runs" / "smoke" / "records" / "step_1.parquet")
    assert len(records) == 64
    assert {row.end for row in records} <= {"submit", "no_call", "turns", "length"}
    assert sum(row.well_formed for row in records) > 50
    for row in records:
        assert row.score == pytest.approx(
            float(row.verdict) + 0.1 * (row.well_formed and not row.verdict) - 0.02 * row.revealed
        )


def test_the_smoke_runs_launch_is_the_memory_check_too(training) -> None:
    report = json.loads((training.root / "results" / "runs" / "smoke" / "memory_check.json").read_text())
    (step,) = report["steps"]
    stages = {stage["stage"]: stage for stage in step["stages"]}
    assert set(stages) == {
        "log_probs", "update_actor", "values", "update_critic", "predictions", "update_predictor"
    }  # fmt: skip
    for name, stage in stages.items():
        # A whole micro-batch of the longest rows: 16 rows of 64 + 448 tokens at most.
        assert (stage["rows"], 7900 < stage["tokens"] <= 16 * 512) == (16, True), name
        assert stage["seconds"] > 0
        assert all(0.5 < rank["peak"] < 8 for ranks in stage["peaks"].values() for rank in ranks), name
    assert report["real_step"]["trajectories"] == 64
    assert report["real_step"]["step_seconds"] > report["real_step"]["timing_s"]["update_actor"] > 0
    # The made-up rows left the policy as it was: the real step's first update still compares it with itself.
    proofs = json.loads((training.root / "results" / "runs" / "smoke" / "proofs" / "step_1.json").read_text())
    on_policy = next(proof for proof in proofs if proof["name"] == "first_update_on_policy")
    assert on_policy["numbers"]["pg_clipfrac"] == 0
    assert abs(on_policy["numbers"]["ppo_kl"]) < 1e-6
    checked = json.loads((training.root / "results" / "gates" / "smoke.json").read_text())["checks"]
    assert any(check["check"].startswith("memory check") for check in checked)


def test_the_overfitting_control_trains_on_the_chosen_rows(training) -> None:
    assert json.loads((training.root / "results" / "gates" / "overfit.json").read_text())["passed"] is True
    with (training.root / "results" / "data" / "mini" / "overfit" / "control" / "selection.csv").open() as handle:
        chosen = {line["question_id"] for line in csv.DictReader(handle)}
    records = read_records(training.root / "results" / "runs" / "overfit" / "records" / "step_1.parquet")
    assert {row.question_id for row in records} == chosen


def launched(training) -> subprocess.Popen[str]:
    command = ["snakemake", "--profile", "profiles/mini", "results/runs/formal/done.json"]
    return subprocess.Popen(
        command, cwd=training.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def test_a_stopped_run_saves_goes_on_and_ends_as_if_it_had_not_been_stopped(training) -> None:
    directory = training.root / "results" / "runs" / "formal"
    said = []
    process = launched(training)
    assert process.stdout is not None
    family: list[psutil.Process] = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("step 1/"):
            trainer = trainer_below(process.pid)
            family = trainer.children(recursive=True)
            trainer.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) != 0, "".join(said)
    manifest = json.loads((directory / "manifest.json").read_text())
    registered = training.root / "results" / "evaluation" / "mini" / "preregistration.json"
    assert manifest["context"]["preregistration_sha256"] == file_sha256(registered)
    stopped = manifest["attempts"]
    assert stopped[0]["reason"] == "signal", "".join(said)
    assert stopped[0]["exit_code"] == 75
    # Nothing of Ray or vLLM outlives the attempt.
    _, alive = psutil.wait_procs(family, timeout=20)
    assert running(alive) == []

    again = training.snakemake("results/runs/formal/done.json", timeout=1500)
    attempts = json.loads((directory / "manifest.json").read_text())["attempts"]
    assert [attempt["reason"] for attempt in attempts] == ["signal", "done"]
    assert attempts[1]["resumed_from"] == 2, "stopped in step 2, which was saved at its end"
    assert f"step {STEPS}/{STEPS}" in again.stdout + again.stderr
    # Every step once: nothing lost, nothing trained twice.
    assert recorded_steps(directory / "records") == list(range(1, STEPS + 1))
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    trained = [line["step"] for line in lines if "episode/verdict" in line]
    assert trained == list(range(1, STEPS + 1))
    assert json.loads((directory / "done.json").read_text())["steps"] == STEPS
    rows = read_records(directory / "records" / f"step_{STEPS}.parquet")
    assert any(row.shaping != 0 for row in rows)
    for row in rows:
        # With gamma 1 an episode's shaping is minus its first state's potential.
        assert row.shaping == pytest.approx(-row.decision_phi[0])


@pytest.fixture(scope="module")
def continued(training, tmp_path_factory):
    """The run that goes on from the formal one has been made, as a job of a real Slurm where one can be started, with a card that is
    none; its jobs."""
    target = "results/runs/continued/done.json"
    if why_not() is not None:
        training.snakemake(target, timeout=1500)
        return []
    values = yaml.safe_load((training.root / "profiles" / "slurm" / "config.yaml").read_text())
    values |= {"max-status-checks-per-second": 10, "slurm-init-seconds-before-status-checks": 1}
    values["set-resources"]["train_run"] |= {"gpu": 1, "mem_mb": 16000}
    (training.root / "my-slurm").mkdir()
    (training.root / "my-slurm" / "config.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    with Slurm(tmp_path_factory.mktemp("slurm") / "cluster") as slurm:
        training.snakemake(target, profile="my-slurm", timeout=1500)
        return slurm.jobs()


def test_a_training_runs_as_a_slurm_job(training, continued) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    (job,) = continued
    assert (job["rule"], job["state"], job["cards"]) == (
        "rule_train_run_wildcards_continued",
        "COMPLETED",
        "gres:gpu:1",
    )
    directory = training.root / "results" / "runs" / "continued"
    (attempt,) = json.loads((directory / "manifest.json").read_text())["attempts"]
    assert attempt["reason"] == "done"
    assert attempt["slurm"]["SLURM_JOB_ID"] == job["id"]
    assert json.loads((directory / "done.json").read_text())["steps"] == STEPS + 1


def test_a_run_starts_from_another_runs_save_with_grpo(training, continued) -> None:
    directory = training.root / "results" / "runs" / "continued"
    assert recorded_steps(directory / "records") == [STEPS + 1]
    rows = read_records(directory / "records" / f"step_{STEPS + 1}.parquet")
    assert len(rows) == 64
    assert all(row.shaping == 0 and row.decision_logits == () and row.decision_values == () for row in rows)
    # The other run's save stays where it is, and is marked as somebody's start, so that rotation leaves it.
    source = training.root / "results" / "runs" / "formal" / "checkpoints" / f"global_step_{STEPS}"
    assert (source / "start_of" / "continued").exists()
    assert (source / "data.pt").exists()


def test_the_whole_ends_with_the_comparison_and_the_report(training) -> None:
    done = training.snakemake(timeout=1500)
    results = training.root / "results"
    comparison = json.loads((results / "evaluation" / "mini" / "comparison.json").read_text())
    assert [entry["name"] for entry in comparison["hypotheses"]] == [
        f"formal@{STEPS} above untrained",
        f"formal@{STEPS} above majority_8",
    ]
    page = (results / "report" / "mini" / "index.html").read_text()
    for entry in comparison["hypotheses"]:
        sentence = entry["verdict"]["sentence"]
        assert sentence in done.stdout + done.stderr
        assert sentence in html.unescape(page)
    # The stop, the resume and how the other run differs can be seen.
    assert "attempt 1: signal; attempt 2: done, from step 2" in page
    assert "<strong>continued</strong> from formal: " in page
    assert 'algorithm: "ppo" -> "grpo"' in html.unescape(page)
    figures = results / "report" / "mini" / "figures"
    for picture in (
        "forest",
        "accuracy",
        "cost",
        "strata",
        "rules",
        "data_flow",
        "formal/training",
        "formal/reliability",
    ):
        svg = figures / f"{picture}.svg"
        assert svg.read_text().rstrip().endswith("</svg>")
        assert svg.with_suffix(".png").read_bytes()[1:4] == b"PNG"
    assert "make_base_model" in (results / "report" / "mini" / "rules.dot").read_text()
    again = training.snakemake("-n")
    assert "Nothing to be done" in again.stdout + again.stderr


def test_snakemakes_own_report_holds_every_picture_with_its_caption(training) -> None:
    target = "results/report/mini/snakemake.html"
    training.snakemake("--report", target)
    text = (training.root / target).read_text()
    figures = (training.root / "results" / "report" / "mini" / "figures").rglob("*.svg")
    assert all(path.name in text for path in figures)
    assert "Did the trained policy rise above what it is compared with?" in text


def test_a_used_directory_is_refused_for_other_settings(training) -> None:
    training.configure([("runs.smoke.optimiser.actor_lr", 0.5)])
    (training.root / "results" / "runs" / "smoke" / "done.json").unlink()
    done = training.snakemake("results/runs/smoke/done.json", check=False)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "run.optimiser.actor_lr" in said
    assert "Hint: " in said
    assert Path(training.root, "results/runs/smoke/records/step_1.parquet").exists()


def test_the_attempts_log_has_the_trainers_chatter_and_the_terminal_has_not(training) -> None:
    log = training.root / "results" / "runs" / "smoke" / "attempts" / "1.log"
    assert log.stat().st_size > 10_000
    assert (training.root / "results" / "logs" / "mini" / "train_run" / "smoke.log").stat().st_size < 5_000

"""Whatever ends a job or the Snakemake that watches it: the same command again, and nothing is lost or trained twice."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Callable

import pytest
from cluster import wait_for
from study import Study

pytestmark = pytest.mark.soak

RUN = "results/runs/run/done.json"
Training = Callable[..., Study]


def gone(study: Study) -> bool:
    """Whether no job is left in the queue."""
    return all(job["state"] not in {"RUNNING", "PENDING", "COMPLETING"} for job in study.slurm.jobs())


def test_before_the_time_limit_the_trainer_saves_and_the_retry_goes_on(training: Training) -> None:
    study = training(steps=60, save_every=1000, step_s=1.0)
    # The trainer leaves itself two minutes and a step.
    study.profile(train={"runtime": 3})
    study.snakemake(RUN, timeout=800)
    assert study.redone("run", 60) == []
    assert study.reasons("run")[-1] == "done"
    assert set(study.reasons("run")[:-1]) == {"time_limit"}, "no attempt was killed at its limit"


def test_ctrl_c_cancels_the_jobs(training: Training) -> None:
    study = training(steps=30, save_every=4, step_s=1.0)
    with study.start(RUN) as driver:
        study.wait_for_step("run", 6)
        driver.send(signal.SIGINT)
        assert driver.wait(60) != 0
    wait_for(lambda: gone(study), "the end of the cancelled job", 30)
    assert max(study.steps("run")) < 30
    study.snakemake(RUN)
    assert len(study.redone("run", 30)) < 4, "only what lay beyond the last save is trained again"
    assert study.reasons("run") == ["killed", "done"]


def test_sigterm_lets_running_jobs_end(training: Training) -> None:
    study = training(steps=20)
    with study.start(RUN) as driver:
        study.wait_for_step("run", 3)
        driver.send(signal.SIGTERM)
        driver.wait(120)
    assert study.redone("run", 20) == []
    assert "Nothing to be done" in study.snakemake(RUN).stderr
    assert study.reasons("run") == ["done"]


def test_after_a_killed_snakemake_the_job_goes_on_and_counts(training: Training) -> None:
    study = training(steps=20)
    with study.start(RUN) as driver:
        study.wait_for_step("run", 3)
        driver.send(signal.SIGKILL)
        driver.wait(10)
    assert study.slurm.running("train_run"), "the job does not need the Snakemake that submitted it"
    refused = study.snakemake(RUN, check=False)
    assert "Directory cannot be locked" in refused.stdout + refused.stderr
    wait_for(lambda: gone(study), "the end of the job", 120)
    study.snakemake("--unlock")
    study.snakemake(RUN)
    assert study.redone("run", 20) == []


def test_a_second_snakemake_beside_a_job_that_still_runs_trains_nothing_twice(training: Training) -> None:
    study = training(steps=40, cards=2)
    with study.start(RUN) as driver:
        study.wait_for_step("run", 3)
        driver.send(signal.SIGKILL)
        driver.wait(10)
    study.snakemake("--unlock")
    # Two of eight cards: the second job starts at once, finds the run directory taken and leaves; a retry comes after the first is done,
    # or the retries run out and the same command is needed once more.
    second = study.snakemake(RUN, check=False)
    assert "another attempt is running" in second.stdout + second.stderr + study.logs()
    wait_for(lambda: gone(study), "the end of the jobs", 120)
    study.snakemake(RUN)
    assert study.redone("run", 40) == []


def test_an_outage_of_the_controller_stops_no_training(training: Training) -> None:
    study = training(steps=40)
    with study.start(RUN) as driver:
        study.wait_for_step("run", 3)
        study.slurm.stop_controller()
        try:
            study.wait_for_step("run", 30)
            assert driver.process.poll() is None
        finally:
            study.slurm.start_controller()
        wait_for(lambda: gone(study), "the end of the job", 60)
        # In an outage the executor takes to sacct, which never answers where there is no accounting database: it then waits for ever.
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(45)
        driver.send(signal.SIGINT)
        driver.wait(60)
    study.snakemake(RUN)
    assert study.redone("run", 40) == []


@pytest.mark.parametrize("partition", ["low", "lowest"], ids=["with_grace", "without_grace"])
def test_a_preempted_training_goes_on_later(training: Training, partition: str) -> None:
    study = training(steps=40, save_every=4, step_s=1.0)
    study.profile(default={"slurm_partition": partition})
    with study.start(RUN) as driver:
        study.wait_for_step("run", 6)
        other = study.slurm.submit("--partition=high", "--gpus=8", "--nodes=1", "--mem=100", command="sleep 10")
        wait_for(
            lambda: any(job["state"] == "RUNNING" for job in study.slurm.jobs() if job["id"] == other), "the other", 60
        )
        assert not study.slurm.running("train_run")
        assert driver.wait() == 0, driver.said()
    redone, reasons = study.redone("run", 40), study.reasons("run")
    if partition == "low":
        assert redone == [], "within its grace the trainer saves"
        assert reasons == ["time_limit", "done"]
    else:
        assert len(redone) < 4, "only what lay beyond the last save is trained again"
        assert reasons == ["killed", "done"]


def test_a_cancelled_labelling_asks_nothing_twice(study: Study) -> None:
    study.environment["STAND_IN_JUDGE_S"] = "0.3"
    study.configure(judge={"client": {"concurrency": 1}})
    study.snakemake("results/data/mini/merged.jsonl", "--executor", "local", "--cores", "2")
    journal = study.root / "results" / "data" / "mini" / "labels" / "1-of-2" / "journal" / "journal.jsonl"

    def replies() -> list[str]:
        lines = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
        return [line["key"] for line in lines if line["stage"] != "cascade"]

    with study.start("results/data/mini/labels.jsonl") as driver:
        wait_for(lambda: len(replies()) >= 5, "five replies", 120)
        (job,) = [job for job in study.slurm.running("label_shard") if job["rule"].endswith("1-of-2")]
        study.slurm.cancel(job["id"])
        answered = replies()
        assert driver.wait() == 0, driver.said()
    assert replies()[: len(answered)] == answered, "what was answered before is kept"
    assert len(set(replies())) == len(replies()), "and nothing was asked twice"

"""When a run thinks that its job is about to end. No Slurm is needed: ``squeue`` is a script that says what Slurm would."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import pytest

from genselect.training import time_limit
from genselect.training.time_limit import SAVE_S, STEP_SLACK, TimeLimit, job_end


def says(path: Path, text: str, status: int = 0) -> None:
    """Make a ``squeue`` that prints ``text``."""
    program = path / "squeue"
    program.write_text(f"#!/bin/sh\necho '{text}'\nexit {status}\n")
    program.chmod(0o755)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A job of Slurm's, and the folder of its ``squeue``."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_the_end_is_read_as_local_time(job: Path) -> None:
    end = datetime.datetime(2030, 1, 2, 3, 4, 5)
    says(job, end.isoformat())
    assert job_end() == end.timestamp()


@pytest.mark.parametrize(("text", "status"), [("NONE", 0), ("Unknown", 0), ("", 0), ("slurm_load_jobs error", 1)])
def test_no_end_is_no_error(job: Path, text: str, status: int) -> None:
    says(job, text, status)
    assert job_end() is None


def test_outside_slurm_the_end_is_never_near(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert not TimeLimit(tmp_path / "metrics.jsonl").is_near()


def test_a_silent_controller_leaves_the_last_known_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(time_limit, "ASK_EVERY_S", 0.0)
    answers = iter([time.time() + SAVE_S - 10, None])
    limit = TimeLimit(tmp_path / "metrics.jsonl", ask=lambda: next(answers))
    assert limit.is_near()
    assert limit.is_near()


def test_a_long_step_makes_the_end_near_sooner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time_limit.time, "monotonic", lambda: clock[0])
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("a line of an earlier attempt\n")
    end = time.time() + SAVE_S + STEP_SLACK * 600 - 60
    limit = TimeLimit(metrics, ask=lambda: end)
    assert not limit.is_near(), "enough is left for a save and a short step"
    clock[0] += 600
    with metrics.open("a") as file:
        file.write("a line that came after 600 s\n")
    assert limit.is_near(), "but not for another step of 600 s"


def test_steps_of_earlier_attempts_and_the_configuration_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    assert TimeLimit(metrics, ask=lambda: None).needed_s() == SAVE_S
    assert TimeLimit(metrics, step_s=300.0, ask=lambda: None).needed_s() == SAVE_S + STEP_SLACK * 300
    metrics.write_text('{"step": 1, "timing_s/step": 400.0}\n{"step": 2, "timing_s/step": 350.0}\n{"step": 3, "timi')
    assert TimeLimit(metrics, step_s=300.0, ask=lambda: None).needed_s() == SAVE_S + STEP_SLACK * 400

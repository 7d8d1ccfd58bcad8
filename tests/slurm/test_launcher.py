"""The real training program and launcher under Slurm; verl's process below them is a stand-in."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from study import STAND_INS, Study

pytestmark = pytest.mark.soak

RUN = "results/runs/run/done.json"


@pytest.fixture
def launched(training: Callable[..., Study], repository: Path) -> Study:
    """A copy with the real train.py, and a run of 40 steps of 1.5 s that saves only when it must."""
    study = training(steps=40, save_every=1000, cards=1, step_s=1.5)
    shutil.copy(repository / "workflow" / "scripts" / "train.py", study.root / "workflow" / "scripts" / "train.py")
    shutil.copy(STAND_INS / "verl_main.py", study.root / "workflow" / "genselect" / "training" / "main.py")
    return study


def test_it_saves_before_the_job_ends(launched: Study) -> None:
    launched.profile(train={"runtime": 3})
    launched.snakemake(RUN, timeout=800)
    assert launched.redone("run", 40) == []
    reasons = launched.reasons("run")
    assert len(reasons) > 1
    assert reasons == ["time_limit"] * (len(reasons) - 1) + ["done"]


def test_a_gentle_stop(launched: Study) -> None:
    with launched.start(RUN) as driver:
        launched.wait_for_step("run", 3)
        driver.send(signal.SIGTERM)
        (launched.root / "results" / "runs" / "run" / "stop_requested").touch()
        assert driver.wait() != 0
    assert launched.reasons("run") == ["stopped"]
    launched.snakemake(RUN)
    assert launched.redone("run", 40) == []
    assert launched.reasons("run") == ["stopped", "done"]

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


def with_the_launcher(study: Study, repository: Path) -> Study:
    """Put the real train.py into a copy, and the stand-in below it."""
    shutil.copy(repository / "workflow" / "scripts" / "train.py", study.root / "workflow" / "scripts" / "train.py")
    shutil.copy(STAND_INS / "verl_main.py", study.root / "workflow" / "genselect" / "training" / "main.py")
    return study


@pytest.fixture
def launched(training: Callable[..., Study], repository: Path) -> Study:
    """A copy with a run of 40 steps of 1.5 s that saves only when it must."""
    return with_the_launcher(training(steps=40, save_every=1000, cards=1, step_s=1.5), repository)


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


def test_after_a_guards_stop_no_retry_trains(training: Callable[..., Study], repository: Path) -> None:
    study = with_the_launcher(training(steps=6, save_every=1, cards=8), repository)
    study.environment["STAND_IN_JUMP_AT"] = "3"
    stopped = study.snakemake(RUN, check=False)
    assert stopped.returncode != 0
    assert (study.reasons("run"), study.steps("run")) == (["guard"], [1, 2, 3])
    said = stopped.stdout + stopped.stderr + study.logs()
    assert said.count("a guard stopped attempt 1 at step 3, and nothing has changed since") >= 3, "each retry says so"
    held = study.slurm.seconds("train_run")[-3:]
    print("seconds that a refused retry held its cards:", held)
    assert max(held) < 60

    study.environment["STAND_IN_JUMP_AT"] = ""
    (study.root / "results" / "runs" / "run" / "go_on").touch()
    study.snakemake(RUN)
    assert study.reasons("run") == ["guard", "done"]
    assert study.steps("run") == [1, 2, 3, 2, 3, 4, 5, 6], "from the last healthy save"

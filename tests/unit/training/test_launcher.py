"""How an attempt ends and what the next one makes of it: the real launcher over a stand-in for verl's process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from genselect.config import Judge
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.provenance.saves import Saves
from genselect.training import attempt_config, launcher, time_limit, trainer_process

STAND_IN = Path(__file__).parents[2] / "slurm" / "stand_ins" / "verl_main.py"

Start = Callable[..., int]


class Directory:
    """The run directory, as a user sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def attempts(self) -> list[dict[str, Any]]:
        return list(json.loads((self.path / "manifest.json").read_text())["attempts"])

    def reasons(self) -> list[str]:
        return [attempt["reason"] for attempt in self.attempts()]

    def steps(self) -> list[int]:
        lines = [json.loads(line) for line in (self.path / "ledger.jsonl").read_text().splitlines()]
        return [line["step"] for line in lines if line["event"] == "step"]


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "runs" / "run")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """``start(steps=…, save_every=…, jump=…, crash=…, leave=…, takes_s=…, **settings)``: one attempt; returns the exit status."""

    class StandIn(launcher.TrainerProcess):
        def __init__(self, config: Path, *arguments: Any) -> None:
            super().__init__(config, *arguments)
            self._command[-4:] = [sys.executable, str(STAND_IN), str(config)]

    def small(run: Run, launch: Any, extension: Any) -> Any:
        trainer = {"total_training_steps": launch.total_steps, "save_freq": run.schedule.save_every}
        return OmegaConf.create({"genselect": dict(extension), "trainer": trainer})

    monkeypatch.setattr(launcher, "TrainerProcess", StandIn)
    # verl's own table takes seconds to import.
    monkeypatch.setattr(attempt_config, "verl_config", small)
    monkeypatch.setenv("PYTHONPATH", str(Path(launcher.__file__).parents[2]))

    def attempt(steps: int = 4, save_every: int = 1, takes_s: float = 0.05, name: str = "run", **given: Any) -> int:
        monkeypatch.setenv("STAND_IN_STEP_S", str(takes_s))
        for event in ("jump", "crash", "leave"):
            monkeypatch.setenv(f"STAND_IN_{event.upper()}_AT", str(given.pop(event, 0)))
        schedule = {"steps": steps, "save_every": save_every, "anchor_every": None, "validate_every": 0}
        run = Run.model_validate({"kind": "smoke", "schedule": schedule, **given})
        (tmp_path / "model.safetensors").write_bytes(b"weights")
        return launcher.train(
            attempt_config.Inputs(
                name=name, run=run, model=tmp_path, train_rows=tmp_path, val_rows=tmp_path, runs_root=tmp_path / "runs",
                identity={}, candidates=8, template_options={}, judge=Judge(),
            )
        )  # fmt: skip

    return attempt


def job_ends_in(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Make Slurm say so."""
    end = time.time() + seconds
    monkeypatch.setattr(time_limit, "job_end", lambda: end)


def test_after_a_guards_stop_the_same_command_is_refused_at_once(start: Start, directory: Directory) -> None:
    assert start(jump=3) == launcher.GUARD
    assert directory.reasons() == ["guard"]
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(
            GenselectError, match="a guard stopped attempt 1 at step 3, and nothing has changed"
        ) as caught:
            start()
    assert time.monotonic() - began < 2, "no trainer was launched"
    assert "actor/ppo_kl 2 is, in magnitude, over 1" in str(caught.value)
    assert f"from the save of step 1: touch {directory.path / 'go_on'}" in caught.value.hint
    assert directory.reasons() == ["guard"], "a refusal is no attempt"
    assert directory.steps() == [1, 2, 3]


def test_a_person_may_let_it_go_on_once(start: Start, directory: Directory) -> None:
    start(jump=3)
    (directory.path / "go_on").touch()
    assert start(jump=3) == launcher.GUARD
    assert directory.steps() == [1, 2, 3, 2, 3], "from the last healthy save"
    with pytest.raises(GenselectError, match="a guard stopped attempt 2"):
        start()
    (directory.path / "go_on").touch()
    assert start() == 0
    assert directory.reasons() == ["guard", "guard", "done"]


def test_changed_guards_are_word_enough(start: Start, directory: Directory) -> None:
    start(jump=3)
    assert start(jump=3, guards={"kl_jump": {"limit": 5.0}}) == 0
    assert directory.reasons() == ["guard", "done"]


def test_what_was_killed_after_a_go_on_needs_no_second_one(start: Start, directory: Directory) -> None:
    start(jump=3)
    (directory.path / "go_on").touch()
    with pytest.raises(GenselectError, match="the trainer failed before its first step"):
        start(crash=2)
    assert start() == 0
    assert directory.reasons() == ["guard", "failed", "done"]


class Killed(BaseException):
    """No handler sees a SIGKILL."""


@pytest.mark.parametrize("moment", ["in the copy", "before its mark"])
def test_a_run_that_was_killed_while_it_took_its_start_takes_it_again(
    start: Start, directory: Directory, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    start(steps=2, name="other")
    begin = {"steps": 4, "start": {"run": "other", "step": 2}}
    with monkeypatch.context() as changed:
        if moment == "in the copy":
            left_out = shutil.ignore_patterns

            def cut(*patterns: str) -> Callable[[str, list[str]], set[str]]:
                def ignore(folder: str, names: list[str]) -> set[str]:
                    if Path(folder).name != "global_step_2":
                        raise Killed
                    return left_out(*patterns)(folder, names)

                return ignore

            changed.setattr(launcher.shutil, "ignore_patterns", cut)
        else:
            changed.setattr(Saves, "mark_complete", lambda *_, **__: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            start(**begin)
    assert (directory.path / "checkpoints" / "global_step_2").exists()
    assert start(**begin) == 0
    # Not from the initial adapters, which would be another experiment under the same name.
    assert [attempt["resumed_from"] for attempt in directory.attempts()] == [2]
    assert directory.steps() == [3, 4]


def test_a_person_may_let_it_go_on_when_a_guard_stopped_it_in_its_first_step(
    start: Start, directory: Directory
) -> None:
    start(steps=2, name="other")
    begin = {"steps": 4, "start": {"run": "other", "step": 2}}
    assert start(jump=3, **begin) == launcher.GUARD
    with pytest.raises(GenselectError, match="a guard stopped attempt 1 at step 3"):
        start(**begin)
    (directory.path / "go_on").touch()
    assert start(**begin) == 0
    # From the save that it starts from, though the stop had marked this run's copy broken.
    assert [attempt["resumed_from"] for attempt in directory.attempts()] == [2, 2]
    assert (directory.path / "checkpoints" / "broken_global_step_2_attempt_1").is_dir()


def test_near_the_end_of_its_job_it_saves_and_leaves(
    start: Start, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_ends_in(monkeypatch, 10)
    assert start(steps=100, save_every=100) == launcher.STOPPED
    assert directory.reasons() == ["time_limit"]
    (attempt,) = directory.attempts()
    assert (directory.path / "checkpoints" / f"global_step_{attempt['last_step']}" / "complete.json").exists()


def test_a_crash_near_the_end_of_the_job_is_a_crash(
    start: Start, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_ends_in(monkeypatch, 10)
    with pytest.raises(GenselectError, match=r"(?s)failed before its first step.*exit status 1.*crashed"):
        start(crash=1, takes_s=1.0)
    assert (directory.path / "stop_requested").exists(), "it had been asked to stop"
    assert directory.reasons() == ["failed"]


def test_a_guards_stop_near_the_end_of_the_job_is_the_guards(
    start: Start, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_ends_in(monkeypatch, 10)
    assert start(jump=1, takes_s=1.0) == launcher.GUARD
    assert directory.reasons() == ["guard"]


def test_a_trainer_that_leaves_for_no_reason_has_failed(start: Start, directory: Directory) -> None:
    with pytest.raises(GenselectError, match="the trainer left of itself after step 2"):
        start(leave=2)
    assert directory.reasons() == ["failed"]


def test_a_start_that_is_refused_counts_as_failed_and_not_as_killed(
    start: Start, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise GenselectError("verl.trainer.nodez: verl has no such key", "Did you mean trainer.nnodes?")

    with monkeypatch.context() as changed:
        changed.setattr(attempt_config, "verl_config", refuse)
        with pytest.raises(GenselectError, match="no such key"):
            start()
    assert start(steps=1) == 0
    assert directory.reasons() == ["failed", "done"]


@pytest.mark.parametrize(("step_s", "saved"), [(None, False), (20.0, True)])
def test_a_stopping_run_has_as_long_as_its_step_takes(
    start: Start, directory: Directory, monkeypatch: pytest.MonkeyPatch, step_s: float | None, saved: bool
) -> None:
    monkeypatch.setattr(trainer_process, "GRACE_S", 0.3)
    monkeypatch.setattr(trainer_process, "_KEEPER_GRACE_S", 0.1)
    monkeypatch.setattr(time_limit, "SAVE_S", 0.3)
    threading.Thread(target=stop_in_the_first_step, args=(directory.path,), daemon=True).start()
    assert start(steps=3, takes_s=2.0, step_s=step_s) == launcher.STOPPED
    assert directory.reasons() == ["signal"]
    assert (directory.path / "checkpoints" / "global_step_1" / "complete.json").exists() == saved


def stop_in_the_first_step(directory: Path) -> None:
    """Send this process SIGTERM once the trainer runs: until then nobody handles it."""
    while not (directory / "ledger.jsonl").exists():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_over_nodes_needs_a_slurm_job_with_as_many(
    start: Start, directory: Directory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(GenselectError, match="nodes is 2, and this is no Slurm job") as caught:
        start(nodes=2)
    assert "--profile profiles/slurm" in caught.value.hint
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 1\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(GenselectError, match="nodes is 2, and job 7 has 1"):
        start(nodes=2)
    assert not directory.path.exists()

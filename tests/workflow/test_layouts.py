"""A run whose rollout engine has a card of its own, stopped and resumed, against the same run together. Real verl, Ray and vLLM: three
launches of two to four minutes, after a base model of three to four."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from genselect.training.records import read_records
from processes import trainer_below

pytestmark = [pytest.mark.soak, pytest.mark.timeout(5400)]

STEPS = 3
APART = {"cards": 2, "layout": {"rollout": 1}}
SETTINGS: dict[str, Any] = {
    "kind": "smoke",  # a formal run would wait for a preregistration
    "schedule": {"steps": STEPS, "critic_warmup": 0, "validate_every": 0, "save_every": 1},
    "potential": [{"name": "submit_probability", "weight": 0.1}],
}


@pytest.fixture(scope="module")
def runs(finished: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run directories of ``together`` and ``apart``."""
    root = tmp_path_factory.mktemp("layouts") / "checkout"
    shutil.copytree(finished.root, root, symlinks=True)
    copy = type(finished)(root)
    formal = yaml.safe_load((root / "config" / "mini.yaml").read_text())["runs"]["formal"]
    chosen = {
        "together": {**formal, **SETTINGS, "schedule": {**formal["schedule"], **SETTINGS["schedule"]}},
        "apart": {"extends": "together", "set": APART, "expect_difference": ["cards", "layout.rollout"]},
    }
    copy.configure([("runs", chosen), ("rollouts", {}), ("overfit_sets", {}), ("waived_gates", {})])
    copy.snakemake("results/models/mini/base_model.json", timeout=1500)
    copy.snakemake("results/runs/together/done.json", timeout=1500)
    stop_after_first_step(root, "apart")
    copy.snakemake("results/runs/apart/done.json", timeout=1500)
    return {name: root / "results" / "runs" / name for name in ("together", "apart")}


def stop_after_first_step(root: Path, run: str) -> None:
    """Start it, and ask it to stop when its first step is done."""
    process = subprocess.Popen(
        ["snakemake", "--profile", "profiles/mini", f"results/runs/{run}/done.json"],
        cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    watchdog = threading.Timer(1500, process.kill)
    watchdog.start()
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if line.startswith(f"step 1/{STEPS}"):
            trainer_below(process.pid).send_signal(signal.SIGTERM)
    watchdog.cancel()
    assert process.wait() != 0, "".join(said)
    assert any(line.startswith("stopping: a save at the next step boundary") for line in said), "".join(said)


def metrics(directory: Path) -> dict[int, dict[str, Any]]:
    """By step."""
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line for line in lines}


def test_the_engine_had_a_card_of_its_own_and_the_run_resumed(runs: dict[str, Path]) -> None:
    config = OmegaConf.load(runs["apart"] / "attempts" / "2.verl.yaml")
    assert config.actor_rollout_ref.hybrid_engine is False
    assert (config.trainer.n_gpus_per_node, config.actor_rollout_ref.rollout.n_gpus_per_node) == (1, 1)
    assert re.search(r"global_step_[12]$", config.trainer.resume_from_path)
    attempts = [line["attempt"] for line in metrics(runs["apart"]).values()]
    assert sorted(set(attempts)) == [1, 2]
    log = (runs["apart"] / "attempts" / "1.log").read_text()
    assert "CheckpointEngineWorker" in log  # verl's worker beside an engine that stands alone


def test_every_step_of_both_was_played_by_the_weights_before_it(runs: dict[str, Path]) -> None:
    for directory in runs.values():
        for step in range(1, STEPS + 1):
            given = {
                proof["name"]: proof for proof in json.loads((directory / "proofs" / f"step_{step}.json").read_text())
            }
            assert {"predictor_k0", "critic_first_value", "first_update_on_policy"} < set(given)
            assert all(proof["passed"] for proof in given.values()), given
            assert given["rollout_is_current"]["numbers"]["steps_behind"] == 0
            # Weights that are one step old read 0.0011 (docs/benchmarks/planted_faults.md).
            assert given["rollout_matches_actor"]["numbers"]["mean_difference"] < 6e-4
            assert (directory / "potential" / f"step_{step}.json").exists()


def test_the_layout_changes_nothing_that_is_learnt(runs: dict[str, Path]) -> None:
    for step in range(1, STEPS + 1):
        rows = [read_records(directory / "records" / f"step_{step}.parquet") for directory in runs.values()]
        played = [{(row.question_id, row.sample): (row.text, row.score, row.end) for row in side} for side in rows]
        assert len(rows[0]) == 64
        assert played[0] == played[1], f"step {step}"
    lines = [metrics(directory) for directory in runs.values()]
    for step in range(1, STEPS + 1):
        for name in ("actor/grad_norm", "critic/grad_norm", "predictor/grad_norm", "actor/pg_loss"):
            assert lines[0][step][name] == pytest.approx(lines[1][step][name], rel=1e-3), (step, name)
            assert name == "actor/pg_loss" or lines[0][step][name] > 0

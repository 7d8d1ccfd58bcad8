"""The program, the run's settings, and the figures beside a memory check."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from genselect.config import load_config
from genselect.memory.check import predicted_peaks
from genselect.memory.settings import run_settings
from genselect.plan.runs import resolved_runs
from genselect.training.memory_check import Budget, MemoryCheck


def test_both_layouts_of_the_9b_model_in_two_minutes(script: Any, repository: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    done = script(
        "estimate_memory",
        *("--config", repository / "config/config.yaml", "--run", "formal"),
        *("--layout", "8", "--layout", "4+3+1", "--json", tmp_path / "memory.json"),
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 120
    together, apart = json.loads((tmp_path / "memory.json").read_text())["estimates"]
    stages = ["log_probs", "predictions", "values", "update_predictor", "update_critic", "update_actor"]
    assert [entry["stage"] for entry in together["stages"]] == ["rollout", *stages, "weight_sync", "save"]
    assert {entry["cards"] for entry in apart["stages"]} == {"train", "rollout", "judge"}
    for name in stages:
        assert f"\n{name} " in done.stdout
    update = next(entry for entry in together["stages"] if entry["stage"] == "update_critic")
    # 196,608 tokens, less the one by which no two rows are alike; 32 layers keep their input.
    assert update["tokens"] == 196_607
    assert update["parts"]["activations"] > 196_607 * 4096 * 2 * 32
    assert sum(update["parts"].values()) == update["total"]
    trainers = [next(e for e in found["stages"] if e["stage"] == "update_actor") for found in (together, apart)]
    assert trainers[1]["parts"]["weights"] == pytest.approx(2 * trainers[0]["parts"]["weights"], rel=0.001)


def test_a_run_that_is_not_there_and_a_model_that_is_not_there_say_so(
    script: Any, repository: Path, tmp_path: Path
) -> None:
    options = ("--config", repository / "config/config.yaml")
    unknown = script("estimate_memory", *options, "--run", "formall")
    assert unknown.returncode == 2
    assert "--run formall: there is no such run" in unknown.stderr
    assert "Did you mean formal" in unknown.stderr
    absent = script("estimate_memory", *options, "--run", "formal", "--model-config", tmp_path / "config.json")
    assert absent.returncode == 2
    assert "there is no such file" in absent.stderr
    card = script("estimate_memory", *options, "--run", "formal", "--card", "0")
    assert card.returncode == 2
    assert "is no card" in card.stderr
    nothing = script("estimate_memory", "--config", tmp_path / "absent.yaml", "--run", "formal")
    assert nothing.returncode == 2


def test_settings_follow_the_run_and_its_verl_keys(repository: Path) -> None:
    run = resolved_runs(load_config(repository / "config/config.yaml"))["formal"]
    plain = run_settings(run, "formal")
    assert [model.name for model in plain.models] == ["actor", "critic", "predictor"]
    assert [model.budget for model in plain.models] == [81_920, 196_608, 81_920]
    assert all(model.checkpointing and model.packed and model.kept_bytes == 4 for model in plain.models)
    assert plain.engine.share == 0.5
    assert plain.engine.episodes == 512
    changed = run.model_copy(
        update={
            "algorithm": "grpo",
            "verl": {
                "actor_rollout_ref.rollout.gpu_memory_utilization": 0.3,
                "actor_rollout_ref.actor.fsdp_config.optimizer_offload": True,
            },
        }
    )
    found = run_settings(changed, "formal")
    assert [model.name for model in found.models] == ["actor", "predictor"]
    assert found.engine.share == 0.3
    assert found.model("actor").offload_optimiser
    assert str(plain.layout) == "8 cards, colocated"
    apart = {"hybrid_engine": False, "rollout.nnodes": 1, "rollout.n_gpus_per_node": 3}
    verl = {f"actor_rollout_ref.{key}": value for key, value in apart.items()}
    split = run.model_copy(update={"cards": 4, "verl": verl})
    assert str(run_settings(split, "formal").layout) == "4 cards to train, 3 to roll out"


def verl_file(folder: Path, repository: Path) -> Path:
    """verl's configuration of an attempt, naming a small model."""
    from omegaconf import OmegaConf
    from small_model import CONFIG

    from genselect.training.verl_config import Launch, verl_config

    run = resolved_runs(load_config(repository / "config/config.yaml"))["formal"]
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG))
    launch = Launch(
        name="formal",
        model=folder / "model",
        train_rows=folder,
        val_rows=folder,
        directory=folder,
        attempt=1,
        resume_from=None,
        agent_loop=folder,
        total_steps=1,
        cpu=False,
    )
    path = folder / "1.verl.yaml"
    path.write_text(OmegaConf.to_yaml(verl_config(run, launch, {"predictor": True, "predictor_budget": 81_920})))
    return path


def test_a_memory_check_gets_figures_for_the_stages_that_it_measures(tmp_path: Path, repository: Path) -> None:
    found = predicted_peaks(verl_file(tmp_path, repository), cards=8)
    assert found is not None
    measured = {"log_probs", "update_actor", "values", "update_critic", "predictions", "update_predictor"}
    assert set(found) == measured
    assert found["update_critic"] > found["values"] > 0
    check = MemoryCheck("cuda", 8, {"actor": Budget(81_920, 1, 81_920)}, dict.fromkeys(PRODUCTION, 1), 2, found)
    assert check.report({"peaks": {}})["predicted"] == found


PRODUCTION = ("problems", "samples", "prompt_tokens", "response_tokens")


def test_an_estimate_that_fails_is_logged_and_left_out(
    tmp_path: Path, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(yaml.safe_dump({"actor_rollout_ref": {}}))
    for path in (tmp_path / "absent.yaml", broken):
        with caplog.at_level(logging.WARNING, logger="genselect"):
            assert predicted_peaks(path, cards=8) is None
        assert "no memory estimate" in caplog.text
        caplog.clear()
    check = MemoryCheck("cpu", 1, {}, dict.fromkeys(PRODUCTION, 1), 1)
    assert check.report({})["predicted"] is None

"""A save is of the weights that it was trained on: the launcher starts on no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from genselect.base_model.folder import weights_sha256
from genselect.config import Judge
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.provenance.run_directory import RunDirectory
from genselect.training import launcher
from genselect.training.attempt_config import Inputs
from genselect.training.launcher import train


@pytest.fixture(autouse=True)
def _no_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*arguments: object) -> None:
        pytest.fail("the trainer would have been started")

    monkeypatch.setattr(launcher, "TrainerProcess", started)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for number in (1, 2):
        (folder / f"model-{number}-of-2.safetensors").write_bytes(bytes([number]) * 100)
    return folder


def saved_run(folder: Path, name: str, model: Path | None) -> None:
    """A run with a save of step 5 that was trained on ``model``; None: by a version that did not say."""
    with RunDirectory(folder / name) as directory:
        directory.open({}, {})
        actor = directory.saves.path(5) / "actor"
        actor.mkdir(parents=True)
        (actor / "model_world_size_1_rank_0.pt").write_bytes(b"adapter")
        directory.saves.mark_complete(
            5, world_size=1, attempt=1, base_weights=weights_sha256(model) if model is not None else None
        )


def attempt(folder: Path, model: Path, **settings: object) -> None:
    """Try to train ``formal``."""
    run = Run.model_validate({"kind": "smoke", **settings})
    train(
        Inputs(
            name="formal",
            run=run,
            model=model,
            train_rows=folder,
            val_rows=folder,
            runs_root=folder,
            identity={},
            candidates=8,
            template_options={},
            judge=Judge(),
        )
    )


def test_a_run_does_not_go_on_with_other_base_weights(tmp_path: Path, model: Path) -> None:
    saved_run(tmp_path, "formal", model)
    second = model / "model-2-of-2.safetensors"
    before = weights_sha256(model)[second.name]
    second.write_bytes(bytes([3]) * 100)
    with pytest.raises(
        GenselectError, match=rf"global_step_5: trained on other base weights: {second.name} had"
    ) as caught:
        attempt(tmp_path, model)
    assert before in caught.value.message
    assert weights_sha256(model)[second.name] in caught.value.message
    assert "models.base" in caught.value.hint
    assert not (tmp_path / "formal" / "attempts").exists()


@pytest.mark.parametrize("change", ["one more", "one less"])
def test_other_files_are_other_weights(tmp_path: Path, model: Path, change: str) -> None:
    saved_run(tmp_path, "formal", model)
    if change == "one less":
        (model / "model-2-of-2.safetensors").unlink()
    else:
        (model / "model-3-of-3.safetensors").write_bytes(b"more")
    with pytest.raises(GenselectError, match=r"safetensors had sha256 .*\(no such file\)"):
        attempt(tmp_path, model)


def test_a_start_on_other_base_weights_is_refused_and_leaves_both_runs_alone(tmp_path: Path, model: Path) -> None:
    saved_run(tmp_path, "control", model)
    (model / "model-1-of-2.safetensors").write_bytes(b"another model")
    with pytest.raises(GenselectError, match=r"control/checkpoints/global_step_5: trained on other base weights"):
        attempt(tmp_path, model, start={"run": "control", "step": 5})
    assert not (tmp_path / "control" / "checkpoints" / "global_step_5" / "start_of").exists()
    assert not list((tmp_path / "formal").glob("checkpoints/*"))


def test_a_save_that_does_not_say_is_not_gone_on_from(tmp_path: Path, model: Path) -> None:
    saved_run(tmp_path, "formal", None)
    with pytest.raises(GenselectError, match="does not say to which base weights the save belongs"):
        attempt(tmp_path, model)


def test_a_folder_without_weights_is_no_base_model(tmp_path: Path) -> None:
    with pytest.raises(GenselectError, match=r"holds no \*\.safetensors"):
        attempt(tmp_path, tmp_path)

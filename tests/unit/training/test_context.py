"""What a run records besides its identity."""

from __future__ import annotations

from pathlib import Path

import pytest

from genselect.config import Judge
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.formats import read_json
from genselect.training.attempt_config import Inputs
from genselect.training.launcher import train


def test_the_manifest_names_the_preregistration_and_the_fingerprint_does_not(tmp_path: Path) -> None:
    fingerprints = set()
    for name in ("a", "b"):
        directory = tmp_path / name / "formal"
        directory.mkdir(parents=True)
        (directory / "done.json").write_text("{}")  # so that nothing is trained
        inputs = Inputs(
            name="formal", run=Run(), model=tmp_path, train_rows=tmp_path, val_rows=tmp_path, runs_root=tmp_path / name,
            identity={"run": Run().identity()}, candidates=8, template_options={}, judge=Judge(),
            context={"preregistration_sha256": name},
        )  # fmt: skip
        assert train(inputs) == 0
        manifest = read_json(directory / "manifest.json")
        assert manifest["context"] == {"kind": "formal", "preregistration_sha256": name}
        fingerprints.add(manifest["fingerprint"])
    assert len(fingerprints) == 1


def test_a_trainer_that_ours_does_not_take_over_is_refused_before_anything_starts(tmp_path: Path) -> None:
    run = Run.model_validate({"verl": {"trainer.v1.trainer_mode": "separate_async"}})
    inputs = Inputs(
        name="apart", run=run, model=tmp_path, train_rows=tmp_path, val_rows=tmp_path, runs_root=tmp_path,
        identity={"run": run.identity()}, candidates=8, template_options={}, judge=Judge(),
    )  # fmt: skip
    with pytest.raises(GenselectError, match="trainer_mode is separate_async") as caught:
        train(inputs)
    assert "runs.<name>.layout" in caught.value.hint
    assert list(tmp_path.iterdir()) == []

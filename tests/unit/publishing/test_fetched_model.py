"""The base model of what was fetched: the same one, and no newer than what was trained from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from genselect.base_model.fetch import fetch_model
from genselect.base_model.folder import RECORD
from genselect.errors import GenselectError
from genselect.provenance import seal_path
from genselect.publishing.fetched_model import bring_base_model
from model_hub import COMMIT, FILES

LONG_AGO = 10**18


@pytest.fixture
def results(tmp_path, repository):
    """As a fetch leaves it: a configuration."""
    return configured(tmp_path / "results", repository, source="hub", repo_id="some/model", revision=COMMIT[:7])


def configured(results: Path, repository: Path, **base) -> Path:
    values = yaml.safe_load((repository / "config" / "mini.yaml").read_text())
    values["models"] = {"base": base}
    values["publish"] = {}
    path = results / "data" / "mini" / "config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(values))
    return results


@pytest.fixture
def recorded(models_hub, results, tmp_path):
    """Its record and seal are there, as they were published, and nothing else of the model."""
    theirs = tmp_path / "theirs"
    fetch_model("some/model", COMMIT, theirs, endpoint=models_hub.endpoint)
    folder = results / "models" / "mini"
    folder.mkdir(parents=True)
    for path in (theirs / RECORD, seal_path(theirs / RECORD)):
        path.rename(folder / path.name)
    models_hub.state["asked"].clear()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_comes_from_its_own_repository_and_what_was_published_stays(models_hub, results, recorded):
    published = contents(recorded)
    bring_base_model(results, "mini", LONG_AGO, endpoint=models_hub.endpoint)
    assert contents(recorded) == FILES | published
    assert {path.stat().st_mtime_ns for path in recorded.rglob("*") if path.is_file()} == {LONG_AGO}
    # At the commit of the record: the configuration's may be a short one, which means another commit some day.
    assert {path for _, path in models_hub.state["asked"] if COMMIT not in path} == set()


def test_a_second_time_nothing_is_asked_for(models_hub, results, recorded):
    bring_base_model(results, "mini", LONG_AGO, endpoint=models_hub.endpoint)
    models_hub.state["asked"].clear()
    bring_base_model(results, "mini", LONG_AGO, endpoint=models_hub.endpoint)
    assert models_hub.state["asked"] == []


def test_another_model_than_the_one_trained_from_is_refused(models_hub, results, recorded):
    record = json.loads((recorded / RECORD).read_text())
    record["files"]["model.safetensors"]["sha256"] = "0" * 64
    (recorded / RECORD).write_text(json.dumps(record))
    seal_path(recorded / RECORD).unlink()
    with pytest.raises(GenselectError, match="is not the one that the experiment started from"):
        bring_base_model(results, "mini", LONG_AGO, endpoint=models_hub.endpoint)


def test_a_made_one_that_was_published_only_gets_its_time(tmp_path, repository):
    results = configured(tmp_path / "results", repository, source="made")
    config = results / "models" / "mini" / "config.json"
    with pytest.raises(GenselectError, match="was not published") as raised:
        bring_base_model(results, "mini", LONG_AGO)
    assert "publish.base_model" in raised.value.hint
    config.parent.mkdir(parents=True)
    config.write_text("{}")
    bring_base_model(results, "mini", LONG_AGO)
    assert config.stat().st_mtime_ns == LONG_AGO


def test_a_folder_of_the_publishers_machine_is_named_by_its_new_owner(tmp_path, repository):
    results = configured(tmp_path / "results", repository, source="local", path=str(tmp_path / "their model"))
    with pytest.raises(GenselectError, match="no repository has it") as raised:
        bring_base_model(results, "mini", LONG_AGO)
    assert "models.base.path" in raised.value.hint


def test_without_the_configuration_nobody_can_say_which_it_was(tmp_path):
    with pytest.raises(GenselectError, match="nothing says which base model it was"):
        bring_base_model(tmp_path / "results", "mini", LONG_AGO)

"""Fetching from a Hub of our own on this machine, through the real client: whole, checked, resumable, with clear errors."""

from __future__ import annotations

import hashlib
import json

import pytest

from genselect.base_model import fetch
from genselect.base_model.fetch import fetch_model
from genselect.base_model.folder import RECORD
from genselect.errors import GenselectError
from genselect.provenance import check_seal, seal_path
from model_hub import COMMIT, FILES


@pytest.fixture
def fetched(models_hub, tmp_path):
    def run(repo="some/model", revision=COMMIT[:8]):
        return fetch_model(repo, revision, tmp_path / "model", endpoint=models_hub.endpoint)

    return run


def test_a_model_arrives_whole_with_the_full_commit_and_every_checksum(fetched, tmp_path):
    record = fetched()
    folder = tmp_path / "model"
    assert record["revision"] == COMMIT
    assert record["files"] == {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        for name, content in sorted(FILES.items())
    }
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert json.loads((folder / RECORD).read_text()) == record
    assert check_seal(folder / RECORD).config == {"repo_id": "some/model", "revision": COMMIT[:8]}
    assert sorted(path.name for path in folder.iterdir()) == [
        RECORD,
        f"{RECORD}.seal.json",
        "config.json",
        "model.safetensors",
        "sub",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_model_that_is_there_is_not_asked_for_again(fetched, models_hub, tmp_path):
    record = fetched()
    models_hub.state["asked"].clear()
    assert fetched() == record
    assert models_hub.state["asked"] == []
    (tmp_path / "model" / "model.safetensors").write_bytes(b"cut")
    fetched()
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_record_that_says_the_same_keeps_its_seal(fetched, tmp_path):
    fetched()
    folder = tmp_path / "model"
    seal = seal_path(folder / RECORD)
    # As a publication brings it: record and seal, which others made elsewhere, and no model.
    seal.write_text(seal.read_text().replace(COMMIT[:8], COMMIT[:7]))
    theirs = seal.read_bytes()
    (folder / "model.safetensors").unlink()
    fetched()
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert seal.read_bytes() == theirs
    # One that says something else does not.
    seal.unlink()
    (folder / RECORD).write_text("{}")
    fetched()
    assert check_seal(folder / RECORD).config["revision"] == COMMIT[:8]


def test_a_stopped_download_goes_on_where_it_was(fetched, models_hub, tmp_path):
    models_hub.state["fail_on"] = "model.safetensors"
    with pytest.raises(GenselectError, match="503"):
        fetched()
    assert not (tmp_path / "model").exists()
    models_hub.state["fail_on"] = None
    models_hub.state["asked"].clear()
    fetched()
    again = {
        path.rpartition("/")[2] for method, path in models_hub.state["asked"] if method == "GET" and "/resolve/" in path
    }
    assert again == {"model.safetensors"}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_is_not_what_the_hub_says_is_refused(fetched, models_hub, tmp_path, name):
    models_hub.state["served"][name] = FILES[name][:-1] + b"!"
    with pytest.raises(GenselectError, match=rf"{name}: what was downloaded is not what the Hub says"):
        fetched()
    assert not (tmp_path / "model").exists()
    models_hub.state["served"].clear()
    assert fetched()["revision"] == COMMIT


@pytest.mark.parametrize(
    ("repo", "words", "hint"),
    [
        ("no/such", r"no such model, or hides it .*\(404\)", "models.base.repo_id"),
        ("no/token", r"\(?401\)?", "HF_TOKEN"),
        ("no/licence", r"refuses it \(403\): its licence", "Accept it on"),
        ("no/commit", "there is no commit 01234567", "models.base.revision"),
        ("no/luck", "answers 500", "start again"),
    ],
)
def test_a_refusal_says_what_to_do(fetched, tmp_path, repo, words, hint):
    with pytest.raises(GenselectError, match=words) as raised:
        fetched(repo)
    assert hint in raised.value.hint
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_that_is_said(tmp_path):
    with pytest.raises(GenselectError, match="cannot be reached") as raised:
        fetch_model("some/model", COMMIT, tmp_path / "model", endpoint="http://127.0.0.1:9")
    assert "models.base.source to local" in raised.value.hint


def test_a_repository_without_weights_is_refused(fetched, monkeypatch):
    monkeypatch.delitem(FILES, "model.safetensors")
    with pytest.raises(GenselectError, match="no model that can be loaded"):
        fetched()


def test_a_folder_with_other_files_is_left_alone(fetched, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.tex").write_text("years of work")
    with pytest.raises(GenselectError, match=r"thesis\.tex"):
        fetched()
    assert fetch.check_replaceable(tmp_path / "absent", []) is None

"""Fetching from a Hub of our own on this machine, through the real client: whole, checked, resumable, with clear errors."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading

import pytest

from genselect.base_model import fetch
from genselect.base_model.fetch import fetch_model
from genselect.base_model.folder import RECORD
from genselect.errors import GenselectError
from genselect.provenance import check_seal

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "tiny"}',
    "sub/notes.md": b"# notes\n",
    "model.safetensors": bytes(range(256)) * 40,
}
LARGE = {"model.safetensors"}
REFUSALS = {
    "no/such": (404, "RepoNotFound"),
    "no/token": (401, None),
    "no/licence": (403, "GatedRepo"),
    "no/commit": (404, "RevisionNotFound"),
    "no/luck": (500, None),
}


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def described(name):
    content = FILES[name]
    entry = {"size": len(content), "blob": git_sha1(content)}
    if name in LARGE:
        entry["lfs"] = hashlib.sha256(content).hexdigest()
    return entry


class Hub(http.server.BaseHTTPRequestHandler):
    """The parts of the Hub's API that the client asks for a snapshot."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        state = self.server.state
        path = self.path.partition("?")[0]
        state["asked"].append((self.command, path))
        for repo, (status, code) in REFUSALS.items():
            if repo in path:
                return self.answer(b"{}", status, {"X-Error-Code": code} if code else {})
        if "/resolve/" in path:
            name = path.partition(f"/resolve/{COMMIT}/")[2]
            if self.command == "GET" and state["fail_on"] == name:
                return self.answer(b"", 503)
            content = state["served"].get(name, FILES[name])
            etag = described(name).get("lfs") or git_sha1(FILES[name])
            return self.answer(content, 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        if "/tree/" in path:
            tree = []
            for name in FILES:
                entry = described(name)
                tree.append({"type": "file", "oid": entry["blob"], "size": entry["size"], "path": name})
                if "lfs" in entry:
                    tree[-1]["lfs"] = {"oid": entry["lfs"], "size": entry["size"], "pointerSize": 100}
            return self.answer(json.dumps(tree).encode(), 200)
        siblings = []
        for name in FILES:
            entry = described(name)
            siblings.append({"rfilename": name, "size": entry["size"], "blobId": entry["blob"]})
            if "lfs" in entry:
                siblings[-1]["lfs"] = {"sha256": entry["lfs"], "size": entry["size"], "pointerSize": 100}
        return self.answer(json.dumps({"id": "some/model", "sha": COMMIT, "siblings": siblings}).encode(), 200)

    def answer(self, content, status, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.state = {"asked": [], "served": {}, "fail_on": None}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def fetched(hub, tmp_path):
    def run(repo="some/model", revision=COMMIT[:8]):
        return fetch_model(repo, revision, tmp_path / "model", endpoint=f"http://127.0.0.1:{hub.server_port}")

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


def test_a_model_that_is_there_is_not_asked_for_again(fetched, hub, tmp_path):
    record = fetched()
    hub.state["asked"].clear()
    assert fetched() == record
    assert hub.state["asked"] == []
    (tmp_path / "model" / "model.safetensors").write_bytes(b"cut")
    fetched()
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_stopped_download_goes_on_where_it_was(fetched, hub, tmp_path):
    hub.state["fail_on"] = "model.safetensors"
    with pytest.raises(GenselectError, match="503"):
        fetched()
    assert not (tmp_path / "model").exists()
    hub.state["fail_on"] = None
    hub.state["asked"].clear()
    fetched()
    again = {path.rpartition("/")[2] for method, path in hub.state["asked"] if method == "GET" and "/resolve/" in path}
    assert again == {"model.safetensors"}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_is_not_what_the_hub_says_is_refused(fetched, hub, tmp_path, name):
    hub.state["served"][name] = FILES[name][:-1] + b"!"
    with pytest.raises(GenselectError, match=rf"{name}: what was downloaded is not what the Hub says"):
        fetched()
    assert not (tmp_path / "model").exists()
    hub.state["served"].clear()
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

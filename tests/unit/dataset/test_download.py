"""Fetching shards with the real Hub client from a small stub of the Hub on the loopback."""

import hashlib
import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genselect.dataset.miniature import make_shards
from genselect.provenance import check_seal

COMMIT = "5a256e23" + "0" * 32
REPOSITORY = "someone/shards"
#: What the Hub client writes at once.
PIECE = 10 * 1024 * 1024
PATH = "data/genselect-00000-of-00001.parquet"


class Hub:
    """What the stub serves, how it misbehaves, and what it was asked."""

    def __init__(self, content):
        self.serve_content(content)
        self.cuts = []
        """For each coming GET of the file: bytes after which the connection is cut (None: never)."""
        self.status = None
        """Answer everything with this."""
        self.code = ""
        self.ranges = []
        self.tokens = set()

    def serve_content(self, content):
        self.content = content
        self.sha256 = hashlib.sha256(content).hexdigest()

    def serve(self):
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.tokens.add(self.headers.get("Authorization"))
                if hub.status:
                    self.reply(hub.status, {"X-Error-Code": hub.code}, b"{}")
                elif self.path.startswith(f"/api/datasets/{REPOSITORY}/commits/"):
                    commits = [{"id": c, "title": "", "message": "", "date": "2025-01-01T00:00:00.000Z", "authors": []}
                               for c in ("f" * 40, COMMIT)]  # fmt: skip
                    self.reply(200, {"Content-Type": "application/json"}, json.dumps(commits).encode())
                elif self.path == f"/datasets/{REPOSITORY}/resolve/{COMMIT}/{PATH}":
                    self.send_file()
                else:
                    code = "EntryNotFound" if COMMIT in self.path else "RevisionNotFound"
                    self.reply(404, {"X-Error-Code": code}, b"{}")

            do_HEAD = do_GET

            def do_POST(self):
                hub.tokens.add(self.headers.get("Authorization"))
                asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["paths"]
                if hub.status:
                    self.reply(hub.status, {"X-Error-Code": hub.code}, b"{}")
                    return
                if COMMIT not in self.path:
                    self.reply(404, {"X-Error-Code": "RevisionNotFound"}, b"{}")
                    return
                entry = {"type": "file", "path": PATH, "size": len(hub.content), "oid": "1" * 40,
                         "lfs": {"oid": hub.sha256, "size": len(hub.content), "pointerSize": 134}}  # fmt: skip
                self.reply(
                    200, {"Content-Type": "application/json"}, json.dumps([entry] if PATH in asked else []).encode()
                )

            def send_file(self):
                start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
                headers = {"ETag": f'"{hub.sha256}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
                if self.command == "HEAD":
                    self.reply(200, headers, hub.content)
                    return
                hub.ranges.append(start)
                headers |= {"Content-Range": f"bytes {start}-{len(hub.content) - 1}/{len(hub.content)}"}
                self.reply(206 if start else 200, headers, hub.content[start:], hub.cuts.pop(0) if hub.cuts else None)

            def reply(self, status, headers, body, cut=None):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body[:cut])
                if cut is not None:
                    self.close_connection = True

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = make_shards(tmp_path_factory.mktemp("shard"), problems=60, shards=1)[0]
    return path.read_bytes()


@pytest.fixture(scope="module")
def large(content, tmp_path_factory):
    """A shard of some 16 MB. The client writes pieces of 10 MB, so a smaller one would start again from nothing."""
    path = tmp_path_factory.mktemp("large") / "a.parquet"
    table = pq.read_table(pa.BufferReader(content))
    padding = random.Random(1).randbytes(8_000_000).hex()
    models = pa.array([padding, *["m"] * (table.num_rows - 1)])
    pq.write_table(table.set_column(3, "generation_model", models), path, compression="none")
    return path.read_bytes()


@pytest.fixture
def hub(content):
    made = Hub(content)
    made.serve()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def fetch(hub, script, tmp_path, monkeypatch):
    """Run the program against the stub, with changes to the dataset section."""
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    for name in ("HF_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def run(name=PATH, **changes):
        section = {"name": "omr", "repo_id": REPOSITORY, "revision": COMMIT, "shards": [PATH], **changes}
        config = tmp_path / "config.yaml"
        config.write_text(json.dumps({"dataset": section}))
        return script("download_shard", "--config", config, "--name", name, "--output", tmp_path / "out" / "a.parquet")

    return run


def failed(done, folder):
    """The error of a run that failed as a user should see it, with nothing under the final name."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "out" / "a.parquet").exists()
    assert not (folder / "out" / "a.parquet.seal.json").exists()
    return done.stderr


def test_a_shard_is_fetched_checked_and_sealed_with_the_full_commit(fetch, hub, content, tmp_path):
    done = fetch(revision="5a256e23")
    assert done.returncode == 0, done.stderr
    output = tmp_path / "out" / "a.parquet"
    assert output.read_bytes() == content
    seal = check_seal(output)
    assert seal.kind == "shard"
    assert seal.config["revision"] == COMMIT
    assert seal.config["sha256_from"] == "the Hub"
    assert sorted(path.name for path in output.parent.iterdir()) == ["a.parquet", "a.parquet.seal.json"]


def test_the_token_of_the_environment_is_used_and_not_written(fetch, hub, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_a_test")
    assert fetch().returncode == 0
    assert hub.tokens == {"Bearer hf_secret_of_a_test"}
    assert "hf_secret" not in (tmp_path / "out" / "a.parquet.seal.json").read_text()


def test_a_cut_connection_is_resumed_where_it_broke(fetch, hub, large, tmp_path):
    hub.serve_content(large)
    hub.cuts = [12_000_000]
    done = fetch()
    assert done.returncode == 0, done.stderr
    assert hub.ranges == [0, PIECE]
    assert (tmp_path / "out" / "a.parquet").read_bytes() == large


def test_a_download_that_was_given_up_goes_on_in_the_next_start(fetch, hub, large, tmp_path):
    # Cut, and then a Hub that answers 503 for good: the program ends. The next start asks for the rest only.
    hub.serve_content(large)
    hub.cuts = [12_000_000]
    timer = threading.Thread(target=fail_after_first_get, args=(hub,))
    timer.start()
    text = failed(fetch(), tmp_path)
    timer.join()
    assert "the Hub answered 503" in text or "could not be reached" in text
    assert "goes on where it stopped" in text
    hub.status, before = None, len(hub.ranges)
    done = fetch()
    assert done.returncode == 0, done.stderr
    assert hub.ranges[before:] == [PIECE]
    assert (tmp_path / "out" / "a.parquet").read_bytes() == large


def fail_after_first_get(hub):
    while not hub.ranges:
        threading.Event().wait(0.005)
    hub.status = 503


def test_content_that_differs_from_the_hubs_checksum(fetch, hub, tmp_path):
    hub.sha256 = "0" * 64
    text = failed(fetch(), tmp_path)
    assert f"but the Hub says {'0' * 64}" in text
    assert "Hint: Start the same command again to fetch it anew" in text
    assert list((tmp_path / "out").iterdir()) == []


def test_content_that_differs_from_the_configured_checksum(fetch, hub, content, tmp_path):
    text = failed(fetch(checksums={PATH.split("/")[1]: "1" * 64}), tmp_path)
    assert f"sha256 is {hashlib.sha256(content).hexdigest()}, but dataset.checksums says {'1' * 64}" in text


def test_a_file_that_is_no_shard(fetch, hub, tmp_path):
    hub.serve_content(b"<html>not here</html>")
    assert "not a whole Parquet file" in failed(fetch(), tmp_path)


def test_a_path_that_the_repository_lacks(fetch, tmp_path):
    text = failed(fetch("other.parquet", shards=["data/other.parquet"]), tmp_path)
    assert f"{REPOSITORY}@{COMMIT}/data/other.parquet: there is no such file in the repository at that commit" in text
    assert "Hint: Check dataset.shards" in text


def test_a_revision_that_the_repository_lacks(fetch, tmp_path):
    text = failed(fetch(revision="a" * 40), tmp_path)
    assert f"{REPOSITORY}: there is no commit {'a' * 40}\nHint: Set dataset.revision to a commit" in text


def test_a_short_revision_that_no_commit_has(fetch, tmp_path):
    text = failed(fetch(revision="abcdef0"), tmp_path)
    assert f"{REPOSITORY}: 0 of its 2 commits begin with abcdef0\nHint: Give dataset.revision all forty digits" in text


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (401, "", "Hint: If it is private or gated, set HF_TOKEN"),
        (403, "GatedRepo", "access is gated and this account has none"),
        (403, "GatedRepo", "Hint: Accept the conditions on the dataset's page, then set HF_TOKEN"),
        (404, "RepoNotFound", "the Hub knows no such dataset (404)\nHint: Check dataset.repo_id"),
        (410, "", "the Hub answered 410"),
    ],
)
def test_refusals_of_the_hub(fetch, hub, tmp_path, status, code, words):
    hub.status, hub.code = status, code
    assert words in failed(fetch(), tmp_path)


def test_no_network(fetch, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    text = failed(fetch(), tmp_path)
    assert f"{REPOSITORY}: the Hub could not be reached" in text
    assert "Hint: Check the network and proxy" in text


def test_a_name_that_is_not_configured(fetch, tmp_path):
    assert "x.parquet: none of dataset.shards has that name\nHint: dataset.shards lists data/" in failed(
        fetch("x.parquet"), tmp_path
    )


def test_a_generated_dataset_has_nothing_to_download(fetch, tmp_path):
    assert "Hint: make_mini_shards.py writes those shards" in failed(fetch(source="generated"), tmp_path)


def test_a_local_shard_is_put_in_place(fetch, content, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "b.parquet").write_bytes(content)
    done = fetch(
        "b.parquet", source="local", local_dir=str(folder), checksums={"b.parquet": hashlib.sha256(content).hexdigest()}
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "a.parquet").read_bytes() == content
    assert check_seal(tmp_path / "out" / "a.parquet").config["source"] == "local"


def test_a_local_shard_that_is_not_there_or_not_the_one(fetch, content, tmp_path):
    (tmp_path / "b.parquet").write_bytes(content)
    text = failed(fetch("c.parquet", source="local", local_dir=str(tmp_path)), tmp_path)
    assert "c.parquet: there is no such shard; dataset.local_dir holds b.parquet" in text
    text = failed(
        fetch("b.parquet", source="local", local_dir=str(tmp_path), checksums={"b.parquet": "2" * 64}), tmp_path
    )
    assert f"but dataset.checksums says {'2' * 64}" in text

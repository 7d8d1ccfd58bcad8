"""The owned server's life: ready, late, broken, gone in the middle; and the keeper, which lets nothing outlive the job.

A stand-in named ``vllm`` takes the real one's place here; test_real_vllm.py runs the real one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import psutil
import pytest
from judge_cases import config, different_answers, write_merged

from genselect.errors import GenselectError
from genselect.judge import keeper, label_candidates
from genselect.judge import server as module
from genselect.judge.server import VllmServer

STAND_IN = """
import http.server, json, os, sys, time
print("stand-in", sys.argv[1:], flush=True)
mode = os.environ.get("STAND_IN", "")
if mode == "broken":
    print("ValueError: the card is on fire")
    print("\\n".join(f"line {n}" for n in range(50)))
    sys.exit(3)
if mode == "late":
    time.sleep(600)
asked = 0
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.answer({"data": [{"id": sys.argv[sys.argv.index("--served-model-name") + 1]}]})
    def do_POST(self):
        global asked
        self.rfile.read(int(self.headers["content-length"]))
        asked += 1
        if mode == "dies" and asked > 20:
            print("RuntimeError: out of memory", flush=True)
            os._exit(9)
        self.answer({"choices": [{"message": {"content": "Judgement: Yes"}, "finish_reason": "stop"}]})
    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path):
    """Settings of an owned server that is the stand-in."""
    package = tmp_path / "path" / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "main.py").write_text(STAND_IN)

    def settings(mode: str = "", **server):
        env = {"PYTHONPATH": str(tmp_path / "path"), "STAND_IN": mode}
        return config(
            tmp_path, [], kind="vllm", revision="abcdef1", server={"env": env, "args": ["--some-flag"], **server}
        )

    return settings


def test_a_job_starts_uses_and_stops_its_server(tmp_path, stand_in):
    merged = write_merged(tmp_path / "merged.jsonl", different_answers(10))
    counts = label_candidates(merged, stand_in(), journal=tmp_path / "j", output=tmp_path / "labels.jsonl")
    assert counts["correct"] == 40
    words = (tmp_path / "j" / "server.log").read_text()
    assert "'serve', 'judge', '--host', '127.0.0.1', '--port'" in words
    assert "'--served-model-name', 'judge', '--revision', 'abcdef1', '--some-flag'" in words
    assert not [
        process for process in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(process.info["cmdline"])
    ]

    # Everything is in the journal now, so there is nothing to start a server for.
    (tmp_path / "j" / "server.log").unlink()
    label_candidates(merged, stand_in("broken"), journal=tmp_path / "j", output=tmp_path / "labels.jsonl")
    assert not (tmp_path / "j" / "server.log").exists()


def test_a_server_that_fails_to_start_is_quoted(tmp_path, stand_in):
    with VllmServer(stand_in("broken").judge, tmp_path / "log") as server, pytest.raises(GenselectError) as caught:
        server.wait_until_ready()
    assert "ended with status 3" in str(caught.value)
    assert "line 49" in str(caught.value)
    assert "ValueError: the card is on fire" in str(caught.value)


def test_a_server_that_is_never_ready_is_given_up(tmp_path, stand_in):
    settings = stand_in("late", startup_timeout_s=1.0)
    with VllmServer(settings.judge, tmp_path / "log") as server:
        with pytest.raises(GenselectError, match="was not ready within 1 s"):
            server.wait_until_ready()
        family = psutil.Process(server._keeper.pid).children(recursive=True)
    assert psutil.wait_procs(family, timeout=5)[1] == []


def test_a_server_that_dies_in_the_middle_stops_the_job_with_its_last_words(tmp_path, stand_in):
    merged = write_merged(tmp_path / "merged.jsonl", different_answers(30))
    with pytest.raises(GenselectError, match="RuntimeError: out of memory"):
        label_candidates(merged, stand_in("dies"), journal=tmp_path / "j", output=tmp_path / "labels.jsonl")
    counts = label_candidates(merged, stand_in(), journal=tmp_path / "j", output=tmp_path / "labels.jsonl")
    assert counts["judge_calls"] == 90
    assert json.loads((tmp_path / "j" / "progress.json").read_text())["state"] == "done"


def test_without_vllm_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with (
        pytest.raises(GenselectError, match="vllm is not installed"),
        VllmServer(config(tmp_path, [], kind="vllm").judge, tmp_path / "log"),
    ):
        pass


# A command with a child in its own group, one in another session, and ears for SIGTERM or none.
FAMILY = """
import subprocess, signal, sys, time
{ears}
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def kept(grace: float, code: str) -> tuple[subprocess.Popen, list[psutil.Process]]:
    process = subprocess.Popen(
        [sys.executable, keeper.__file__, str(grace), sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout.readline() == b"up\n"
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) == 3
    return process, family


@pytest.mark.parametrize("ears", ["", DEAF])
def test_the_whole_family_goes_when_the_pipe_closes(ears):
    process, family = kept(0.5, FAMILY.format(ears=ears))
    process.stdin.close()
    assert psutil.wait_procs(family, timeout=5)[1] == []
    process.wait(timeout=5)


def test_orphans_of_a_command_that_was_killed_go_too():
    process, family = kept(0.5, FAMILY.format(ears=""))
    family[0].kill()
    assert psutil.wait_procs(family, timeout=5)[1] == []
    assert process.wait(timeout=5) == 128 + 9


def test_the_family_goes_when_the_keepers_parent_is_killed(tmp_path):
    parent_code = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, {keeper.__file__!r}, '0.5', sys.executable, '-c', {FAMILY.format(ears=DEAF)!r}],"
        " stdin=subprocess.PIPE, start_new_session=True)\ntime.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"up\n"
    family = psutil.Process(parent.pid).children(recursive=True)
    assert len(family) == 4
    parent.kill()
    parent.wait()
    assert psutil.wait_procs(family, timeout=5)[1] == []


def test_the_command_hears_when_the_keeper_itself_is_killed():
    process, family = kept(0.5, FAMILY.format(ears=""))
    process.kill()
    process.wait()
    deadline = time.monotonic() + 5
    while family[0].is_running() and family[0].status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for orphan in family[1:]:
        orphan.kill()

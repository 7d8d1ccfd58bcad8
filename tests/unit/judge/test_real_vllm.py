"""A real vLLM server on the CPU: owned, killed with its job, resumed from its journal, asked by others, shut down.

Two starts of about a minute each. The model's verdicts are poor and not looked at.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from judge_cases import label_command, labels, seal_counts, settings, start, write_config, write_merged
from smollm2 import model_folder

from genselect.config import check_config
from genselect.judge import judge_fingerprint, label_candidates
from processes import command_line

# Far more than are answered before the job is told to stop, however quick the machine.
PROBLEMS = [(str(number), [str(number + shift) for shift in range(1, 5)]) for number in range(3, 153)]
QUESTIONS = 600


@pytest.fixture(scope="module")
def vllm_is_a_cpu_build():
    try:
        version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vllm is not installed")
    if "cpu" not in version:
        pytest.skip(f"vllm {version} is not the CPU build that this test is about")


@pytest.mark.usefixtures("vllm_is_a_cpu_build")
def test_the_owned_server_from_start_to_end(tmp_path):
    merged = write_merged(tmp_path / "merged.jsonl", PROBLEMS)
    output, journal = tmp_path / "labels.jsonl", tmp_path / "journal"
    values = settings(
        tmp_path,
        [],
        kind="vllm",
        model=str(model_folder()),
        prompt={},
        sampling={"first_max_tokens": 4, "second_max_tokens": 24, "enable_thinking": None},
        server={
            "args": ["--enforce-eager", "--max-model-len", "2048"],
            "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
            "startup_timeout_s": 300.0,
        },
        client={"concurrency": 2, "request_timeout_s": 60.0},
    )
    command = label_command(merged, write_config(tmp_path / "config.yaml", values), journal, output)

    # Killed in the middle: neither API server nor engine stays behind, and what was answered is kept.
    job = start(command)
    family = wait_for_records(job, journal, 5)
    job.kill()
    words = job.communicate()[1]
    assert "the judge is ready after" in words, words
    assert_gone(family)
    kept = keys(journal)
    assert 5 <= len(kept) < QUESTIONS
    shutil.copytree(journal, tmp_path / "copy")

    # Started again: goes on where it was. Others may use the server meanwhile, under the same fingerprint.
    job = start(command)
    family = wait_for_records(job, journal, len(kept) + 2)
    asking = {**values["judge"], "kind": "endpoints", "endpoints": [endpoint_of(family)]}
    asking["client"] = {**asking["client"], "concurrency": 8}
    shared_config = check_config({**values, "judge": asking}, "test")
    assert judge_fingerprint(shared_config) == judge_fingerprint(check_config(values, "test"))
    part = write_merged(tmp_path / "part.jsonl", PROBLEMS[:5])
    others = tmp_path / "others.jsonl"
    label_candidates(part, shared_config, journal=tmp_path / "copy", output=others)
    counts = seal_counts(others)
    assert counts["judge_second_cap_calls"] > 0
    assert counts["judge_calls"] == 20 + counts["judge_second_cap_calls"]
    assert keys(tmp_path / "copy")[: len(kept)] == kept
    assert len(keys(tmp_path / "copy")) == 20
    assert len(labels(others)) == 20

    # Told to stop: a clean shutdown, an exit status that says "again", nothing left, nothing asked twice.
    job.send_signal(signal.SIGTERM)
    words = job.communicate(timeout=60)[1]
    assert job.returncode == 75, words
    assert_gone(family)
    assert keys(journal)[: len(kept)] == kept
    assert len(kept) < len(keys(journal)) == len(set(keys(journal))) < QUESTIONS
    print(words)


@pytest.mark.usefixtures("vllm_is_a_cpu_build")
def test_a_model_that_is_not_there_is_said_with_the_servers_words(tmp_path):
    merged = write_merged(tmp_path / "merged.jsonl", PROBLEMS[:1])
    values = settings(
        tmp_path, [], kind="vllm", model=str(tmp_path / "no-such-model"), server={"env": {"HF_HUB_OFFLINE": "1"}}
    )
    config = write_config(tmp_path / "config.yaml", values)
    job = start(label_command(merged, config, tmp_path / "journal", tmp_path / "labels.jsonl"))
    words = job.communicate(timeout=200)[1]
    assert job.returncode == 2
    assert "the judge server ended with status" in words
    assert "no-such-model" in words.partition("the end of")[2]
    assert "Traceback" not in words.partition("the end of")[0]


def wait_for_records(job: subprocess.Popen, journal: Path, number: int) -> list[psutil.Process]:
    """Wait until the job has that many replies in its journal; returns its descendants."""
    deadline = time.monotonic() + 300
    while len(keys(journal)) < number:
        assert job.poll() is None, job.stderr.read()
        assert time.monotonic() < deadline, (journal / "server.log").read_text()[-3000:]
        time.sleep(0.05)
    family = psutil.Process(job.pid).children(recursive=True)
    assert any("EngineCore" in command_line(process) for process in family)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # a short-lived child that has ended meanwhile
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    assert connection.laddr.ip in {"127.0.0.1", "::1"}, (command_line(process), connection)
    return family


def keys(journal: Path) -> list[str]:
    path = journal / "journal.jsonl"
    whole = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
    return [record["key"] for record in map(json.loads, whole) if record["stage"] == "judge"]


def endpoint_of(family: list[psutil.Process]) -> str:
    command = next(words for process in family if "--port" in (words := command_line(process).split()))
    return f"http://127.0.0.1:{command[command.index('--port') + 1]}/v1"


def assert_gone(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=25)
    assert alive == []

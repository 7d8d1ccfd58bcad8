"""Files appear whole or not at all, and unreadable ones are named with the line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from genselect.errors import GenselectError
from genselect.formats import atomic_path, read_json, read_jsonl, read_labels, read_problems, write_jsonl

PROBLEM = {
    "id": "omr-000000",
    "problem": "p",
    "answer": "1",
    "pass_rate_72b_tir": "n/a",
    "problem_source": "s",
    "candidates": [],
}
LABEL = {
    "id": "omr-000000",
    "index": 0,
    "correct": True,
    "judged": True,
    "reasoning": "r",
    "finish_reason": "stop",
    "source": "judge",
}


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"a": 1}])

    def rows():
        yield {"a": 2}
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        write_jsonl(path, rows())
    assert path.read_text() == '{"a":1}\n'
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_killed_write_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    code = (
        "import os, sys; from genselect.formats import write_jsonl\n"
        "def rows():\n    yield {'a': 1}\n    os.kill(os.getpid(), 9)\n"
        "write_jsonl(sys.argv[1], rows())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "rows.jsonl")], check=False)
    assert done.returncode == -9
    assert not (tmp_path / "rows.jsonl").exists()


def test_a_full_disk_is_named_with_the_way_out(tmp_path: Path) -> None:
    # A file size limit stands in for a full disk: the same kind of error at the same place, and needs no rights to mount.
    code = (
        "import resource, signal, sys; from genselect.formats import write_jsonl\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "write_jsonl(sys.argv[1], ({'a': 'x' * 100} for _ in range(1000)))"
    )
    path = tmp_path / "rows.jsonl"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert f"{path}: could not be written: the file size limit is reached" in done.stderr
    assert "Hint: Free space there" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_no_space_left_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(GenselectError, match="no space is left"), atomic_path(tmp_path / "x") as temporary:
        temporary.symlink_to("/dev/full")
        with temporary.open("wb", buffering=0) as handle:
            handle.write(b"x")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b'{"a": 1}\n{"a": \n', "line 2: not JSON"),
        (b'{"a": "\xff"}\n', "line 1: not JSON in UTF-8"),
        (b"[1]\n", "line 1: a JSON object was expected, not list"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(GenselectError, match=what) as caught:
        list(read_jsonl(path))
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for read in (lambda path: list(read_jsonl(path)), read_json):
        with pytest.raises(GenselectError, match=r"gone\.jsonl: there is no such file"):
            read(tmp_path / "gone.jsonl")


@pytest.mark.parametrize(
    ("read", "row", "change", "what"),
    [
        (read_problems, PROBLEM, {"answer": None}, "answer must be a string, not NoneType"),
        (read_problems, PROBLEM, {"candidates": [{"text": 3}]}, "candidate 0 must hold text"),
        (read_labels, LABEL, {"correct": 1}, "correct must be true or false, not int"),
        (read_labels, LABEL, {"index": True}, "index must be an integer, not bool"),
        (read_labels, LABEL, {"source": "oracle"}, "source is 'oracle', not one of identical"),
    ],
)
def test_a_record_that_does_not_fit_is_named(tmp_path: Path, read, row: dict, change: dict, what: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, **change}) + "\n")
    with pytest.raises(GenselectError, match="line 2: " + what) as caught:
        list(read(path))
    assert str(path) in str(caught.value)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({name: value for name, value in PROBLEM.items() if name != "id"}))
    with pytest.raises(GenselectError, match="line 1: id is missing"):
        list(read_problems(path))

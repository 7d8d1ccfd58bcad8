"""Seals name what they cover, tell changed files apart, and carry no secret."""

from __future__ import annotations

import datetime
import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from genselect.errors import GenselectError
from genselect.provenance import check_seal, circumstances, collect, redact, seal_path, write_seal

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def sealed(folder: Path) -> Path:
    (folder / "in.txt").write_text("in")
    (folder / "out.txt").write_text("out")
    write_seal(
        folder / "out.txt",
        kind="test",
        counts={"rows": 1},
        outputs=[folder / "out.txt"],
        inputs=[folder / "in.txt"],
        started=NOW,
        fingerprints={"judge": "ab"},
        config={"seed": 1},
    )
    return folder / "out.txt"


def test_a_seal_says_what_went_in_and_came_out(tmp_path: Path) -> None:
    path = sealed(tmp_path)
    seal = check_seal(path)
    assert seal is not None
    assert seal.outputs[0].path == "out.txt"
    assert seal.outputs[0].sha256 == hashlib.sha256(b"out").hexdigest()
    assert seal.inputs[0].sha256 == hashlib.sha256(b"in").hexdigest()
    values = json.loads(seal_path(path).read_text())
    assert values["schema_version"] == 1
    assert values["provenance"]["packages"]["pyarrow"]
    assert {"git_commit", "git_dirty_sha256", "lock_sha256", "host", "gpus", "slurm", "argv"} <= set(
        values["provenance"]
    )


def test_a_file_changed_after_sealing_is_refused(tmp_path: Path) -> None:
    path = sealed(tmp_path)
    path.write_text("tampered")
    with pytest.raises(GenselectError, match=r"out\.txt: its content is not what out\.txt\.seal\.json sealed"):
        check_seal(path)


def test_a_seal_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = sealed(tmp_path)
    values = json.loads(seal_path(path).read_text())
    seal_path(path).write_text(json.dumps({**values, "schema_version": 99}))
    with pytest.raises(GenselectError, match="a seal of schema version 99, and this code reads 1"):
        check_seal(path)


def test_uncommitted_changes_are_told_apart_by_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    monkeypatch.setattr(circumstances, "source_root", lambda: tmp_path.resolve())
    git("init")
    (tmp_path / "a.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    seen = []
    for text in ("1", "2", "3"):
        (tmp_path / "a.py").write_text(text)
        circumstances._git.cache_clear()
        seen.append(collect()["git_dirty_sha256"])
    circumstances._git.cache_clear()
    assert seen[0] is None
    assert seen[1] != seen[2]
    assert None not in seen[1:]


def test_secrets_are_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh12345678")
    argv = [
        "x.py",
        "--token",
        "first-secret",
        "--api-key=second-secret",
        "--url=http://u:hf_abcdefgh12345678@h",
        "plain",
    ]
    shown = " ".join(redact(argv))
    assert "secret" not in shown
    assert "hf_abcdefgh12345678" not in shown
    assert shown.endswith("plain")
    assert "hf_abcdefgh12345678" not in json.dumps(collect(argv))

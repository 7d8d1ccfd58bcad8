"""A folder that appears whole or not at all, also after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from genselect.base_model.folder import whole_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from genselect.base_model.folder import whole_folder
with whole_folder(Path(sys.argv[1])) as staged:
    (staged / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_kill_left_goes_with_the_next_one_and_nothing_else_does(tmp_path: Path) -> None:
    output = tmp_path / "model"
    others = [".model.old.0123abcd.tmp", ".model.tmp", ".models.0123abcd.tmp"]
    for name in others:
        (tmp_path / name).mkdir()
    killed = subprocess.run([sys.executable, "-c", KILLED, str(output)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == len(others) + 1
    with whole_folder(output) as staged:
        (staged / "whole").write_text("whole")
    assert names(tmp_path) == sorted([*others, "model"])
    assert names(output) == ["whole"]


def test_weights_can_be_read_by_whoever_may_read_other_files(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("")
    with whole_folder(tmp_path / "model") as staged:
        weights = staged / "sub" / "model.safetensors"
        weights.parent.mkdir()
        weights.touch(mode=0o600)
    assert (tmp_path / "model/sub/model.safetensors").stat().st_mode == other.stat().st_mode


def test_a_block_that_fails_leaves_the_former_folder(tmp_path: Path) -> None:
    output = tmp_path / "model"
    with whole_folder(output) as staged:
        (staged / "first").write_text("1")
    with pytest.raises(OSError, match="no"), whole_folder(output) as staged:
        (staged / "second").write_text("2")
        raise OSError("no")
    assert names(output) == ["first"]
    assert names(tmp_path) == ["model"]

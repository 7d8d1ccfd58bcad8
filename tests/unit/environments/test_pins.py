"""Lock, conda environment and ``.in`` file of each environment say the same, and a difference is found before anyone installs it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pins
import pytest
import yaml


@pytest.fixture
def envs(repository: Path, tmp_path: Path) -> Path:
    """A copy of the pins, to be changed."""
    copy = tmp_path / "envs"
    copy.mkdir()
    for path in (repository / "envs").iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    return copy


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert re.search(old, text, re.MULTILINE), f"{old} is not in {path.name}"
    path.write_text(re.sub(old, new, text, count=1, flags=re.MULTILINE))


@pytest.mark.parametrize("name", pins.NAMES)
def test_lock_environment_and_request_are_in_step(name: str) -> None:
    assert pins.problems(name) == []


@pytest.mark.parametrize("name", pins.NAMES)
def test_an_environment_holds_the_whole_lock_by_version_and_hash(repository: Path, name: str) -> None:
    # Read with other means than those that wrote it.
    values = yaml.safe_load((repository / "envs" / f"{name}.yaml").read_text())
    *conda, pip = values["dependencies"]
    assert {entry.partition("==")[0] for entry in conda} >= {"python", "pip"}
    assert all(re.fullmatch(r"[\w.-]+==\d+(\.\d+)+|[\w.-]+=[^=]+=[^=]+", entry) for entry in conda)
    assert all(re.fullmatch(r"\S+==\S+( --hash=sha256:[0-9a-f]{64})+", line) for line in pip["pip"])
    script = repository / "envs" / f"{name}.post-deploy.sh"
    installed = "\n".join([*pip["pip"], script.read_text() if script.exists() else ""])
    locked = re.findall(r"^[A-Za-z0-9._-]+==[^\s\\]+", (repository / "envs" / f"{name}.lock").read_text(), re.MULTILINE)
    assert sorted(re.findall(r"^[A-Za-z0-9._-]+==\S+", installed, re.MULTILINE)) == sorted(locked)
    assert len(locked) > 40


def test_training_has_what_verl_asks_for_on_cards(repository: Path) -> None:
    lock = {pin.name: pin.version for pin in pins.read_lock(repository / "envs" / "train.lock")}
    assert lock.items() >= {"torch": "2.11.0", "vllm": "0.24.0", "transformers": "5.9.0", "flash-attn": "2.8.3"}.items()
    # Its build imports torch, so pip must not build it apart, before torch is there.
    assert "flash-attn" not in (repository / "envs" / "train.yaml").read_text()
    assert "--no-build-isolation" in (repository / "envs" / "train.post-deploy.sh").read_text()


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("data.lock", r"^pandas==\S+", "pandas==3.0.0", "data.yaml is not what"),
        ("data.lock", r"(^orjson==.*\n +--hash=sha256:)\w{6}", r"\g<1>000000", "data.yaml is not what"),
        ("data.yaml", r"- pandas==\S+", "- pandas==3.0.0", "data.yaml is not what"),
        ("data.yaml", r"--hash=sha256:\w{6}", "--hash=sha256:000000", "data.yaml is not what"),
        ("data.yaml", r"^      - rich==.*\n", "", "data.yaml is not what"),
        ("conda.pins", r"^python==.*", "python==3.11.1", "data.yaml is not what"),
        ("data.in", r"^datasketch.*", "datasketch>=99", "asks for datasketch>=99, and envs/data.lock pins"),
        ("data.in", r"^datasketch.*", "datasketch\nflask", "asks for flask, and envs/data.lock has none"),
        ("data.in", r"^datasketch.*\n", "", "pins datasketch for data.in, which does not ask for it"),
        ("data.in", r"==0\.9\.0", "==0.8.0", "asks for math-verify"),
    ],
)
def test_what_is_out_of_step_is_named(envs: Path, file: str, old: str, new: str, says: str) -> None:
    change(envs / file, old, new)
    assert any(says in problem for problem in pins.problems("data", envs)), pins.problems("data", envs)


def test_what_another_file_brings_counts_as_asked_for(envs: Path) -> None:
    change(envs / "data.in", r"^datasketch.*\n", "")
    assert any("pins datasketch" in problem for problem in pins.problems("judge", envs))


def test_a_script_that_is_missing_or_left_behind_is_named(envs: Path) -> None:
    (envs / "train.post-deploy.sh").rename(envs / "judge.post-deploy.sh")
    assert any("train.post-deploy.sh is not what" in problem for problem in pins.problems("train", envs))
    assert any("judge.post-deploy.sh is not what" in problem for problem in pins.problems("judge", envs))


def test_a_pin_without_a_hash_is_named(envs: Path) -> None:
    change(envs / "data.lock", r"(^orjson==\S+) \\\n( +--hash\S+( \\)?\n)+", r"\g<1>\n")
    assert "envs/data.lock: orjson has no hash" in pins.problems("data", envs)


def test_a_pin_file_of_conda_is_refused(envs: Path) -> None:
    # Beside one Snakemake reads no YAML: nothing from the package index would be installed.
    (envs / "data.linux-64.pin.txt").write_text("@EXPLICIT\n")
    assert any("data.linux-64.pin.txt" in problem for problem in pins.problems("data", envs))


def test_the_command_tells_and_fails(envs: Path) -> None:
    command = [sys.executable, str(envs / "make_locks.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0
    change(envs / "publish.lock", r"^pyarrow==\S+", "pyarrow==1.0.0")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "publish.yaml is not what envs/publish.lock" in done.stderr
    assert "Hint: make lock" in done.stderr

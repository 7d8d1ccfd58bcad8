"""What tests share: where the repository and, if it lies there, the data beside it are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Real shards and answer cases may lie beside the checkout; a clone has none.
SHARED = ROOT.parent / "shared"

# Helpers that tests of several folders share (processes.py) are found by name.
sys.path.insert(0, str(Path(__file__).parent))

# Programs started by tests find the same Python first, whether or not the environment is activated.
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip("no real data beside this checkout (../shared); the generated miniature covers the same code")
    return SHARED


Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def script() -> Script:
    """Run a program of workflow/scripts as a user would: ``script("build_rows", "--merged", path, ...)``."""

    def run(name: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "workflow" / "scripts" / f"{name}.py"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, **options)  # type: ignore[call-overload]

    return run


@pytest.fixture
def models_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPServer]:
    """A Hub on this machine with one model (model_hub.py)."""
    from model_hub import model_hub

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with model_hub() as server:
        yield server

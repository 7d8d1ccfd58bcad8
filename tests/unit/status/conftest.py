"""Makes ``status_folder`` importable by the tests of this folder; an empty results folder to fill with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from status_folder import Results


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    # What a power cut would leave is not looked at here.
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def results(tmp_path: Path) -> Iterator[Results]:
    """One with nothing but its configuration."""
    made = Results(tmp_path / "results")
    made.configure()
    yield made
    for working in made.open:
        working.directory.close()

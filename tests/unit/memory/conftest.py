"""Makes ``small_model`` importable by the tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from genselect.memory import Architecture, architecture_from

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def small() -> Architecture:
    """Of :data:`small_model.CONFIG`."""
    from small_model import CONFIG

    return architecture_from(CONFIG, "small")

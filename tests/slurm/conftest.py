"""A real Slurm for the tests of this folder, and copies of the project that run on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster import Slurm, why_not
from study import Study


@pytest.fixture(scope="module")
def nodes() -> int:
    """Nodes of the module's cluster, each with eight cards."""
    return 1


@pytest.fixture(scope="module")
def slurm(nodes: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """The module's cluster."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with Slurm(tmp_path_factory.mktemp("slurm") / "cluster", nodes=nodes) as cluster:
        yield cluster


@pytest.fixture
def study(repository: Path, slurm: Slurm, tmp_path: Path) -> Iterator[Study]:
    """A copy of the project in which nothing has run; its jobs are gone from Slurm afterwards."""
    yield Study(repository, tmp_path / "study", slurm)
    slurm.cancel_all()


@pytest.fixture
def training(study: Study) -> Callable[..., Study]:
    """A copy with one run whose rows are there: ``training(steps=…, save_every=…, cards=…, …)``; a step takes ``step_s`` seconds."""

    def prepare(steps: int, save_every: int = 1, cards: int = 8, step_s: float = 0.5, **settings: object) -> Study:
        study.rows()
        schedule = {"steps": steps, "save_every": save_every, "validate_every": 0, "anchor_every": None}
        study.configure(run={"kind": "smoke", "cards": cards, "schedule": schedule, **settings})
        study.environment["STAND_IN_STEP_S"] = str(step_s)
        return study

    return prepare

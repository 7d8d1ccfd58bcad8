"""A copy of the checkout in which the miniature has run, shared by the tests of this folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

# The cluster of the tests on Slurm.
sys.path.insert(0, str(Path(__file__).parents[1] / "slurm"))

#: Small enough for a few seconds, large enough for every trap of the generated shards to occur.
PROBLEMS = 120
_PARTS = ("Snakefile", "rules", "workflow", "config", "profiles", "envs")


@dataclass(frozen=True)
class Checkout:
    """A copy of the project in which Snakemake can be run and files may be touched."""

    root: Path

    def snakemake(
        self, *arguments: str, profile: str = "profiles/mini", check: bool = True, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Run Snakemake as the README says, with the copy's own configuration."""
        command = ["snakemake", "--profile", profile, *arguments]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False, timeout=timeout)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def planned(self, *arguments: str) -> dict[str, int]:
        """The rules that a dry run of the data stages would run, with their number of jobs."""
        text = self.snakemake("-n", "data", *arguments).stdout
        rows = re.findall(r"^(\w+)\s+(\d+)$", text, flags=re.MULTILINE)
        return {rule: int(count) for rule, count in rows if rule not in {"total", "all", "data"}}

    def configure(self, changes: Iterable[tuple[str, object]]) -> None:
        """Set keys (``judge.client.concurrency``) in the copy's miniature configuration."""
        path = self.root / "config" / "mini.yaml"
        values = yaml.safe_load(path.read_text())
        for key, value in changes:
            *sections, name = key.split(".")
            section = values
            for part in sections:
                section = section.setdefault(part, {})
            section[name] = value
        path.write_text(yaml.safe_dump(values))


@pytest.fixture(scope="session")
def untouched(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A copy of the project as it is, in which nothing has run; its own configuration counts."""
    root = tmp_path_factory.mktemp("untouched")
    for part in _PARTS:
        source = repository / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=shutil.ignore_patterns("__pycache__", "*.lock", "*.egg-info"))
        else:
            shutil.copy(source, root / part)
    return Checkout(root)


@pytest.fixture(scope="session")
def finished(untouched: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The miniature, made small, after its data stages have run. Not to be changed: see ``checkout``."""
    root = tmp_path_factory.mktemp("finished") / "checkout"
    # What a soak test may have made there stays behind.
    shutil.copytree(untouched.root, root, symlinks=True, ignore=shutil.ignore_patterns("results", ".snakemake"))
    copy = Checkout(root)
    copy.configure([("dataset.generated.problems", PROBLEMS)])
    done = copy.snakemake("data")
    (root / "first_run.txt").write_text(done.stdout + done.stderr)
    return copy


@pytest.fixture
def checkout(finished: Checkout, tmp_path: Path) -> Checkout:
    """A copy of the finished miniature that a test may change; file times are kept."""
    root = tmp_path / "checkout"
    shutil.copytree(finished.root, root, symlinks=True)
    return Checkout(root)


@pytest.fixture(scope="session")
def selected(finished: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A copy of the finished data in which the base model has been made and played, the control's rows chosen from that, and the
    evaluation preregistered."""
    root = tmp_path_factory.mktemp("selected") / "checkout"
    shutil.copytree(finished.root, root, symlinks=True)
    copy = Checkout(root)
    copy.configure([("overfit_sets.control.per_band", 1), ("runs.overfit.schedule.problems", 4)])
    wanted = ("data/mini/overfit/control/selection.csv", "evaluation/mini/preregistration.json")
    copy.snakemake(*(f"results/{name}" for name in wanted), timeout=1500)
    return copy

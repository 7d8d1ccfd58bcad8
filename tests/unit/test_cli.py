"""Programs end with a status, a message a user can act on, and a log that has it too."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from genselect.cli import run
from genselect.errors import GenselectError


def raising(error: Exception):
    def main(arguments: argparse.Namespace) -> None:
        raise error

    return main


def test_a_fault_of_the_user_prints_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "logs" / "x.log"
    status = run(
        argparse.ArgumentParser(), raising(GenselectError("a.jsonl, line 3: broken", "Mend it.")), ["--log", str(log)]
    )
    assert status == 2
    assert capsys.readouterr().err == "error: a.jsonl, line 3: broken\nHint: Mend it.\n"
    assert "a.jsonl, line 3: broken\nHint: Mend it." in log.read_text()


def test_a_fault_of_the_program_is_told_with_its_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "x.log"
    assert run(argparse.ArgumentParser(), raising(ValueError("unforeseen")), ["--log", str(log)]) == 1
    for text in (capsys.readouterr().err, log.read_text()):
        assert "a fault of the program" in text
        assert "ValueError: unforeseen" in text


def test_success_is_status_zero() -> None:
    assert run(argparse.ArgumentParser(), lambda arguments: None, []) == 0


def test_a_hint_survives_a_worker_process() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(GenselectError("what", "how")))
    assert str(error) == "what\nHint: how"


PROGRAMS = sorted(path.stem for path in (Path(__file__).resolve().parents[2] / "workflow" / "scripts").glob("*.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_explains_itself(script, name: str) -> None:
    done = script(name, "--help")
    assert done.returncode == 0, done.stderr
    assert "usage: " in done.stdout

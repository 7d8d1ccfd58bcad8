"""Run directories as the launcher and the recorder leave them, read for the report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from run_folder import RunFolder

from genselect.errors import GenselectError
from genselect.formats import write_json
from genselect.report.run_files import HeldOut, read_run_files


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "formal", algorithm="ppo").attempt()


def test_what_one_finished_run_holds(run: RunFolder) -> None:
    run.line(0, val__verdict=0.5, val__rows=128.0)
    run.step(1, **run.potential(1))
    run.step(2, val__verdict=0.75, val__rows=128.0, **run.potential(2))
    run.records(1, [0, 2, 2, 8])
    run.proofs(1, predictor_k0=True)
    write_json(run.path / "done.json", {"run": "formal", "steps": 2})
    found = read_run_files(run.path)
    assert (found.name, found.settings, found.steps) == ("formal", {"algorithm": "ppo"}, [1, 2])
    assert found.validation == {0: HeldOut(0.5, 128), 2: HeldOut(0.75, 128)}
    assert found.explores == {1: {0: 1, 2: 2, 8: 1}}
    assert [proof["name"] for proof in found.proofs[1]] == ["predictor_k0"]
    assert found.potential.keys() == {1, 2}
    assert found.potential[1]["critic"]["overall"]["count"] == 60
    assert found.done == {"run": "formal", "steps": 2}
    assert found.health is not None
    assert found.health["step"] == 2


def test_two_attempts_a_guard_stop_and_nulls(run: RunFolder) -> None:
    run.line(0, val__verdict=0.5, val__rows=128.0)
    run.step(1)
    run.step(2, episode__score=None, actor__ppo_kl_max=None)
    run.records(2, [4, 4, 4])
    run.attempt(resumed_from=2, ended="killed")
    run.records(2, [1, 1])  # the same step, drawn again
    run.step(3, actor__ppo_kl_max=-0.2, val__verdict=None)
    run.step(4, actor__ppo_kl_max=0.3)
    found = read_run_files(run.path)
    assert [entry["reason"] for entry in found.attempts] == ["killed", None]
    assert found.resumes() == {3: 2}
    assert found.explores == {2: {1: 2}}
    np.testing.assert_array_equal(found.series("actor/ppo_kl_max"), [0.004, np.nan, -0.2, 0.3])
    np.testing.assert_array_equal(found.series("episode/score"), [0.4, np.nan, 0.4, 0.4])
    assert found.validation.keys() == {0}
    assert found.health is not None
    assert [entry["level"] for entry in found.health["steps"]] == ["healthy", "healthy", "alarm", "stop"]
    assert found.done is None


def test_the_validation_that_a_second_start_from_nothing_made_again_counts(run: RunFolder) -> None:
    run.line(0, val__verdict=0.5, val__rows=10.0)
    run.attempt(ended="killed")
    run.line(0, val__verdict=0.6, val__rows=10.0)
    run.step(1)
    assert read_run_files(run.path).validation == {0: HeldOut(0.6, 10)}
    assert read_run_files(run.path).resumes() == {}


def test_a_step_that_is_still_being_written_does_not_count(run: RunFolder) -> None:
    run.step(1)
    for step in (1, 2):
        run.records(step, [3])
        run.proofs(step, predictor_k0=True)
        run.potential(step)
    with (run.path / "metrics.jsonl").open("a") as handle:
        handle.write('{"step":2,"attempt":1,"episode/ver')
    found = read_run_files(run.path)
    assert (found.steps, list(found.explores), list(found.proofs), list(found.potential)) == ([1], [1], [1], [1])


def test_a_run_before_its_first_step_is_no_error(run: RunFolder) -> None:
    run.line(0, val__verdict=0.5, val__rows=10.0)
    found = read_run_files(run.path)
    assert found.steps == []
    assert found.health is None
    assert found.explores == {}


@pytest.mark.parametrize("name", ["manifest.json", "metrics.jsonl"])
def test_a_missing_file_is_named_with_a_way_out(run: RunFolder, name: str) -> None:
    run.step(1)
    (run.path / name).unlink()
    with pytest.raises(GenselectError, match=name) as refused:
        read_run_files(run.path)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("manifest.json", "[]"),
        ("metrics.jsonl", "{broken\n{}\n"),
        ("metrics.jsonl", '{"attempt":1}\n'),
        ("health.json", "[]"),
        ("proofs/step_1.json", "{}"),
        ("potential/step_1.json", "[]"),
        ("records/step_1.parquet", "no parquet"),
    ],
)
def test_a_damaged_file_is_named(run: RunFolder, name: str, content: str) -> None:
    run.step(1)
    path = run.path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    with pytest.raises(GenselectError, match=name):
        read_run_files(run.path)


def test_reading_a_run_needs_no_training_library() -> None:
    code = (
        "import sys, genselect.report.figures_run, genselect.report.figures_calibration; "
        "print(sorted({'torch', 'ray', 'verl', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"

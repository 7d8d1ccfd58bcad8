"""Stages by their files, and folders that are copied, torn, foreign or empty."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from status_folder import Results, four_steps, run_of, shown, stage_of, words

from genselect.errors import GenselectError
from genselect.formats import write_json
from genselect.status import collect
from genselect.status.model import State

# Stages before the runs


def test_labelling_jobs_say_how_many_pairs_and_how_long(results: Results) -> None:
    results.built()
    data = results.root / "data" / "mini"
    (data / "labels.jsonl").unlink()
    progress = {"rate": 2.0, "stage": "judge", "updated": "2026-11-29T11:59:50+00:00"}
    for name, done, judged, eta in (("1-of-2", 90, 40, 5.0), ("2-of-2", 60, 21, 20.0)):
        values = {"total": 100, "done": done, "judged": judged, "eta_s": eta, "state": "running", **progress}
        write_json(data / "labels" / name / "journal" / "progress.json", values)
    status = results.status()
    labels = stage_of(status, "labels")
    assert (labels.state, labels.done, labels.total) == (State.RUNNING, 150, 200)
    assert (labels.judge_calls, labels.eta_s, labels.seen_s) == (61, 20.0, 10.0)
    assert stage_of(status, "labels", "2-of-2").done == 60
    assert "labels running 150/200 20 s 10 s 61 judge calls" in words(shown(status, 120))
    assert stage_of(status, "build").state is State.DONE  # its file stands; whether it is stale is Snakemake's to say


@pytest.mark.parametrize(
    ("state", "updated", "wanted"),
    [
        ("running", "2026-11-29T11:59:50+00:00", State.RUNNING),
        ("running", "2026-11-29T11:00:00+00:00", State.SILENT),
        ("stopped", "2026-11-29T11:59:50+00:00", State.STOPPED),
    ],
)
def test_labelling_is_judged_by_its_own_clock(results: Results, state: str, updated: str, wanted: State) -> None:
    data = results.built().root / "data" / "mini"
    (data / "labels.jsonl").unlink()
    values = {"total": 9, "done": 3, "judged": 0, "eta_s": 4.0, "stage": "judge", "state": state, "updated": updated}
    write_json(data / "labels" / "1-of-2" / "journal" / "progress.json", values)
    labels = stage_of(results.status(), "labels")
    assert (labels.state, labels.eta_s) == (wanted, 4.0 if wanted is State.RUNNING else None)


def test_a_rollout_counts_its_parts(results: Results) -> None:
    results.built()
    folder = results.root / "rollouts" / "untrained" / "parts"
    results.log("rollout_policy/untrained.log", "2026-11-29 11:59:00,000 INFO rollout untrained: 70/144 episodes")
    for number in range(2):
        results.file(folder / "now" / f"part_{number:05d}" / "step_0.parquet")
    results.file(folder / "other-settings" / "part_00000" / "step_0.parquet")
    rollout = stage_of(results.status(), "rollout", "untrained")
    # 36 of the 40 rows wanted are there: three parts of up to 16.
    assert (rollout.state, rollout.done, rollout.total) == (State.RUNNING, 2, 3)
    assert rollout.note == "rollout untrained: 70/144 episodes"
    results.rolled_out()
    rollout = stage_of(results.status(), "rollout", "untrained")
    assert (rollout.state, rollout.done, rollout.note) == (State.DONE, 3, "verdict 0.250 over 144 episodes")


@pytest.mark.parametrize(
    ("level", "age", "wanted"), [("INFO", 60, State.RUNNING), ("INFO", 3600, State.SILENT), ("ERROR", 60, State.FAILED)]
)
def test_a_stage_without_its_file_is_known_by_its_log(results: Results, level: str, age: float, wanted: State) -> None:
    results.log("make_base_model.log", f"2026-11-29 11:00:00,000 {level} error: [bold]no space is left[/]", age=age)
    model = stage_of(results.status(), "model")
    assert (model.state, model.note) == (wanted, "[bold]no space is left[/]")


def test_the_evaluation_waits_for_its_arms_and_counts_their_parts(results: Results) -> None:
    results.built()
    status = results.status()
    assert stage_of(status, "baselines").state is State.ABSENT
    assert stage_of(status, "preregistration").waits_for == ["baselines", "arm untrained"]
    assert stage_of(status, "arm", "formal@12").waits_for == ["run formal"]
    folder = results.root / "evaluation" / "mini"
    results.file(folder / "baselines.parquet")
    results.file(folder / "parts" / "untrained" / "print" / "part_00000" / "step_0.parquet")
    results.log("evaluate_arm/untrained.log", "2026-11-29 11:59:00,000 INFO arm untrained: 30/96 episodes")
    status = results.status()
    arm = stage_of(status, "arm", "untrained")
    assert (arm.state, arm.done, arm.total, arm.note) == (State.RUNNING, 1, 2, "arm untrained: 30/96 episodes")
    assert stage_of(status, "preregistration").waits_for == ["arm untrained"]
    results.file(folder / "arms" / "untrained.parquet")
    write_json(folder / "preregistration.json", {})
    status = results.status()
    assert stage_of(status, "preregistration").state is State.DONE
    assert stage_of(status, "arm", "untrained").done == 2
    assert "arm formal@12" in stage_of(status, "comparison").waits_for
    results.file(folder / "comparison.md")
    write_json(folder / "comparison.json", {})
    assert stage_of(results.status(), "comparison").note == "evaluation/mini/comparison.md"


def test_results_from_before_there_was_an_evaluation_wait_for_none(results: Results) -> None:
    results.built()
    smoke = results.run("smoke")
    smoke.step(1)
    smoke.end("done")
    results.gate("smoke")
    path = results.root / "data" / "mini" / "config.yaml"
    values = yaml.safe_load(path.read_text())
    del values["evaluation"]
    path.write_text(yaml.safe_dump(values))
    status = results.status()
    assert run_of(status).state is State.ABSENT
    assert {"arm", "comparison"}.isdisjoint(stage.stage for stage in status.stages)


def test_the_report_waits_for_the_comparison_and_names_its_page(results: Results) -> None:
    waiting = stage_of(results.status(), "report")
    assert waiting.state is State.WAITING
    assert "comparison" in waiting.waits_for
    results.file(results.root / "report" / "mini" / "index.html")
    done = stage_of(results.status(), "report")
    assert done.state is State.DONE
    assert done.note == "report/mini/index.html"


# Copies, torn files, nothing at all


@pytest.mark.parametrize(("age", "wanted"), [(60.0, State.RUNNING), (4000.0, State.SILENT)])
def test_a_copy_on_another_machine_claims_nothing_about_the_process(
    results: Results, age: float, wanted: State
) -> None:
    formal = four_steps(results)
    formal.die()
    # The pid is one that lives here, which means nothing.
    lock = {"pid": os.getpid(), "host": "node17", "since": "2026-11-29T11:00:00+00:00"}
    (formal.path / ".lock").write_text(json.dumps(lock))
    formal.age(age)
    status = results.status()
    run = run_of(status)
    assert (run.state, run.seen_s) == (wanted, age)
    assert run.lock is not None
    assert run.lock.held is None
    assert f"formal: locked by pid {os.getpid()} on host node17 since" in words(shown(status))


def test_a_torn_last_metrics_line_is_told_and_the_ones_before_count(results: Results) -> None:
    formal = four_steps(results)
    with (formal.path / "metrics.jsonl").open("ab") as handle:
        handle.write(b'{"step":5,"attempt":1,"episode/ver')
    status = results.status()
    run = run_of(status)
    assert run.step == 4
    assert run.problems == [
        "unreadable: runs/formal/metrics.jsonl: line 5 is torn (being written, or its writer was killed)"
    ]
    assert "runs/formal/metrics.jsonl: line 5 is torn" in words(shown(status))


def test_a_missing_manifest_is_told(results: Results) -> None:
    formal = four_steps(results)
    formal.die()
    (formal.path / "manifest.json").unlink()
    run = run_of(results.status())
    assert run.problems == [
        "unreadable: runs/formal/manifest.json: it is missing, so nobody can tell whose run this is"
    ]
    assert run.step == 4


FAULTS = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe\x00",
    b'{"attempts": 3, "steps": "x", "findings": {}, "counts": []}',
)


@pytest.mark.parametrize("content", FAULTS)
def test_no_broken_file_ends_it(results: Results, content: bytes) -> None:
    results.built().rolled_out()
    smoke = results.run("smoke")
    smoke.step(1)
    smoke.end("done")
    results.gate("smoke")
    four_steps(results).end("guard", 3)
    write_json(results.root / "data/mini/labels/1-of-2/journal/progress.json", {"total": 1})
    files = [
        path
        for path in results.root.rglob("*")
        if path.is_file() and path.suffix in (".json", ".jsonl", ".yaml", ".lock")
    ]
    files += list(results.root.rglob(".lock"))
    assert len(files) > 15
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(content)
        status = results.status()
        assert shown(status)
        json.dumps(status.as_json())
        if content in (b"{", b"\xff\xfe\x00") and path.name in (
            "health.json",
            "manifest.json",
            "done.json",
            "config.yaml",
        ):
            assert f"{path.relative_to(results.root)}" in words(shown(status, 200)), path
        path.write_bytes(whole)


def test_an_unreadable_configuration_leaves_what_the_folder_shows(results: Results) -> None:
    results.built()
    four_steps(results)
    (results.root / "data" / "mini" / "config.yaml").write_text("dataset: {name: mini, colour: red}\n")
    status = results.status()
    run = run_of(status)
    assert (run.state, run.step, run.steps, run.kind, run.configured) == (State.RUNNING, 4, 12, "formal", False)
    assert stage_of(status, "merge").state is State.DONE
    assert "colour: no such key" in status.problems[0]


@pytest.mark.parametrize("hidden", ["runs/formal", "data/mini/labels", "gates"])
def test_a_folder_of_another_user_is_told(results: Results, monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    results.built()
    four_steps(results)
    real = os.stat

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if isinstance(path, str | Path) and f"{hidden}/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr("os.stat", stat)
    status = results.status()
    said = [*status.problems, *(problem for run in status.runs for problem in run.problems)]
    assert any(problem.startswith(f"unreadable: {hidden}") and "Permission denied" in problem for problem in said)
    assert {run.run for run in status.runs} == {"smoke", "formal", "second"}
    json.dumps(status.as_json())


def test_an_empty_folder_is_nothing_yet(tmp_path: Path) -> None:
    status = collect(tmp_path)
    assert (status.stages, status.runs, status.disk.used) == ([], [], 0)
    assert "nothing here yet" in shown(status)


def test_another_folder_is_refused(tmp_path: Path, results: Results) -> None:
    four_steps(results)
    with pytest.raises(GenselectError, match="no results folder"):
        collect(results.root / "runs")
    with pytest.raises(GenselectError, match="there is no such folder"):
        collect(tmp_path / "nowhere")


def test_nothing_is_written_and_no_lock_is_taken(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    results.built()
    four_steps(results)

    def tree() -> dict[str, tuple[int, str]]:
        return {
            str(path): (
                path.lstat().st_mtime_ns,
                hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            )
            for path in [results.root, *results.root.rglob("*")]
        }

    def refuse(*arguments: Any) -> None:
        raise AssertionError("a lock was asked for")

    monkeypatch.setattr("fcntl.flock", refuse)
    before = tree()
    results.status()
    assert tree() == before

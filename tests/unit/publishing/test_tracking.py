"""A run of several attempts is one run of the tracker: one continuous history, whatever was killed and redone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_wandb import FakeWandb
from tracked_folder import NAME, TrackedFolder, config, of_attempt, trajectory

from genselect.config import Config
from genselect.errors import GenselectError
from genselect.formats import read_json
from genselect.plan.runs import resolved_runs
from genselect.publishing.tracked_run import merged_history, read_tracked_run
from genselect.publishing.tracking import Mirrored, sync_run
from genselect.training.records import write_step

#: Steps and attempts of ``TrackedFolder.three_attempts``, the overlaps resolved: what each tracker must show.
HISTORY = [(step, of_attempt(step)) for step in range(21)]


def sync(folder: TrackedFolder, settings: Config | None = None, **options: Any) -> Mirrored:
    chosen = settings or config()
    return sync_run(chosen, resolved_runs(chosen), folder.name, folder.results, **options)


@pytest.fixture
def folder(tmp_path: Path) -> TrackedFolder:
    """In which the run has not begun."""
    return TrackedFolder(tmp_path / "results")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TrackedFolder(tmp_path_factory.mktemp("made") / "results").three_attempts().results


@pytest.fixture
def finished(made: Path, tmp_path: Path) -> TrackedFolder:
    """In which three attempts made the run."""
    return TrackedFolder(shutil.copytree(made, tmp_path / "finished"))


def wandbs_reader(path: Path) -> list[dict[str, Any]]:
    """Every record of an offline file, as wandb's own program reads it."""
    (file,) = path.rglob("*.wandb")
    program = Path(sys.executable).parent / "wandb"
    done = subprocess.run([program, "leet", "inspect", "--json", file], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


# Weights & Biases, offline


def test_wandbs_own_reader_shows_one_continuous_history_of_three_attempts(
    finished: TrackedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished.compared()
    # What stands in a user's shell must neither decide what is written nor be written.
    monkeypatch.setenv("WANDB_API_KEY", "a-key-that-nobody-may-see-0123456789abcde")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_RUN_ID", "another")
    monkeypatch.setenv("WANDB_ENTITY", "another")
    mirrored = sync(finished)
    assert os.environ["WANDB_RUN_ID"] == "another"
    lying = finished.results / "tracking" / NAME / "wandb"
    records = wandbs_reader(lying)

    assert '"another"' not in json.dumps(records)
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert [(row["_step"], row["attempt"]) for row in rows] == HISTORY
    assert [row["episode/verdict"] for row in rows[1:]] == [a + step / 100 for step, a in HISTORY[1:]]
    assert {row["_step"]: row["val/verdict"] for row in rows if "val/verdict" in row} == {
        0: 0.5,
        5: 0.55,
        10: 0.6,
        15: 0.65,
        20: 0.7,
    }

    (run,) = (record["run"] for record in records if record["type"] == "run")
    assert (run["run_id"], run["display_name"], run["project"]) == (mirrored.id, NAME, "genselect")
    assert run["tags"] == ["mini", "formal", "seed:1"]
    assert "Attempt 2: from the save of step 5, killed after step 12." in run["notes"]
    settings = run["config"]["update"]
    assert settings["optimiser"]["actor_lr"] == 1e-3
    assert [entry["reason"] for entry in settings["attempts"]] == ["killed", "killed", "done"]
    assert settings["lineage"] == {"extends": None, "differs": [], "start": None}

    summary: dict[str, Any] = {}
    for record in records:
        summary |= record["summary"]["update"] if record["type"] == "summary" else {}
    assert summary["done"]["steps"] == 20
    assert summary["comparison/formal@20 above untrained"] == "yes (+10.0 points)"
    assert not any("majority" in name for name in summary)  # not about this run

    table = read_json(next(lying.rglob("trajectories_*.json")))
    by_step = [row[0] for row in table["data"]]
    assert {step: by_step.count(step) for step in by_step} == {1: 10, 11: 11, 20: 11}
    assert {(row[0], row[1]) for row in table["data"]} == {(1, 1), (11, 3), (20, 3)}
    assert table["data"][0][-1] == f"step 1, attempt 1, question {int(table['data'][0][2][-6:])}"

    everything = [
        path.read_bytes() for path in finished.results.rglob("*") if path.is_file() and "runs" not in path.parts
    ]
    assert not any(b"a-key-that-nobody-may-see" in content for content in everything)
    machine = os.uname().nodename
    assert not any(
        record for record in records if record["type"] in ("run", "history") and f'"{machine}"' in json.dumps(record)
    )
    assert not list(lying.rglob("*.log"))


def test_nothing_new_writes_nothing_and_a_grown_run_keeps_its_id(folder: TrackedFolder) -> None:
    folder.attempt(range(1, 8), save=(5,))
    first = sync(folder)
    lying = folder.results / "tracking" / NAME / "wandb"
    before = {path: path.stat().st_mtime_ns for path in lying.rglob("*")}
    assert sync(folder) == first
    assert {path: path.stat().st_mtime_ns for path in lying.rglob("*")} == before
    folder.attempt(range(6, 21), save=(20,), end="done", finish=True)
    second = sync(folder)
    assert (first.id, first.last_step) == (second.id, 7)
    assert second.last_step == 20
    assert len(list(lying.iterdir())) == 1
    assert read_json(lying.parent / "run.json")["last_step"] == 20
    # Two runs of one name and other settings are two runs of the tracker.
    assert first.id == f"formal-{read_json(folder.path / 'manifest.json')['fingerprint'][:12]}"


# Weights & Biases, online


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWandb]:
    fake = FakeWandb()
    monkeypatch.setenv("WANDB_BASE_URL", fake.url)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    yield fake
    fake.close()


ONLINE = {"mode": "online", "entity": "somebody"}


def test_a_growing_run_is_sent_step_by_step_into_one_run(folder: TrackedFolder, server: FakeWandb) -> None:
    online = config(**ONLINE)
    folder.attempt(range(1, 8), save=(5,))
    first = sync(folder, online)
    stored = server.runs[first.id]
    # Steps 6 and 7 will be redone: W&B could not take them back.
    assert stored.steps == [0, 1, 2, 3, 4, 5]
    folder.attempt(range(6, 13), save=(10,))
    folder.attempt(range(11, 21), save=(15, 20), end="done", finish=True)
    second = sync(folder, online)
    assert list(server.runs) == [first.id] == [second.id]
    assert [(row["_step"], row["attempt"]) for row in stored.history] == HISTORY
    assert stored.summary["done"]["steps"] == 20
    assert len(stored.config["attempts"]["value"]) == 3
    server.asked.clear()
    assert sync(folder, online) == second
    assert server.asked == []
    assert second.url == f"{server.url}/somebody/genselect/runs/{first.id}"
    assert not any(b"k" * 40 in body for body in server.bodies)
    assert not any(b"k" * 40 in path.read_bytes() for path in folder.results.rglob("*") if path.is_file())


def test_steps_that_were_sent_and_redone_start_a_second_run(folder: TrackedFolder, server: FakeWandb) -> None:
    online = config(**ONLINE)
    folder.attempt(range(1, 10), save=(4, 8), end="guard")
    first = sync(folder, online)
    assert server.runs[first.id].steps[-1] == 9  # where a guard stopped it, the end is what one looks for
    with_broken_save = folder.path / "checkpoints" / "global_step_8" / "broken.json"
    with_broken_save.write_text('{"reason": "a guard"}')
    folder.attempt(range(5, 11), save=(10,), end="done", finish=True)
    second = sync(folder, online)
    assert second.id.startswith(f"{first.id}-")
    assert second.online is not None
    assert second.online.replaced == [first.id]
    rows = server.runs[second.id].history
    assert [(row["_step"], row["attempt"]) for row in rows] == [(step, 1 if step < 5 else 2) for step in range(11)]
    assert server.runs[first.id].steps[-1] == 9


def test_a_sending_that_was_cut_short_goes_on_under_its_id(
    finished: TrackedFolder, server: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    online = config(**ONLINE)
    with monkeypatch.context() as patched:
        patched.setattr("genselect.publishing.wandb_runs._log", _cut_short)
        with pytest.raises(KeyboardInterrupt):
            sync(finished, online)
    (stored,) = server.runs.values()
    assert len(stored.history) < 21
    sync(finished, online)
    assert len(server.runs) == 1
    assert [(row["_step"], row["attempt"]) for row in stored.history] == HISTORY


def _cut_short(wandb: Any, session: Any, run: Any, first: int) -> None:
    for point in run.history[:7]:
        session.log({**point.values, "attempt": point.attempt}, step=point.step)
    session.finish()
    raise KeyboardInterrupt


def test_without_a_key_and_of_unknown_runs_online_is_refused(
    finished: TrackedFolder, server: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync(finished, config(**ONLINE))
    (finished.results / "tracking" / NAME / "run.json").unlink()
    with pytest.raises(GenselectError, match="W&B refused") as caught:
        sync(finished, config(**ONLINE))
    assert "--new-run" in caught.value.hint
    assert sync(finished, config(**ONLINE), new_run=True).id in server.runs
    monkeypatch.delenv("WANDB_API_KEY")
    with pytest.raises(GenselectError, match="the environment has no WANDB_API_KEY"):
        sync(finished, config(**ONLINE), new_run=True)
    with pytest.raises(GenselectError, match="tensorboard is written into a folder and has no mode online"):
        sync(finished, config(kind="tensorboard", mode="online"))


# Other trackers


def test_tensorboard_shows_the_same_history_and_the_same_bytes_each_time(finished: TrackedFolder) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = config(kind="tensorboard")
    sync(finished, settings)
    (file,) = (finished.results / "tracking" / NAME / "tensorboard").iterdir()
    events = EventAccumulator(str(file.parent)).Reload()
    assert [(event.step, int(event.value)) for event in events.Scalars("attempt")] == HISTORY
    assert [event.step for event in events.Scalars("val/verdict")] == [0, 5, 10, 15, 20]
    text = events.Tensors("trajectories")[0].tensor_proto.string_val[0].decode()
    assert "step 20, attempt 3" in text
    before = file.read_bytes()
    file.unlink()
    file.parent.rmdir()
    sync(finished, settings)
    assert file.read_bytes() == before
    assert os.uname().nodename not in file.name


def test_trackio_gets_the_history_and_the_tables(finished: TrackedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not in the lock: what it was called with, as trackio 0.43 takes it (docs/tracking.md says how it was tried).
    calls: list[tuple[Any, ...]] = []
    stand_in = types.ModuleType("trackio")
    stand_in.init = lambda **options: calls.append(("init", options))  # type: ignore[attr-defined]
    stand_in.log = lambda values, step: calls.append((step, values))  # type: ignore[attr-defined]
    stand_in.finish = lambda: calls.append(("finish", os.environ["TRACKIO_DIR"], os.environ.get("TRACKIO_SPACE_ID")))  # type: ignore[attr-defined]
    stand_in.Table = lambda columns, data: ("table", len(data))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", stand_in)
    monkeypatch.setenv("TRACKIO_SPACE_ID", "somebody/elsewhere")
    sync(finished, config(kind="trackio", trajectories=6))
    assert calls[0][1]["config"]["optimiser"]["actor_lr"] == 1e-3
    assert [(step, values["attempt"]) for step, values in calls[1:-1]] == HISTORY
    assert calls[-2][1]["trajectories"] == ("table", 6)
    assert calls[-1][2] is None  # else it would have gone to a Space
    assert Path(calls[-1][1]).parent == finished.results / "tracking" / NAME


@pytest.mark.parametrize("kind", ["wandb", "tensorboard", "trackio"])
def test_a_tracker_that_is_not_installed_is_named(
    finished: TrackedFolder, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == kind]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(GenselectError, match=f"{kind} is .*not installed|is {kind}, which is not installed") as caught:
        sync(finished, config(kind=kind))
    assert f"pip install {kind}" in caught.value.hint
    assert not (finished.results / "tracking" / NAME / "run.json").exists()


# The history


def lines(path: Path, *entries: tuple[int, int]) -> Path:
    path.write_text(
        "".join(json.dumps({"step": step, "attempt": attempt, "x": attempt}) + "\n" for step, attempt in entries)
    )
    return path


def test_a_later_attempt_takes_the_place_of_all_that_it_redoes(tmp_path: Path) -> None:
    # As a kill during the trimming could leave it: attempt 1's steps 6 to 8 still there.
    path = lines(tmp_path / "m", (0, 1), *((step, 1) for step in range(1, 9)), (6, 2), (7, 2))
    assert [(point.step, point.attempt) for point in merged_history(path)] == [
        *((step, 1) for step in range(6)),
        (6, 2),
        (7, 2),
    ]
    # A start from nothing validates before its first step once more.
    path = lines(tmp_path / "n", (0, 1), (1, 1), (0, 2), (1, 2))
    assert [(point.step, point.attempt) for point in merged_history(path)] == [(0, 2), (1, 2)]
    path = lines(tmp_path / "o", (1, 1))
    with path.open("a") as handle:
        handle.write('{"step": 2, "att')  # still being written
    assert [point.step for point in merged_history(path)] == [1]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([(1, 1), (1, 1)], "line 2: step 1 after step 1, both of attempt 1"),
        ([(1, 2), (2, 1)], "line 2: attempt 1 after attempt 2"),
        ([(2, 1), (1, 1)], "line 2: step 1 after step 2"),
    ],
)
def test_lines_that_contradict_each_other_are_refused(
    tmp_path: Path, entries: list[tuple[int, int]], said: str
) -> None:
    with pytest.raises(GenselectError, match=said):
        merged_history(lines(tmp_path / "metrics.jsonl", *entries))


def test_a_gap_is_told(finished: TrackedFolder) -> None:
    path = finished.path / "metrics.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if '"step":13,' not in line))
    run = read_tracked_run(config(), resolved_runs(config()), NAME, finished.results)
    assert run.missing == (13,)
    assert "No metrics of steps 13." in run.notes
    sync(finished)
    records = wandbs_reader(finished.results / "tracking" / NAME / "wandb")
    steps = [record["history"]["item"]["_step"] for record in records if record["type"] == "history"]
    assert steps == [step for step in range(21) if step != 13]


def test_lineage_and_gated_texts(tmp_path: Path) -> None:
    folder = TrackedFolder(tmp_path / "results", "second")
    folder.attempt(range(1, 3), save=(2,))
    # A draw of a step that a later one replaced counts no more.
    write_step(folder.path / "records", 2, [trajectory(number, 2, 2) for number in range(12)])
    settings = config(trajectories=4)
    run = read_tracked_run(settings, resolved_runs(settings), "second", folder.results)
    assert run.tags == ("mini", "formal", "seed:2", "extends:formal", "start:formal@5")
    assert "Started from step 5 of formal.\nExtends formal; differs in: " in run.notes
    assert "seed: 1 -> 2" in run.notes
    assert [row[:2] for row in run.tables["trajectories"].rows] == [(1, 1), (1, 1), (2, 2), (2, 2)]
    gated = settings.model_copy(update={"build": settings.build.model_copy(update={"benchmark": "HLE"})})
    withheld = read_tracked_run(gated, resolved_runs(settings), "second", folder.results)
    assert "trajectories" not in withheld.tables
    assert "texts of HLE may not be published" in withheld.notes


def test_a_run_that_is_not_there_is_named(folder: TrackedFolder) -> None:
    settings = config()
    with pytest.raises(GenselectError, match="there is no run formall") as caught:
        sync_run(settings, resolved_runs(settings), "formall", folder.results)
    assert caught.value.hint == "Did you mean formal?"
    with pytest.raises(GenselectError, match="the run has not begun"):
        sync(folder)

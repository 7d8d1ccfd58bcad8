"""The run directory across starts: whose it is, who works in it, and what a killed attempt leaves for the next."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genselect.config import fingerprint
from genselect.errors import GenselectError
from genselect.provenance.run_directory import RunDirectory, resolve_start

IDENTITY: dict[str, Any] = {"actor": {"lr": 5e-5, "epochs": 2}, "cost": {"per_explore": 0.1}, "seed": 1}
SAVE_EVERY = 5
STEPS = 12


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    # Kills of a process lose nothing that the kernel has; what a power cut would leave is not looked at here.
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    with RunDirectory(tmp_path / "formal") as directory:
        directory.open(IDENTITY, {"config": "mini.yaml"})
        yield directory


def write_step(root: Path, step: int, attempt: int, *, dies_in: str = "") -> None:
    """What a trainer writes in a step, the same whoever writes it; ``dies_in`` names the write during which it is killed."""
    for folder, name in (
        ("records", f"step_{step}.parquet"),
        ("records", f"tokens_step_{step}.parquet"),
        ("potential", f"step_{step}.json"),
    ):
        (root / folder).mkdir(exist_ok=True)
        if dies_in == folder:
            (root / folder / f".{name}.0a1b.tmp").write_text("half")
            kill_me()
        (root / folder / name).write_text(f"{name} whole")
    if step % SAVE_EVERY == 0:
        (root / "validation").mkdir(exist_ok=True)
        (root / "validation" / f"step_{step}.parquet").write_text(f"validation {step}")
    line = json.dumps({"step": step, "attempt": attempt, "score": step / 7})
    with (root / "metrics.jsonl").open("a") as handle:
        handle.write(line[:17] if dies_in == "metrics" else line + "\n")
    if dies_in in ("metrics", "step end"):
        kill_me()


def write_save(directory: RunDirectory, step: int, attempt: int, *, dies_in: str = "") -> None:
    if not directory.saves.begin_save(step, attempt):
        return
    actor = directory.saves.path(step) / "actor"
    actor.mkdir(parents=True)
    (actor / "model_world_size_1_rank_0.pt").write_text(f"weights after step {step}")
    if dies_in == "save":
        kill_me()
    (directory.saves.path(step) / "data.pt").write_text(str(step))
    (directory.saves.folder / "latest_checkpointed_iteration.txt").write_text(str(step))  # as verl does, too early
    if dies_in == "tracker":
        kill_me()
    directory.saves.mark_complete(step, world_size=1, attempt=attempt)
    if dies_in == "after save":
        kill_me()


def train(root: Path, *, dies_at: int = 0, dies_in: str = "") -> None:
    """A launcher in little, which may be told to die by SIGKILL at a step, in one of its writes."""
    with RunDirectory(root) as directory:
        directory.open(IDENTITY, {})
        resumed = directory.prepare_resume(1)
        assert what_verl_resumes(directory) == resumed
        attempt = directory.begin_attempt(resumed)
        directory.trim_beyond(resumed or 0)
        if dies_in == "trimmed":
            kill_me()
        for step in range((resumed or 0) + 1, STEPS + 1):
            dying = dies_in if step == dies_at else ""
            write_step(root, step, attempt.number, dies_in=dying)
            if step % SAVE_EVERY == 0 or step == STEPS:
                write_save(directory, step, attempt.number, dies_in=dying)
        attempt.end("done", STEPS, 0)
        directory.finish({"verdict": 0.664})


def what_verl_resumes(directory: RunDirectory) -> int | None:
    """As verl's ``find_latest_ckpt_path`` reads it."""
    tracker = directory.saves.folder / "latest_checkpointed_iteration.txt"
    return int(tracker.read_text()) if tracker.exists() else None


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train_until_killed(root: Path, dies_at: int, dies_in: str) -> None:
    child = os.fork()
    if child == 0:
        try:
            train(root, dies_at=dies_at, dies_in=dies_in)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child ended before the kill"
    assert os.WTERMSIG(status) == signal.SIGKILL


def results(root: Path) -> dict[str, Any]:
    """All that a reader of the run counts: files by content, metrics without the attempt's number."""
    folders = ("records", "potential", "validation", "checkpoints/global_step_")
    found: dict[str, Any] = {
        str(path.relative_to(root)): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_file() and str(path.relative_to(root)).startswith(folders) and path.name != "complete.json"
    }
    lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    found["metrics"] = [{key: value for key, value in line.items() if key != "attempt"} for line in lines]
    found["tracker"] = (root / "checkpoints" / "latest_checkpointed_iteration.txt").read_text()
    return found


@pytest.mark.parametrize(
    ("kills", "resumed", "superseded"),
    [
        ([(3, "records")], [None, None], [1, 2]),
        ([(5, "tracker")], [None, None], [1, 2, 3, 4, 5]),
        ([(8, "records")], [None, 5], [6, 7]),
        ([(8, "potential")], [None, 5], [6, 7]),
        ([(8, "metrics")], [None, 5], [6, 7]),
        ([(9, "step end")], [None, 5], [6, 7, 8, 9]),
        ([(10, "save")], [None, 5], [6, 7, 8, 9, 10]),
        ([(10, "tracker")], [None, 5], [6, 7, 8, 9, 10]),
        ([(10, "after save")], [None, 10], []),
        ([(12, "after save")], [None, 12], []),
        ([(8, "records"), (0, "trimmed"), (7, "metrics"), (11, "step end")], [None, 5, 5, 5, 10], [6, 6, 7, 11]),
    ],
)
def test_a_killed_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, kills: list[tuple[int, str]], resumed: list[int | None], superseded: list[int]
) -> None:
    train(tmp_path / "whole")
    for dies_at, dies_in in kills:
        train_until_killed(tmp_path / "killed", dies_at, dies_in)
    train(tmp_path / "killed")

    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    attempts = json.loads((tmp_path / "killed" / "manifest.json").read_text())["attempts"]
    assert [entry["reason"] for entry in attempts] == ["killed"] * len(kills) + ["done"]
    assert [entry["resumed_from"] for entry in attempts] == resumed
    lines = [
        json.loads(line)
        for path in (tmp_path / "killed" / "superseded").glob("attempt_*/metrics.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert sorted(line["step"] for line in lines) == superseded, "nothing is lost, nothing set aside twice"
    assert not list((tmp_path / "killed").rglob(".*.tmp"))


def test_first_use_writes_the_manifest(directory: RunDirectory) -> None:
    manifest = json.loads((directory.path / "manifest.json").read_text())
    assert manifest["run"] == "formal"
    assert manifest["identity"] == IDENTITY
    assert manifest["fingerprint"] == fingerprint(IDENTITY)
    assert manifest["context"] == {"config": "mini.yaml"}
    assert manifest["provenance"]["packages"]["pyarrow"]
    assert manifest["created"].endswith("+00:00")
    assert manifest["attempts"] == []


def test_other_settings_are_refused_with_each_key_and_the_ways_out(directory: RunDirectory) -> None:
    before = (directory.path / "manifest.json").read_bytes()
    directory.close()
    other = {"actor": {"lr": 1e-5, "epochs": 2}, "cost": {}, "seed": 1, "start": {"run": "control", "step": 35}}
    with pytest.raises(GenselectError) as caught:
        RunDirectory(directory.path).open(other, {})
    assert "was used with other settings" in caught.value.message
    assert "4 key(s) differ, used -> now:" in caught.value.message
    assert caught.value.message.splitlines()[1:] == [
        "  - actor.lr: 5e-05 -> 1e-05",
        "  - cost.per_explore: 0.1 -> (absent)",
        '  - start.run: (absent) -> "control"',
        "  - start.step: (absent) -> 35",
    ]
    for way_out in ("another name", "restore the setting", "delete the directory"):
        assert way_out in caught.value.hint
    assert (directory.path / "manifest.json").read_bytes() == before
    directory.open(dict(reversed(IDENTITY.items())), {"config": "elsewhere.yaml"})  # neither order nor context counts


def test_a_long_difference_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunDirectory(path) as directory:
        directory.open({f"key_{number:02}": number for number in range(30)}, {})
    with pytest.raises(GenselectError, match=r"30 key\(s\) differ[\s\S]*key_19: 19 [\s\S]*and 10 more") as caught:
        RunDirectory(path).open({}, {})
    assert "key_20" not in caught.value.message


def test_an_edited_manifest_is_noticed(directory: RunDirectory) -> None:
    path = directory.path / "manifest.json"
    values = json.loads(path.read_text())
    values["identity"]["seed"] = 2
    path.write_text(json.dumps(values))
    directory.close()
    with pytest.raises(GenselectError, match="its identity does not give its fingerprint: it was edited"):
        directory.open({**IDENTITY, "seed": 2}, {})


def test_results_without_a_manifest_are_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    with pytest.raises(GenselectError, match=r"holds records and no manifest\.json"):
        RunDirectory(tmp_path).open(IDENTITY, {})


def test_a_setting_that_is_not_a_number_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(GenselectError, match="NaN or infinite"):
        RunDirectory(tmp_path).open({"lr": float("nan")}, {})
    assert not (tmp_path / "manifest.json").exists()


HOLDER = """
import os, sys, time
from genselect.provenance.run_directory import RunDirectory
directory = RunDirectory(sys.argv[1])
directory.open({"seed": 1}, {})
directory.begin_attempt(None)
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""


def test_two_attempts_never_run_at_once_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    forked = int(holder.stdout.readline())
    try:
        with pytest.raises(GenselectError, match="another attempt is running in this directory") as caught:
            RunDirectory(path).open({"seed": 1}, {})
        assert f"pid {holder.pid} on host {platform.node()}" in caught.value.message
        assert "no lock file to delete" in caught.value.hint
        holder.kill()
        holder.wait()
        # Its forked child is alive still, and must not keep the next attempt out.
        os.kill(forked, 0)
        with RunDirectory(path) as directory:
            directory.open({"seed": 1}, {})
            assert directory.begin_attempt(None).number == 2
            first, second = directory.manifest()["attempts"]
            assert (first["reason"], first["end"], first["pid"]) == ("killed", None, holder.pid)
            assert first["noticed"] >= first["start"]
            assert second["reason"] is None
    finally:
        holder.kill()
        os.kill(forked, signal.SIGKILL)
        holder.stdout.close()


def test_the_attempts_are_told_one_by_one(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    first = directory.begin_attempt(None)
    assert (first.number, first.log) == (1, directory.path / "attempts" / "1.log")
    first.log.write_text("output")
    (entry,) = directory.manifest()["attempts"]
    assert entry["start"]
    assert entry["end"] is None
    assert entry["slurm"]["SLURM_JOB_ID"] == "4711"
    assert entry["host"] == platform.node()
    assert entry["context"] == {"config": "mini.yaml"}
    first.end("time_limit", 7, 75)
    first.end("failed", 8, 1)  # the cleaning up after an end does not overwrite it
    directory.begin_attempt(None).end("guard", None, 0)
    told = [
        (entry["attempt"], entry["reason"], entry["last_step"], entry["exit_code"])
        for entry in directory.manifest()["attempts"]
    ]
    assert told == [(1, "time_limit", 7, 75), (2, "guard", None, 0)]
    assert all(entry["end"] >= entry["start"] for entry in directory.manifest()["attempts"])
    with pytest.raises(ValueError, match="'bored' is not one of done, stopped"):
        directory.begin_attempt(None).end("bored", 1, 0)  # type: ignore[arg-type]


def test_the_last_step_of_a_killed_attempt_is_read_from_its_metrics(directory: RunDirectory) -> None:
    attempt = directory.begin_attempt(None)
    for step in (36, 37):
        write_step(directory.path, step, attempt.number)
    directory.begin_attempt(None)
    assert directory.manifest()["attempts"][0]["last_step"] == 37


def test_nothing_starts_from_scratch_beside_a_save(directory: RunDirectory) -> None:
    write_save(directory, 5, 1)
    write_save(directory, 10, 1)
    with pytest.raises(GenselectError, match="would start from scratch, and the run goes on from the save of step 10"):
        directory.begin_attempt(None)
    with pytest.raises(GenselectError, match="would start from the save of step 5, and the run goes on from"):
        directory.begin_attempt(5)
    directory.saves.mark_broken(10, "ppo_kl 1.5")
    assert directory.begin_attempt(5).resumed_from == 5


def test_a_run_that_is_done_is_left_alone(directory: RunDirectory) -> None:
    assert not directory.is_done()
    directory.begin_attempt(None).end("done", 200, 0)
    directory.finish({"verdict": 0.664})
    assert directory.is_done()
    done = json.loads((directory.path / "done.json").read_text())
    assert (done["run"], done["attempts"], done["verdict"]) == ("formal", 1, 0.664)
    assert done["fingerprint"] == fingerprint(IDENTITY)
    with pytest.raises(GenselectError, match=r"this run is done \(done\.json\)"):
        directory.begin_attempt(None)


def test_health_is_written_whole(directory: RunDirectory) -> None:
    directory.write_health({"level": "alarm", "guards": {"ppo_kl": 0.12}})
    health = json.loads((directory.path / "health.json").read_text())
    assert health["guards"] == {"ppo_kl": 0.12}
    assert health["updated"]


def test_trim_moves_what_lies_beyond_and_says_so(directory: RunDirectory) -> None:
    root = directory.path
    directory.begin_attempt(None)
    for step in (1, 2, 4, 5, 6, 7):
        write_step(root, step, 1)
    (root / "records" / "notes.txt").write_text("a person's")
    with (root / "metrics.jsonl").open("a") as handle:
        handle.write('{"step": 8, "att')
    for step in (5, 7):
        write_save(directory, step, 1)
    directory.saves.mark_broken(7, "no call at all")
    directory.begin_attempt(5)

    trimmed = directory.trim_beyond(5)
    assert trimmed.files == {"records": [6, 7], "potential": [6, 7], "validation": []}
    assert (trimmed.metrics, trimmed.torn_lines, trimmed.missing, trimmed.broken_saves) == ([6, 7], 1, [3], [7])
    assert str(trimmed) == (
        "trimmed to step 5: records of steps 6 to 7; potential of steps 6 to 7; 2 metrics line(s) of steps 6 to 7; "
        "broken saves of step 7; a torn last metrics line; no metrics of step 3"
    )
    aside = root / "superseded" / "attempt_1"
    assert sorted(path.name for path in (aside / "records").iterdir()) == [
        "step_6.parquet",
        "step_7.parquet",
        "tokens_step_6.parquet",
        "tokens_step_7.parquet",
    ]
    assert (aside / "metrics.torn").read_text() == '{"step": 8, "att\n'
    assert (root / "records" / "notes.txt").exists()
    assert (root / "checkpoints" / "broken_global_step_7_attempt_1").is_dir()

    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    again = directory.trim_beyond(5)
    assert str(again) == "trimmed to step 5: nothing lay beyond it; no metrics of step 3"
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_trim_cut_short_sets_no_line_aside_twice(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    root = directory.path
    directory.begin_attempt(None)
    for step in (1, 2, 3):
        write_step(root, step, 1)
    real = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if target == root / "metrics.jsonl":
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        directory.trim_beyond(1)
    monkeypatch.setattr(Path, "replace", real)
    directory.trim_beyond(1)
    lines = (root / "superseded" / "attempt_1" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 3]
    assert [json.loads(line)["step"] for line in (root / "metrics.jsonl").read_text().splitlines()] == [1]


def test_redone_steps_never_replace_what_was_set_aside(directory: RunDirectory) -> None:
    directory.begin_attempt(None)
    for score in ("first", "second"):
        write_step(directory.path, 1, 1)
        (directory.path / "records" / "step_1.parquet").write_text(score)
        directory.trim_beyond(0)
    aside = directory.path / "superseded" / "attempt_1" / "records"
    assert (aside / "step_1.parquet").read_text() == "first"
    assert (aside / "step_1.2.parquet").read_text() == "second"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", r"metrics\.jsonl, line 2: not JSON"),
        ('{"attempt": 1}', r"metrics\.jsonl, line 2: step and attempt must both be there"),
    ],
)
def test_metrics_damaged_in_the_middle_are_not_guessed_at(directory: RunDirectory, line: str, says: str) -> None:
    directory.begin_attempt(None)
    write_step(directory.path, 1, 1)
    with (directory.path / "metrics.jsonl").open("a") as handle:
        handle.write(line + "\n")
    write_step(directory.path, 2, 1)
    with pytest.raises(GenselectError, match=says):
        directory.trim_beyond(1)
    assert (directory.path / "records" / "step_2.parquet").exists()


def test_a_last_line_that_lacks_only_its_end_counts(directory: RunDirectory) -> None:
    directory.begin_attempt(None)
    (directory.path / "metrics.jsonl").write_text('{"step": 1, "attempt": 1}\n{"step": 2, "attempt": 1}')
    trimmed = directory.trim_beyond(1)
    assert (trimmed.metrics, trimmed.torn_lines) == ([2], 0)


def test_a_trim_below_a_complete_save_is_refused(directory: RunDirectory) -> None:
    write_save(directory, 5, 1)
    with pytest.raises(GenselectError, match="cannot trim to step 3: the run goes on from its save of step 5"):
        directory.trim_beyond(3)


def test_only_the_holder_of_the_lock_writes(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="open"):
        RunDirectory(tmp_path).begin_attempt(None)


def test_a_start_can_be_taken_while_the_other_run_is_going(directory: RunDirectory) -> None:
    write_save(directory, 5, 1)
    write_save(directory, 10, 1)
    found = resolve_start(directory.path.parent, "formal", 5, True, world_size=1, for_run="next")
    assert directory.saves.rotate(1, None) == []
    assert (found / "data.pt").is_file()

"""Which saves are resumed from, started from, kept and deleted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from genselect.errors import GenselectError
from genselect.provenance.run_directory import resolve_start
from genselect.provenance.saves import Saves


def write_save(saves: Saves, step: int, *, world_size: int = 2, data_state: bool = True) -> Path:
    """What verl writes, in little."""
    path = saves.path(step)
    for role in ("actor", "critic"):
        (path / role / "huggingface").mkdir(parents=True)
        (path / role / "huggingface" / "config.json").write_text("{}")
        for rank in range(world_size):
            for kind in ("model", "optim"):
                (path / role / f"{kind}_world_size_{world_size}_rank_{rank}.pt").write_bytes(bytes([step, rank]) * 50)
    if data_state:
        (path / "data.pt").write_bytes(b"data")
    return path


def complete_save(saves: Saves, step: int, *, world_size: int = 2, data_state: bool = True) -> Path:
    path = write_save(saves, step, world_size=world_size, data_state=data_state)
    saves.mark_complete(step, world_size=world_size, attempt=1)
    return path


def tracker(saves: Saves) -> str | None:
    path = saves.folder / "latest_checkpointed_iteration.txt"
    return path.read_text() if path.exists() else None


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    # Hundreds of small saves: what a power cut would leave is not looked at here, and the waits add up.
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def saves(tmp_path: Path) -> Saves:
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    return Saves(tmp_path / "checkpoints")


def fault_no_marker(path: Path) -> None:
    (path / "complete.json").unlink()


def fault_file_gone(path: Path) -> None:
    (path / "critic" / "optim_world_size_2_rank_1.pt").unlink()


def fault_file_cut(path: Path) -> None:
    (path / "actor" / "model_world_size_2_rank_0.pt").write_bytes(b"short")


def fault_content(path: Path) -> None:
    (path / "data.pt").write_bytes(b"DATA")


def fault_marker_torn(path: Path) -> None:
    (path / "complete.json").write_text('{"step": 10, "fil')


def fault_marker_of_another(path: Path) -> None:
    (path / "complete.json").write_text((path.parent / "global_step_5" / "complete.json").read_text())


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (fault_no_marker, "it has no complete.json"),
        (fault_file_gone, "critic/optim_world_size_2_rank_1.pt is missing"),
        (fault_file_cut, "actor/model_world_size_2_rank_0.pt has 5 bytes, not 100"),
        (fault_content, "data.pt has another content"),
        (fault_marker_torn, "complete.json cannot be read"),
        (fault_marker_of_another, "complete.json is that of step 5"),
    ],
)
def test_a_half_written_save_is_never_resumed_from(saves: Saves, fault: object, problem: str) -> None:
    complete_save(saves, 5)
    path = complete_save(saves, 10)
    fault(path)  # type: ignore[operator]
    last = saves.last_complete_save(2)
    assert last is not None
    assert last.step == 5
    (found,) = saves.set_aside_incomplete(3)
    assert found.step == 10
    assert found.problem is not None
    assert problem in found.problem
    assert not path.exists()
    assert (saves.folder / "incomplete_global_step_10_attempt_3").is_dir()
    assert saves.repair_tracker()
    assert tracker(saves) == "5"


def test_half_written_saves_can_be_removed_and_never_replace_each_other(saves: Saves) -> None:
    for _ in range(2):
        write_save(saves, 5)
        saves.set_aside_incomplete(1)
    assert sorted(path.name for path in saves.folder.iterdir()) == [
        "incomplete_global_step_5_attempt_1",
        "incomplete_global_step_5_attempt_1.2",
    ]
    write_save(saves, 10)
    assert [save.step for save in saves.set_aside_incomplete(1, remove=True)] == [10]
    assert len(list(saves.folder.iterdir())) == 2


def test_a_save_that_lacks_a_rank_is_not_declared_whole(saves: Saves) -> None:
    path = write_save(saves, 5)
    (path / "critic" / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(GenselectError, match=r"critic/model is missing for rank\(s\) 1 of 2"):
        saves.mark_complete(5, world_size=2, attempt=1)
    assert saves.last_complete_save() is None


def test_a_save_over_one_of_another_world_size_is_not_declared_whole(saves: Saves) -> None:
    write_save(saves, 5, world_size=2)
    (saves.path(5) / "actor" / "model_world_size_4_rank_0.pt").write_bytes(b"old")
    with pytest.raises(GenselectError, match=r"model_world_size_4_rank_0\.pt: of world size 4, in a save by 2 rank"):
        saves.mark_complete(5, world_size=2, attempt=1)


def test_an_empty_save_is_not_declared_whole(saves: Saves) -> None:
    saves.path(5).mkdir()
    with pytest.raises(GenselectError, match="there is nothing in this save"):
        saves.mark_complete(5, world_size=1, attempt=1)


def test_another_world_size_is_refused_and_no_older_save_taken_instead(saves: Saves) -> None:
    complete_save(saves, 5, world_size=4)
    complete_save(saves, 10, world_size=8)
    with pytest.raises(GenselectError, match=r"global_step_10: saved by 8 rank\(s\), and this attempt has 4") as caught:
        saves.last_complete_save(4)
    assert "Go on with 8 rank(s)" in caught.value.hint
    assert "another name" in caught.value.hint


@pytest.mark.parametrize("damage", ["missing", "names a half-written save", "names nothing there is", "not a number"])
def test_the_tracker_is_put_right(saves: Saves, damage: str) -> None:
    complete_save(saves, 5)
    write_save(saves, 10)
    path = saves.folder / "latest_checkpointed_iteration.txt"
    assert tracker(saves) == "5"
    contents = {"names a half-written save": b"10", "names nothing there is": b"99", "not a number": b"\xff\xfe"}
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(contents[damage])
    assert saves.repair_tracker()
    assert tracker(saves) == "5"
    assert not saves.repair_tracker()


def test_the_tracker_goes_when_there_is_nothing_to_resume(saves: Saves) -> None:
    write_save(saves, 5)
    (saves.folder / "latest_checkpointed_iteration.txt").write_text("5")
    assert saves.repair_tracker()
    assert tracker(saves) is None


def test_a_broken_save_is_never_resumed_from(saves: Saves) -> None:
    for step in (5, 10, 12):
        complete_save(saves, step)
    saves.mark_broken(12, "no call at all")
    saves.mark_broken(10, "ppo_kl 1.5")
    last = saves.last_complete_save()
    assert last is not None
    assert last.step == 5
    assert tracker(saves) == "5"
    with pytest.raises(GenselectError, match=r"no such save\nHint: Saved steps there: 5, 10 \(broken\), 12 \(broken\)"):
        saves.mark_broken(7, "x")


def test_a_complete_save_is_never_written_over(saves: Saves) -> None:
    complete_save(saves, 5)
    assert not saves.begin_save(5, attempt=2)
    assert saves.begin_save(6, attempt=2)
    saves.mark_broken(5, "entropy")
    assert saves.begin_save(5, attempt=2)
    assert not saves.path(5).exists()
    assert (saves.folder / "broken_global_step_5_attempt_2").is_dir()
    write_save(saves, 6)
    assert saves.begin_save(6, attempt=2)
    assert (saves.folder / "incomplete_global_step_6_attempt_2").is_dir()


@pytest.mark.parametrize(
    ("case", "keep_latest", "anchor_every", "broken", "pinned", "starts", "kept"),
    [
        ("the latest one", 1, None, [], [], [], [12]),
        ("the latest three", 3, None, [], [], [], [10, 11, 12]),
        ("more than there are", 99, None, [], [], [], [1, 4, 5, 6, 10, 11, 12]),
        ("anchors and the latest", 1, 5, [], [], [], [5, 10, 12]),
        ("never none", 0, None, [], [], [], [12]),
        ("anchors, and the newest to resume from", 0, 4, [], [], [], [4, 12]),
        ("broken saves do not count as the latest", 2, None, [12, 11], [], [], [6, 10]),
        ("a broken anchor stays as evidence", 1, 5, [10, 11, 12], [], [], [5, 6, 10]),
        ("the last healthy save stays", 0, None, [6, 10, 11, 12], [], [], [5]),
        ("all broken: the newest stays", 0, None, [1, 4, 5, 6, 10, 11, 12], [], [], [12]),
        ("another run's start", 1, None, [], [4], [], [4, 12]),
        ("a start that the configuration names", 1, 5, [], [], [6, 77], [5, 6, 10, 12]),
    ],
)
def test_rotation_keeps(
    saves: Saves,
    case: str,
    keep_latest: int,
    anchor_every: int | None,
    broken: list[int],
    pinned: list[int],
    starts: list[int],
    kept: list[int],
) -> None:
    steps = [1, 4, 5, 6, 10, 11, 12]
    for step in steps:
        complete_save(saves, step, world_size=1)
    for step in broken:
        saves.mark_broken(step, "planted")
    for step in pinned:
        saves.pin(step, "other")
    write_save(saves, 13)  # in the making
    deleted = saves.rotate(keep_latest, anchor_every, starts)
    assert [save.step for save in saves.all()] == [*kept, 13], case
    assert deleted == [step for step in steps if step not in kept]
    assert not list(saves.folder.glob(".deleting_*"))
    last = saves.last_complete_save()
    assert tracker(saves) == (str(last.step) if last else None)


def test_a_rotation_cut_short_is_finished_by_the_next(saves: Saves, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3):
        complete_save(saves, step, world_size=1)

    def killed(path: Path) -> None:
        (path / "complete.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr("genselect.provenance.saves.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        saves.rotate(1, None)
    monkeypatch.undo()
    assert [(save.step, save.state) for save in saves.all()] == [(2, "complete"), (3, "complete")]
    assert saves.rotate(1, None) == [2]
    assert [path.name for path in saves.folder.glob("*global_step*")] == ["global_step_3"]


def test_a_save_pinned_while_it_was_being_deleted_comes_back(saves: Saves) -> None:
    complete_save(saves, 1, world_size=1)
    complete_save(saves, 2, world_size=1)
    saves.pin(1, "other")
    saves.path(1).rename(saves.folder / ".deleting_global_step_1")  # killed between the rename and the second look
    assert saves.rotate(1, None) == []
    assert [save.step for save in saves.all()] == [1, 2]


def test_a_pinned_save_is_not_even_moved(saves: Saves, monkeypatch: pytest.MonkeyPatch) -> None:
    complete_save(saves, 1, world_size=1)
    complete_save(saves, 2, world_size=1)
    saves.pin(1, "other")
    monkeypatch.setattr(Path, "rename", lambda path, target: pytest.fail(f"{path} was moved while it may be read"))
    assert saves.rotate(1, None) == []


def test_rotation_settings_that_make_no_sense_are_refused(saves: Saves) -> None:
    with pytest.raises(GenselectError, match="keep_latest is -1 and anchor_every 0"):
        saves.rotate(-1, 0)


def runs_with_saves(root: Path) -> Saves:
    saves = Saves(root / "control-32" / "checkpoints")
    for step in (5, 10, 15, 20):
        complete_save(saves, step, data_state=step != 10)
    (saves.path(15) / "complete.json").unlink()
    saves.mark_broken(20, "no call at all")
    (root / "control-32" / "manifest.json").write_text("{}")
    return saves


def test_a_start_is_found_and_kept_for_good(tmp_path: Path) -> None:
    saves = runs_with_saves(tmp_path)
    assert resolve_start(tmp_path, "control-32", 5, True, world_size=2, for_run="formal") == saves.path(5)
    assert resolve_start(tmp_path, "control-32", 10, False) == saves.path(10)
    assert saves.rotate(0, None) == [20]
    saves.pin(7, "formal")
    assert [save.step for save in saves.all()] == [5, 10, 15]
    assert json.loads((saves.path(5) / "complete.json").read_text())["world_size"] == 2


@pytest.mark.parametrize(
    ("run", "step", "data_state", "world_size", "says"),
    [
        ("control-23", 5, False, None, r"there is no such run\nHint: Did you mean control-32\?"),
        ("zzz", 5, False, None, r"there is no such run\nHint: There are: control-32\."),
        (
            "control-32",
            7,
            False,
            None,
            r"no save of step 7\nHint: Saved steps there: 5, 10, 15 \(incomplete\), 20 \(broken\)\.",
        ),
        ("control-32", 15, False, None, r"global_step_15 is incomplete: it has no complete\.json"),
        ("control-32", 20, False, None, r"global_step_20 is broken: no call at all"),
        ("control-32", 10, True, None, r"global_step_10 has no data state \(data\.pt\)\nHint: Start without"),
        ("control-32", 5, False, 8, r"saved by 2 rank\(s\), and this attempt has 8"),
    ],
)
def test_a_start_that_cannot_be_says_why(
    tmp_path: Path, run: str, step: int, data_state: bool, world_size: int | None, says: str
) -> None:
    saves = runs_with_saves(tmp_path)
    with pytest.raises(GenselectError, match=says):
        resolve_start(tmp_path, run, step, data_state, world_size=world_size, for_run="formal")
    assert not list(saves.folder.glob("*/start_of")), "a refused start must not pin anything"

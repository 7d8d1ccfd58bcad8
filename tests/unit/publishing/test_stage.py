"""The staged trees: what goes where, what is refused, and that nothing vanishes in silence."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from small_results import mini, publish, small_results

from genselect.errors import GenselectError
from genselect.publishing import packing
from genselect.publishing.layout import make_plan
from genselect.publishing.publication import read_publication
from genselect.publishing.sums import check_tree


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_results(tmp_path_factory.mktemp("small") / "results")


@pytest.fixture
def results(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "results")


def tree(results: Path, target: str = "hub") -> Path:
    return results / "publication" / "mini" / target


def paths(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def content(folder: Path) -> dict[str, str]:
    return {path: hashlib.sha256((folder / path).read_bytes()).hexdigest() for path in paths(folder)}


def test_both_trees_hold_what_the_results_hold_but_for_weights_and_the_reading_copy_lacks_arrays(results: Path) -> None:
    staged = publish(mini(), results)
    hub, copy = paths(tree(results)), paths(tree(results, "reading_copy"))
    lying = {path for path in paths(results) if not path.startswith("publication/")}
    missing = lying - hub
    assert all(
        "/checkpoints/" in path or path.startswith("models/") or "/.lock" in path or "/parts/" in path
        for path in missing
    )
    assert {
        "runs/formal/checkpoints/global_step_1/actor/model_world_size_1_rank_0.pt",
        "models/mini/model.safetensors",
    } <= missing
    assert "runs/formal/superseded/attempt_1/records/tokens_step_2.parquet" in hub
    assert {path for path in hub - copy if "tokens_step" not in path and "data/mini/labels/" not in path} == set()
    assert not {path for path in copy if "tokens_step" in path}
    for target, publication in staged.items():
        assert check_tree(tree(results, target))[0] == publication


def test_every_file_and_byte_is_staged_or_left_out_with_a_reason(results: Path) -> None:
    staged = publish(mini(leave_out=["runs/smoke"]), results)
    sizes = {path: (results / path).stat().st_size for path in paths(results) if not path.startswith("publication/")}
    for target, publication in staged.items():
        listed = {file.path: file.bytes for file in publication.files if file.path != "README.md"}
        assert sum(entry.files for entry in publication.left_out) + len(listed) == len(sizes), target
        assert sum(entry.bytes for entry in publication.left_out) + sum(listed.values()) == sum(sizes.values())
        assert all(entry.why for entry in publication.left_out)
        assert not [path for path in listed if path.startswith("runs/smoke/")]


def test_staging_again_gives_the_same_bytes_whatever_was_staged_or_logged_since(results: Path) -> None:
    publish(mini(), results)
    first = {target: content(tree(results, target)) for target in ("hub", "reading_copy")}
    (results / "logs/mini/stage_publication.log").write_text("staged\n")
    (results / "report/mini/snakemake.html").write_text("made after the staging")
    (results / "tracking/formal").mkdir(parents=True)
    (results / "tracking/formal/offline.wandb").write_bytes(b"x")
    publish(mini(), results)
    assert {target: content(tree(results, target)) for target in first} == first


def test_an_undeclared_file_is_refused_by_name_and_can_be_left_out(results: Path) -> None:
    stray = results / "runs/formal/notes.txt"
    stray.write_text("mine")
    (results / ".git").mkdir()
    (results / ".git/config").write_text("[core]\n")
    (results / "data/mini/elsewhere").symlink_to(results / "nowhere")
    with pytest.raises(GenselectError) as refused:
        publish(mini(), results)
    for name in ("runs/formal/notes.txt", ".git/config", "data/mini/elsewhere"):
        assert f"- {name}" in str(refused.value)
    assert "publish.leave_out" in refused.value.hint
    assert not tree(results).exists()
    (results / "data/mini/elsewhere").unlink()
    shutil.rmtree(results / ".git")
    left_out = publish(mini(leave_out=["runs/*/notes.txt"]), results)["hub"].left_out
    assert [entry.files for entry in left_out if entry.what == "runs/*/notes.txt"] == [1]


def test_a_pattern_that_leaves_nothing_out_is_refused_since_it_was_meant_to(results: Path) -> None:
    with pytest.raises(GenselectError, match="no file fits run/smoke"):
        publish(mini(leave_out=["run/smoke/**"]), results)


def test_files_of_other_experiments_and_runs_stay_here_and_are_counted(results: Path) -> None:
    for path in (
        "data/gpqa/val.parquet",
        "runs/formal-old/metrics.jsonl",
        "gates/old.json",
        "rollouts/other/rollout.json",
    ):
        (results / path).parent.mkdir(parents=True, exist_ok=True)
        (results / path).write_text("another experiment's")
    publication = publish(mini(), results)["hub"]
    other = [entry for entry in publication.left_out if "configuration does not name" in entry.why]
    assert [entry.files for entry in other] == [4]
    assert not {path for path in paths(tree(results)) if "old" in path or "gpqa" in path or "other" in path}


def test_the_former_tree_stands_until_the_new_one_is_whole(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(mini(), results)
    former = content(tree(results))
    (results / "gates/smoke.json").unlink()
    (results / "gates/smoke.json").write_text('{"gate": "smoke", "passed": false}')

    def fail(*arguments: object) -> None:
        raise OSError("the power went")

    with monkeypatch.context() as patched:
        patched.setattr("genselect.publishing.stage.write_publication", fail)
        with pytest.raises(OSError, match="power"):
            publish(mini(), results)
    assert content(tree(results)) == former
    publish(mini(), results)
    assert content(tree(results)) != former
    assert sorted(path.name for path in tree(results).parent.iterdir()) == ["hub", "reading_copy", "staged.json"]


def test_what_is_still_written_to_is_copied_and_the_rest_takes_no_space(results: Path) -> None:
    publish(mini(), results)
    with (results / "runs/formal/metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 99, "attempt": 9}\n')
    check_tree(tree(results))
    assert (tree(results) / "data/mini/train.parquet").samefile(results / "data/mini/train.parquet")


def test_the_tree_is_copied_where_links_do_not_go(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(18, "another file system")

    monkeypatch.setattr("os.link", refuse)
    publish(mini(), results)
    check_tree(tree(results))
    assert not (tree(results) / "data/mini/train.parquet").samefile(results / "data/mini/train.parquet")


def test_weights_move_only_when_they_are_named(results: Path) -> None:
    save = "runs/formal/checkpoints/global_step_1"
    adapter = results / "publication/mini/adapters/formal/global_step_1/actor/lora_adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(bytes(64))
    (adapter / ".snakemake_timestamp").touch()
    named = [{"run": "formal", "step": 1}]
    staged = publish(mini(saves=named, adapters=named), results)
    hub = paths(tree(results))
    assert {path for path in paths(results) if path.startswith(save)} == {path for path in hub if path.startswith(save)}
    assert "checkpoints/formal/global_step_1/actor/lora_adapter/adapter_model.safetensors" in hub
    assert not {path for path in hub if "runs/smoke/checkpoints" in path or "snakemake" in path}
    copy = paths(tree(results, "reading_copy"))
    assert not {path for path in copy if "checkpoints" in path}
    assert any("publish.saves" in entry.what for entry in staged["reading_copy"].left_out)
    assert adapter.exists(), "staging took the exported adapter away"


def test_the_base_model_leaves_only_when_it_is_named(results: Path) -> None:
    model = results / "models/mini"
    (model / "config.json").write_text("{}")
    unfinished = results / "models/.mini.0a1b2c3d.tmp/model.safetensors"
    unfinished.parent.mkdir()
    unfinished.write_bytes(bytes(10))
    publish(mini(), results)
    assert {path for path in paths(tree(results)) if path.startswith("models/")} == {"models/mini/base_model.json"}
    publish(mini(base_model=True), results)
    hub, copy = (
        {path for path in paths(tree(results, target)) if path.startswith("models/")}
        for target in ("hub", "reading_copy")
    )
    assert hub == {f"models/mini/{path}" for path in paths(model)}
    assert copy == {"models/mini/base_model.json"}


@pytest.mark.parametrize(
    ("publish_keys", "said"),
    [
        ({"base_model": True}, "models/mini (publish.base_model)"),
        ({"saves": [{"run": "formal", "step": 7}]}, "runs/formal/checkpoints/global_step_7 (publish.saves)"),
        ({"adapters": [{"run": "formal", "step": 1}]}, "lora_adapter (publish.adapters)"),
        ({"saves": [{"run": "frmal", "step": 1}]}, "there is no run frmal"),
    ],
)
def test_weights_that_are_named_and_not_there_are_refused(results: Path, publish_keys: dict, said: str) -> None:
    with pytest.raises(GenselectError) as refused:
        publish(mini(**publish_keys), results)
    assert said in str(refused.value)


def test_a_file_over_githubs_limit_stays_out_of_the_reading_copy_alone(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (results / "data/mini/merged.jsonl").stat().st_size
    monkeypatch.setitem(packing.LIMITS, "reading_copy", packing.Limits(size - 1, size - 1))
    staged = publish(mini(), results)
    assert "data/mini/merged.jsonl" in paths(tree(results))
    assert "data/mini/merged.jsonl" not in paths(tree(results, "reading_copy"))
    assert any("GitHub" in entry.why and "merged.jsonl" in entry.what for entry in staged["reading_copy"].left_out)


def test_a_file_over_the_hubs_limit_is_refused(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packing.LIMITS, "hub", packing.Limits(1000, 1000))
    with pytest.raises(GenselectError, match=r"data/mini/.*and a file may have 1\.0 kB"):
        publish(mini(), results)


def test_the_reading_copy_can_be_switched_off_and_the_plan_writes_nothing(
    results: Path, script, tmp_path: Path
) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(json.dumps(mini(reading_copy=False, leave_out=["runs/smoke"]).model_dump(mode="json")))
    (results / "runs/formal/notes.txt").write_text("mine")
    before = paths(results)
    told = script("stage_publication", "--config", config, "--results", results, "--plan")
    assert told.returncode == 0, told.stderr
    plan = make_plan(mini(reading_copy=False, leave_out=["runs/smoke"]), results).targets["hub"]
    assert f"hub: {plan.files:,} files" in told.stdout
    assert "1 commit(s)" in told.stdout
    assert "not in the list of what is published: runs/formal/notes.txt" in told.stdout
    assert "reading_copy" not in told.stdout
    assert paths(results) == before
    refused = script("stage_publication", "--config", config, "--results", results)
    assert refused.returncode == 2
    assert "runs/formal/notes.txt" in refused.stderr
    (results / "runs/formal/notes.txt").unlink()
    done = script("stage_publication", "--config", config, "--results", results)
    assert done.returncode == 0, done.stderr
    assert read_publication(tree(results)).target == "hub"
    assert not tree(results, "reading_copy").exists()


def test_a_folder_that_is_not_there_is_said(script, tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(json.dumps(mini().model_dump(mode="json")))
    told = script("stage_publication", "--config", config, "--results", tmp_path / "results", "--plan")
    assert told.returncode == 2
    assert f"error: {tmp_path}/results: there is no such folder, so there is nothing to publish yet" in told.stderr

"""Touch this, and these jobs run again: the table in docs/reruns.md."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

DATA = "results/data/mini"
AFTER_LABELS = {"gather_labels": 1, "build_rows": 1}
AFTER_MERGE = {"label_shard": 1, **AFTER_LABELS}


def edit(name: str) -> Callable[[Path], None]:
    """Add a comment to a file of the code."""

    def change(root: Path) -> None:
        path = root / name
        path.write_text(path.read_text() + "\n# a remark\n")

    return change


def touch(name: str) -> Callable[[Path], None]:
    return lambda root: (root / DATA / name).touch()


def delete(name: str) -> Callable[[Path], None]:
    return lambda root: (root / DATA / name).unlink()


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (edit("workflow/scripts/label_candidates.py"), {}),
        (edit("workflow/genselect/judge/labelling.py"), {}),
        (edit("workflow/genselect/dataset/build.py"), {}),
        (edit("rules/label.smk"), {}),
        ([("judge.client.concurrency", 7)], {}),
        ([("judge.server.port", 8123)], {}),
        ([("build.seed", 2)], {"build_rows": 1}),
        ([("build.filters.max_candidate_chars", 100)], {"build_rows": 1}),
        ([("prompt.system", "think")], {"build_rows": 1}),
        ([("judge.cascade.symbolic_timeout_s", 9.0)], AFTER_MERGE),
        ([("judge.shards", 2)], {**AFTER_MERGE, "label_shard": 2}),
        ([("dataset.problem_types", ["converted_proof"])], {"merge_candidates": 1, **AFTER_MERGE}),
        ([("dataset.generated.seed", 9)], {"make_mini_shards": 1, "merge_candidates": 1, **AFTER_MERGE}),
        (touch("merged.jsonl"), {}),
        (delete("stats.json"), {"build_rows": 1}),
        (delete("labels.jsonl.seal.json"), AFTER_LABELS),
    ],
    ids=lambda value: str(value) if isinstance(value, list) else None,
)
def test_a_change_runs_again_what_depends_on_it_and_nothing_else(checkout, change, again: dict[str, int]) -> None:
    if callable(change):
        change(checkout.root)
    else:
        checkout.configure(change)
    assert checkout.planned() == again


def test_a_touched_large_file_runs_again_what_reads_it(checkout) -> None:
    (checkout.root / DATA / "merged.jsonl").touch()
    # Content is compared below a size only; here every file counts as large.
    planned = checkout.planned("--max-checksum-file-size", "0")
    assert planned == AFTER_MERGE


def test_a_local_shard_that_was_written_anew_is_taken_anew(checkout) -> None:
    shards = checkout.root / "my_shards"
    shutil.copytree(checkout.root / DATA / "shards", shards)
    shutil.rmtree(checkout.root / DATA)
    checkout.configure([("dataset.source", "local"), ("dataset.local_dir", "my_shards")])
    checkout.snakemake("data")
    assert checkout.planned() == {}
    first = min(shards.glob("*.parquet"))
    changed = pq.read_table(first)
    pq.write_table(changed.slice(0, changed.num_rows - 1), shards / "new")
    (shards / "new").rename(first)
    assert checkout.planned() == {"download_shard": 1, "merge_candidates": 1, **AFTER_MERGE}


def test_a_dry_run_ends_with_what_the_plan_costs(untouched, finished) -> None:
    said = untouched.snakemake("-n", "--configfile", "config/config.yaml").stderr
    assert "train_run formal" in said
    assert "card hours: " in said
    assert "39 jobs; " in said
    # Nothing to do costs nothing, and says nothing.
    assert "card hours" not in finished.snakemake("-n", "data").stderr


def test_a_plan_that_the_disk_cannot_hold_does_not_start(checkout) -> None:
    save = checkout.root / "results" / "runs" / "smoke" / "checkpoints" / "global_step_1"
    save.mkdir(parents=True)
    with (save / "weights.pt").open("wb") as file:
        file.truncate(10**13)  # a hole: it takes no room, and several such saves have room nowhere
    (save / "complete.json").write_text("{}")
    planned = checkout.snakemake("-n", "results/runs/formal/done.json")
    assert "error: results: the plan leaves" in planned.stderr
    done = checkout.snakemake("results/runs/formal/done.json", check=False)
    assert done.returncode != 0
    assert "runs.<name>.schedule.anchor_every" in done.stdout + done.stderr
    assert not (checkout.root / "results" / "models").exists()

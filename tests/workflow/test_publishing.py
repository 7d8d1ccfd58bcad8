"""What Snakemake makes of publishing and of what was fetched."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from genselect.provenance import file_sha256
from genselect.publishing.publication import Publication, PublishedFile, write_publication


def planned(text: str) -> set[str]:
    return set(re.findall(r"^(\w+)\s+\d+$", text, flags=re.MULTILINE))


def test_publishing_is_asked_for_by_name(untouched) -> None:
    everything = planned(untouched.snakemake("-n").stdout)
    assert "stage_publication" in everything
    assert "publish" not in everything
    assert "publish" in planned(untouched.snakemake("-n", "publish").stdout)


def published(results: Path, tree: Path) -> Path:
    """A published tree of the data stages, without the raw shards and the labelling shares."""
    data = results / "data" / "mini"
    hidden = {"shards", "labels"}
    files = [path for path in data.rglob("*") if path.is_file() and not hidden & set(path.parts)]
    listed = []
    for path in sorted(files):
        name = path.relative_to(results).as_posix()
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, tree / name)
        listed.append(PublishedFile(name, path.stat().st_size, file_sha256(path), "data"))
    write_publication(tree, Publication("mini", "hub", tuple(listed), (), ()))
    return tree


def test_what_was_fetched_is_not_made_again(finished, untouched, script, tmp_path) -> None:
    tree = published(finished.root / "results", tmp_path / "tree")
    clone = tmp_path / "clone"
    shutil.copytree(untouched.root, clone, symlinks=True, ignore=shutil.ignore_patterns("results", ".snakemake"))
    results = clone / "results"
    # Of what stood there, something is old: without one time for all the rows would count as out of date.
    rows = results / "data/mini/train.parquet"
    rows.parent.mkdir(parents=True)
    shutil.copyfile(tree / "data/mini/train.parquet", rows)
    os.utime(rows, (1, 1))
    fetched = script("fetch_publication", "--from", tree, "--into", results)
    assert fetched.returncode == 0, fetched.stderr
    # No raw shard, no labelling share, no memory of Snakemake's.
    assert not (results / "data/mini/shards").exists()
    assert not (clone / ".snakemake").exists()
    done = type(finished)(clone).snakemake("-n", "data", "--configfile", "results/data/mini/config.yaml")
    assert "Nothing to be done" in done.stdout + done.stderr


# As in test_rollout: model and engine take minutes.
@pytest.mark.timeout(1800)
def test_with_the_published_base_model_nothing_is_trained_or_played_again(selected, script, tmp_path) -> None:
    theirs = tmp_path / "theirs"
    shutil.copytree(selected.root, theirs, symlinks=True)
    config = theirs / "results/data/mini/config.yaml"
    staged = script("stage_publication", "--config", config, "--results", theirs / "results")
    assert staged.returncode == 0, staged.stderr
    clone = type(selected)(tmp_path / "clone")
    shutil.copytree(theirs, clone.root, symlinks=True, ignore=shutil.ignore_patterns("results", ".snakemake"))
    results = clone.root / "results"
    fetched = script("fetch_publication", "--from", theirs / "results/publication/mini/hub", "--into", results)
    assert fetched.returncode == 0, fetched.stderr
    assert "--model" not in fetched.stderr
    # Something new that needs the base model, beside what was made from it.
    made = ("results/data/mini/overfit/control/selection.csv", "results/evaluation/mini/preregistration.json")
    again = ("-n", *made, "results/runs/smoke/done.json", "--configfile", "results/data/mini/config.yaml")
    assert planned(clone.snakemake(*again).stdout) - {"total"} == {"train_run"}
    # A base model that is made anew would have all of it made anew.
    shutil.rmtree(results / "models")
    assert {"make_base_model", "rollout_policy", "evaluate_arm"} <= planned(clone.snakemake(*again).stdout)
    fetched = script("fetch_publication", "--from", theirs / "results/publication/mini/hub", "--into", results)
    assert fetched.returncode == 0, fetched.stderr
    assert planned(clone.snakemake(*again).stdout) - {"total"} == {"train_run"}

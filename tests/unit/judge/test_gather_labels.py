"""Shards: each labels its share, and only shares that belong together and are complete make a whole."""

from __future__ import annotations

import json
import shutil

import pytest
from fake_judge import FakeJudge
from judge_cases import SCRIPTS, config, different_answers, labels, seal_counts, write_merged

from genselect.errors import GenselectError
from genselect.judge import Shard, gather_labels, label_candidates


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """A merge, its labels in one piece and in three shards."""
    folder = tmp_path_factory.mktemp("labelled")
    problems = [*different_answers(10), ("1", ["1", "2", None, "1"]), ("4", [])]
    merged = write_merged(folder / "merged.jsonl", problems)
    with FakeJudge(folder / "fake") as fake:
        settings = config(folder, [fake.url], cascade={"symbolic": False, "audit_fraction": 1.0})
        label_candidates(merged, settings, journal=folder / "j", output=folder / "whole.jsonl")
        for number in (1, 2, 3):
            output = folder / f"shard{number}.jsonl"
            label_candidates(merged, settings, journal=folder / f"j{number}", output=output, shard=Shard(number, 3))
    return folder


@pytest.fixture
def folder(labelled, tmp_path):
    """A copy to break."""
    shutil.copytree(labelled, tmp_path / "copy")
    return tmp_path / "copy"


def shards(folder, *numbers):
    return [folder / f"shard{number}.jsonl" for number in numbers or (1, 2, 3)]


def reseal(path):
    """Make the seal fit a file that a test has changed, as a wrong program might."""
    from genselect.provenance import file_sha256

    seal = path.with_name(path.name + ".seal.json")
    values = json.loads(seal.read_text())
    values["outputs"][0]["sha256"] = file_sha256(path)
    seal.write_text(json.dumps(values))


def test_shards_in_any_order_make_the_whole(folder):
    gather_labels(folder / "merged.jsonl", shards(folder, 3, 1, 2), folder / "labels.jsonl")
    assert (folder / "labels.jsonl").read_bytes() == (folder / "whole.jsonl").read_bytes()
    assert seal_counts(folder / "labels.jsonl") == seal_counts(folder / "whole.jsonl")
    assert list(labels(folder / "labels.jsonl")) == sorted(labels(folder / "labels.jsonl"))
    assert seal_counts(folder / "labels.jsonl")["candidates"] == 44


def test_a_shard_is_every_nth_problem(folder):
    ids = {id_ for id_, _ in labels(folder / "shard2.jsonl")}
    assert ids == {f"omr-{number:06d}" for number in (1, 4, 7, 10)}


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "a/b", "1", "1/3/5", "-1/3", ""])
def test_a_shard_that_makes_no_sense_is_refused(text):
    with pytest.raises(GenselectError, match="K/N with K from 1 to N"):
        Shard.parse(text)
    assert Shard.parse("3/3") == Shard(3, 3)


def test_a_missing_shard_is_noticed(folder):
    with pytest.raises(GenselectError, match="no shard labels candidate 0 of omr-000001"):
        gather_labels(folder / "merged.jsonl", shards(folder, 1, 3), folder / "labels.jsonl")
    assert not (folder / "labels.jsonl").exists()


def test_a_shard_given_twice_is_noticed(folder):
    with pytest.raises(GenselectError, match="labelled by another shard too"):
        gather_labels(folder / "merged.jsonl", shards(folder, 1, 2, 3, 1), folder / "labels.jsonl")


def test_labels_of_another_merge_are_refused(folder):
    merged = folder / "merged.jsonl"
    merged.write_text(merged.read_text().replace("what is it", "what was it"))
    with pytest.raises(GenselectError, match=r"shard1\.jsonl: made from another merge"):
        gather_labels(merged, shards(folder), folder / "labels.jsonl")


def test_labels_of_another_judge_are_refused(folder):
    seal = folder / "shard2.jsonl.seal.json"
    values = json.loads(seal.read_text())
    values["fingerprints"]["judge"] = "f" * 64
    seal.write_text(json.dumps(values))
    with pytest.raises(GenselectError, match=r"shard2\.jsonl: judged under fingerprint f{12}"):
        gather_labels(folder / "merged.jsonl", shards(folder), folder / "labels.jsonl")


def test_a_changed_or_unsealed_shard_is_refused(folder):
    shard = folder / "shard1.jsonl"
    shard.write_text(shard.read_text().replace("true", "false"))
    with pytest.raises(GenselectError, match="its content is not what"):
        gather_labels(folder / "merged.jsonl", shards(folder), folder / "labels.jsonl")
    (folder / "shard1.jsonl.seal.json").unlink()
    with pytest.raises(GenselectError, match=r"shard1\.jsonl\.seal\.json is missing"):
        gather_labels(folder / "merged.jsonl", shards(folder), folder / "labels.jsonl")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [lines[0], *lines], "line 2: candidate 0 of omr-000000 is labelled twice"),
        (lambda lines: [*lines[:4], lines[1], *lines[4:]], "must be sorted"),
        (lambda lines: lines[1:], "no shard labels candidate 0 of omr-000000"),
        (lambda lines: [*lines, lines[-1].replace('"index":3', '"index":4')], "has no candidate 4"),
        (lambda lines: [*lines[:-1], "{"], "not JSON"),
    ],
)
def test_labels_that_do_not_fit_the_merge_are_named(folder, change, words):
    shard = folder / "shard1.jsonl"
    shard.write_text("\n".join(change(shard.read_text().splitlines())) + "\n")
    reseal(shard)
    with pytest.raises(GenselectError, match=words):
        gather_labels(folder / "merged.jsonl", shards(folder), folder / "labels.jsonl")


def test_the_programs_print_errors_without_a_traceback(folder, script):
    done = script(
        "gather_labels", "--merged", folder / "merged.jsonl", "--shards", folder / "no", "--output", folder / "o"
    )
    assert done.returncode == 2
    assert "Hint:" in done.stderr
    assert "Traceback" not in done.stderr
    assert (SCRIPTS / "gather_labels.py").stat().st_mode & 0o100


def test_a_merge_with_an_id_twice_is_refused(folder):
    merged = folder / "merged.jsonl"
    lines = merged.read_text().splitlines()
    merged.write_text("\n".join([*lines, lines[0]]) + "\n")
    with pytest.raises(GenselectError, match="the id omr-000000 occurs twice"):
        label_candidates(merged, config(folder, [], kind="rule"), journal=folder / "j", output=folder / "o.jsonl")

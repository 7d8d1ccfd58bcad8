"""The miniature of the whole chain, as a newcomer runs it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq

from genselect.provenance import check_seal


def data(checkout) -> Path:
    return checkout.root / "results" / "data" / "mini"


def test_it_ends_with_sealed_rows(finished) -> None:
    folder = data(finished)
    stats = json.loads((folder / "stats.json").read_text())
    train = pq.read_table(folder / "train.parquet").to_pylist()
    assert len(train) == stats["train_rows"] > 20
    assert len(pq.read_table(folder / "val.parquet")) == stats["val_rows_online"] > 4
    for row in train:
        candidates = row["extra_info"]["cached_candidates"]
        assert len(candidates) == 8
        assert 1 <= sum(candidate["is_correct"] for candidate in candidates) <= 7
        assert re.fullmatch("[0-9]{1,2}", row["reward_model"]["ground_truth"])
    for name in ("merged.jsonl", "labels.jsonl", "stats.json"):
        assert check_seal(folder / name) is not None, name


def test_every_merged_candidate_is_labelled_and_most_labels_agree_with_upstream(finished) -> None:
    folder = data(finished)
    merged = [json.loads(line) for line in (folder / "merged.jsonl").read_text().splitlines()]
    labels = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]
    assert [(label["id"], label["index"]) for label in labels] == [
        (problem["id"], index) for problem in merged for index in range(len(problem["candidates"]))
    ]
    stats = json.loads((folder / "stats.json").read_text())
    assert stats["upstream_agreement"]["rate"] > 0.95


def test_it_says_where_everything_is(finished) -> None:
    said = (finished.root / "first_run.txt").read_text()
    for expected in (
        "genselect: mini is complete after",
        "results/data/mini/stats.json",
        "logs: results/logs/mini/",
        "next: ",
    ):
        assert expected in said
    for name in ("make_mini_shards", "merge_candidates", "label_shard/1-of-1", "gather_labels", "build_rows"):
        assert (finished.root / "results" / "logs" / "mini" / f"{name}.log").exists(), name
    for name in ("merge_candidates", "label_shard/1-of-1", "build_rows"):
        assert (finished.root / "results" / "benchmarks" / "mini" / f"{name}.tsv").exists(), name
    assert (data(finished) / "config.yaml").exists()


def test_a_second_run_has_nothing_to_do(finished) -> None:
    assert finished.planned() == {}


def test_the_same_configuration_gives_the_same_bytes(checkout) -> None:
    names = (
        "merged.jsonl",
        "labels.jsonl",
        "questions.jsonl",
        "train.parquet",
        "val.parquet",
        "partition.json",
        "stats.json",
    )
    before = {name: hashlib.sha256((data(checkout) / name).read_bytes()).hexdigest() for name in names}
    shutil.rmtree(checkout.root / "results")
    checkout.snakemake("data")
    assert {name: hashlib.sha256((data(checkout) / name).read_bytes()).hexdigest() for name in names} == before


def test_shares_of_the_labelling_give_the_same_labels_as_one_job(checkout) -> None:
    one = (data(checkout) / "labels.jsonl").read_bytes()
    checkout.configure([("judge.shards", 3)])
    checkout.snakemake("data")
    assert (data(checkout) / "labels" / "2-of-3" / "labels.jsonl").exists()
    assert (data(checkout) / "labels.jsonl").read_bytes() == one


def test_a_local_folder_of_shards_is_taken_instead(checkout) -> None:
    rows = (data(checkout) / "train.parquet").read_bytes()
    shutil.move(data(checkout) / "shards", checkout.root / "my_shards")
    shutil.rmtree(checkout.root / "results")
    checkout.configure([("dataset.source", "local"), ("dataset.local_dir", "my_shards")])
    assert checkout.planned()["download_shard"] == 4
    checkout.snakemake("data")
    assert (data(checkout) / "train.parquet").read_bytes() == rows
    assert (checkout.root / "my_shards" / "genselect-00000-of-00004.parquet").exists()


def test_a_wrong_key_stops_the_plan_with_what_was_meant(checkout) -> None:
    checkout.configure([("judge.cascade.symbolc", True)])
    done = checkout.snakemake("-n", check=False)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "judge.cascade.symbolc: no such key" in said
    assert "Hint: Did you mean judge.cascade.symbolic?" in said
    assert "Traceback" not in said


def test_a_failing_rule_says_why_and_what_to_type(checkout) -> None:
    shard = data(checkout) / "shards" / "genselect-00001-of-00004.parquet"
    shard.write_bytes(shard.read_bytes()[:1000])
    done = checkout.snakemake("data", check=False)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "genselect-00001-of-00004.parquet" in said
    assert "Hint: " in said
    assert "--rerun-incomplete" in said
    assert not (data(checkout) / "merged.jsonl").exists()
    assert (
        "genselect-00001-of-00004.parquet"
        in (checkout.root / "results" / "logs" / "mini" / "merge_candidates.log").read_text()
    )


def test_every_rule_that_takes_long_keeps_a_log_and_a_benchmark(repository: Path) -> None:
    # Rules that only list files, write the miniature's few shards or draw the plan take no time worth a record.
    targets = {"all", "data", "gates", "train", "evaluate", "report", "stage", "sync_tracking"}
    light = {*targets, "gather_labels", "make_mini_shards", "check_gate", "select_overfit", "preregister"}
    light |= {"graph_rules", "draw_rules"}
    # These come after the staging: a record of theirs would change what is staged next.
    light |= {"publish", "track_run", "export_adapter"}
    for path in (repository / "rules").glob("*.smk"):
        text = path.read_text()
        assert text.startswith("#"), f"{path.name} must open with what it needs and makes"
        if path.name != "common.smk":
            assert "# needs: " in text
            assert "# makes: " in text
        for name, body in re.findall(r"rule (\w+):\n(.*?)(?=\n\s*rule |\Z)", text, flags=re.DOTALL):
            if name not in targets:
                assert re.search(r"^\s+log:", body, flags=re.MULTILINE), name
            if name not in light:
                assert re.search(r"^\s+benchmark:", body, flags=re.MULTILINE), name

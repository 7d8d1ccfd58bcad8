"""The untrained policy is played by real vLLM, and rows are chosen from how its samples came out."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from genselect.provenance import check_seal
from genselect.training.records import read_records
from processes import command_line, running

# The base model takes some three minutes to make, the engine half a minute to start.
pytestmark = pytest.mark.timeout(1800)
CONTROL = "results/data/mini/overfit/control"


def test_every_question_has_its_samples(selected) -> None:
    folder = selected.root / "results" / "rollouts" / "untrained"
    rows = read_records(folder / "records" / "step_0.parquet")
    assert set(Counter(row.question_id for row in rows).values()) == {8}
    assert {(row.step, row.attempt) for row in rows} == {(0, 1)}
    summary = json.loads((folder / "rollout.json").read_text())
    assert len(rows) == summary["episodes"] == 8 * summary["rows"]
    assert sum(row.well_formed for row in rows) > 0.9 * len(rows)
    # About a mean candidate's accuracy, as the base model was made.
    assert 0.35 < summary["verdict"] < 0.7
    assert len({row.text for row in rows}) > len(rows) / 2, "samples are drawn with seeds of their own"
    assert check_seal(folder / "rollout.json") is not None
    assert not (folder / "parts").exists()


def test_the_bands_are_filled_with_unchanged_rows(selected) -> None:
    folder = selected.root / CONTROL
    lines = list(csv.DictReader((folder / "selection.csv").open()))
    assert Counter(line["pass_count"] for line in lines) == {"1": 1, "4": 1, "5": 1, "6": 1}
    rows = read_records(selected.root / "results" / "rollouts" / "untrained" / "records" / "step_0.parquet")
    for line in lines:
        assert sum(row.verdict for row in rows if row.question_id == line["question_id"]) == int(line["pass_count"])
    built = {
        row["extra_info"]["question_id"]: row
        for row in pq.read_table(selected.root / "results" / "data" / "mini" / "train.parquet").to_pylist()
    }
    for part in ("train", "val"):
        chosen = pq.read_table(folder / f"{part}.parquet").to_pylist()
        assert chosen == [built[line["question_id"]] for line in lines]


def test_nothing_is_left_to_do(selected) -> None:
    said = selected.snakemake("-n", f"{CONTROL}/selection.csv").stdout
    assert "Nothing to be done" in said


def test_nothing_of_the_engine_outlives_a_killed_rollout(selected, repository: Path, tmp_path: Path) -> None:
    results = selected.root / "results"
    arguments = ["--config", results / "data" / "mini" / "config.yaml", "--rollout", "untrained", "--model", results / "models" / "mini",
                 "--rows", results / "data" / "mini" / "train.parquet", "--output-dir", tmp_path / "untrained",
                 "--parts", tmp_path / "parts"]  # fmt: skip
    program = [sys.executable, str(repository / "workflow" / "scripts" / "rollout_policy.py"), *map(str, arguments)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    family: list[psutil.Process] = []
    deadline = time.monotonic() + 300
    while not any("EngineCore" in command_line(child) for child in family):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.5)
        family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert running(alive) == []
    assert not (tmp_path / "untrained").exists()

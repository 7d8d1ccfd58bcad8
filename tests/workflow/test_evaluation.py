"""What stands before the formal run: the untrained policy on every held-out question, baselines, and the preregistration."""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from genselect.evaluation import read_preregistration
from genselect.provenance import check_seal

# As in test_rollout: model and engine take minutes.
pytestmark = pytest.mark.timeout(1800)
FOLDER = "results/evaluation/mini"


def planned(checkout, *targets: str) -> dict[str, int]:
    text = checkout.snakemake("-n", *targets).stdout
    return {rule: int(count) for rule, count in re.findall(r"^(\w+)\s+(\d+)$", text, flags=re.MULTILINE)}


def held_out(root: Path) -> list[str]:
    partition = json.loads((root / "results/data/mini/partition.json").read_text())
    return sorted(set(partition["population_ids"]) - set(partition["train_ids"]))


def test_the_untrained_policy_has_answered_every_held_out_question(selected) -> None:
    path = selected.root / FOLDER / "arms" / "untrained.parquet"
    rows = pd.read_parquet(path)
    assert sorted(rows["question_id"].unique()) == held_out(selected.root)
    assert set(Counter(rows["question_id"]).values()) == {2}
    assert 0.3 < rows["correct"].mean() < 0.8
    assert check_seal(path) is not None
    baselines = pd.read_parquet(selected.root / FOLDER / "baselines.parquet").groupby("arm")["expected"].mean()
    assert baselines["oracle"] == 1 > baselines["majority_8"] > baselines["mean"]


def test_the_preregistration_is_sealed_and_write_protected(selected) -> None:
    path = selected.root / FOLDER / "preregistration.json"
    written = read_preregistration(path)
    assert [entry["name"] for entry in written["hypotheses"]] == [
        "formal@20 above untrained",
        "formal@20 above majority_8",
    ]
    assert all(0 < effect["difference"] < 0.5 for effect in written["minimum_detectable"].values())
    assert written["questions"] == len(held_out(selected.root))
    assert not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)


def test_nothing_is_left_to_do(selected) -> None:
    assert planned(selected, f"{FOLDER}/preregistration.json", f"{FOLDER}/baselines.parquet") == {}


def test_a_formal_run_waits_for_the_preregistration_and_no_other_run_does(checkout) -> None:
    waiting = planned(checkout, "results/runs/formal/done.json")
    assert {"preregister", "evaluate_arm", "evaluate_baselines"} <= set(waiting)
    assert "preregister" not in planned(checkout, "results/runs/overfit/done.json")
    # Only what is compared with is played before; the other arms wait for the run.
    assert waiting["evaluate_arm"] == 1
    assert planned(checkout)["evaluate_arm"] == 3


def test_no_changed_setting_or_input_writes_the_preregistration_anew(selected, tmp_path: Path) -> None:
    shutil.copytree(selected.root, tmp_path / "copy", symlinks=True)
    copy = type(selected)(tmp_path / "copy")
    copy.configure([("evaluation.alpha", 0.1), ("evaluation.smallest_effect", 0.5)])
    (copy.root / "results/data/mini/questions.jsonl").touch()
    target = f"{FOLDER}/preregistration.json"
    assert planned(copy, target) == {}
    # What a changed setting does run again is the comparison, which refuses it.
    assert "compare_arms" in planned(copy, f"{FOLDER}/comparison.json")


def test_a_misspelt_arm_stops_the_plan(checkout) -> None:
    checkout.configure([("evaluation.against", ["untraind"])])
    done = checkout.snakemake("-n", check=False)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "evaluation.against[0]: there is no arm untraind" in said
    assert "Hint: Did you mean untrained?" in said

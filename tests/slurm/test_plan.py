"""How many cards each rule asks for, read off a dry run: no Slurm is needed for that."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from study import CONFIG, Study


def asked(study: Study, *targets: str) -> dict[str, str]:
    """The cards that each job of a dry run asks for: by rule, or rule and wildcards where it has some."""
    text = study.snakemake(*targets, "-n").stdout
    found = {}
    for block in re.split(r"\n(?=(?:local)?rule )", text):
        rule = re.match(r"(?:local)?rule (\w+):", block)
        resources = re.search(r"^    resources: (.*)$", block, re.MULTILINE)
        if rule and resources:
            wildcards = re.search(r"^    wildcards: \w+=(\S+)$", block, re.MULTILINE)
            cards = re.search(r"\bgpu=(\w+)", resources[1])
            found[f"{rule[1]} {wildcards[1]}" if wildcards else rule[1]] = cards[1] if cards else "0"
    return found


@pytest.fixture
def planned(repository: Path, tmp_path: Path) -> Study:
    """A copy that is only planned."""
    return Study(repository, tmp_path / "study", None)


def test_each_rule_asks_for_the_cards_it_uses(planned: Study) -> None:
    cards = asked(planned, "all", "results/rollouts/untrained/rollout.json")
    asking = {job: number for job, number in cards.items() if number != "0"}
    assert asking == {
        "label_shard 1-of-2": "1",
        "label_shard 2-of-2": "1",
        "rollout_policy untrained": "2",
        "train_run smoke": "2",
        "train_run formal": "8",
        "evaluate_arm untrained": "8",
        "evaluate_arm untrained_selector": "8",
        "evaluate_arm formal@4": "8",
    }
    assert {"merge_candidates", "build_rows", "compare_arms", "write_page"} <= cards.keys()


@pytest.mark.parametrize("kind", ["rule", "endpoints"])
def test_a_judge_that_is_elsewhere_takes_no_card(planned: Study, kind: str) -> None:
    values: dict[str, Any] = {
        **CONFIG,
        "judge": {**CONFIG["judge"], "kind": kind, "endpoints": ["http://127.0.0.1:1/v1"]},
    }
    (planned.root / "my.yaml").write_text(yaml.safe_dump(values))
    assert set(asked(planned, "data").values()) == {"0"}


def test_the_miniature_asks_for_no_card(planned: Study) -> None:
    (planned.root / "config" / "mini.yaml").rename(planned.root / "my.yaml")
    assert set(asked(planned, "all").values()) == {"0"}


def test_a_run_over_two_nodes_asks_for_both(planned: Study) -> None:
    small = CONFIG["runs"]["smoke"]
    planned.rows()
    planned.configure(one=small, two={**small, "cards": 8, "nodes": 2})
    text = planned.snakemake("results/runs/one/done.json", "results/runs/two/done.json", "-n").stdout
    asked_for = {
        re.search(r"wildcards: run=(\w+)", block)[1]: set(re.search(r"resources: (.*)", block)[1].split(", "))  # type: ignore[index]
        for block in re.split(r"\n(?=rule )", text)
        if block.startswith("rule train_run")
    }
    assert {"nodes=1", "gpu=2", "mem_mb=200000"} <= asked_for["one"]
    assert not any(wish.startswith(("mpi", "tasks")) for wish in asked_for["one"])
    # Memory is a node's, cards are the job's.
    assert {"nodes=2", "gpu=16", "mem_mb=800000", "mpi=srun", "tasks=2"} <= asked_for["two"]

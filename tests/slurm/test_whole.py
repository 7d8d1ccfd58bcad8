"""The whole plan, from shards to the report's page, as Slurm jobs; what needs a card is a stand-in, the rest is the real thing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from study import Study

pytestmark = pytest.mark.soak


def cards_of(text: str) -> int:
    """How many cards a CUDA_VISIBLE_DEVICES names."""
    return len(text.split(",")) if text else 0


def seal(path: Path) -> dict[str, object]:
    return dict(json.loads(path.with_name(path.name + ".seal.json").read_text())["counts"])


def test_the_whole_plan_reaches_its_end(study: Study) -> None:
    study.snakemake("all", "results/rollouts/untrained/rollout.json", timeout=850)
    results = study.root / "results"
    assert (results / "report" / "mini" / "index.html").is_file()
    assert study.done("smoke")["steps"] == 1
    assert study.done("formal")["steps"] == 4
    assert study.steps("formal") == [1, 2, 3, 4]

    for shard in ("1-of-2", "2-of-2"):
        log = (results / "data" / "mini" / "labels" / shard / "journal" / "server.log").read_text()
        assert cards_of(log.split("cards: ")[1].split()[0]) == 1
    assert {cards_of(line["cards"]) for line in study.ledger("smoke")} == {2}
    assert {cards_of(line["cards"]) for line in study.ledger("formal")} == {8}
    rollout = json.loads((results / "rollouts" / "untrained" / "rollout.json").read_text())
    assert cards_of(rollout["cards"]) == 2
    for arm in ("untrained", "untrained_selector", "formal@4"):
        assert cards_of(str(seal(results / "evaluation" / "mini" / "arms" / f"{arm}.parquet")["cards"])) == 8
    assert {job["cards"] for job in study.slurm.jobs() if job["rule"].startswith("rule_build_rows")} <= {"N/A", ""}
    assert "Nothing to be done" in study.snakemake("all").stderr

"""The positive control: the miniature as a newcomer runs it learns. Twenty minutes, so it is part of `make soak`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from genselect.answers import normal_form

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def results(untouched: Any) -> Path:
    """The results of the miniature with its own configuration, unchanged."""
    untouched.snakemake(timeout=3500)
    return Path(untouched.root, "results")


def metrics(results: Path, run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (results / "runs" / run / "metrics.jsonl").read_text().splitlines()]


def majority(rows: Path) -> float:
    """Expected accuracy of the majority of the eight candidates, over built rows."""
    shares = []
    for row in pq.read_table(rows).to_pylist():
        candidates = row["extra_info"]["cached_candidates"]
        counts = Counter(normal_form(candidate["answer"]) for candidate in candidates)
        leaders = {answer for answer, count in counts.items() if count == max(counts.values())}
        right = {normal_form(candidate["answer"]) for candidate in candidates if candidate["is_correct"]}
        shares.append(len(leaders & right) / len(leaders))
    return sum(shares) / len(shares)


def test_the_control_learns_its_rows(results: Path) -> None:
    verdicts = [line["episode/verdict"] for line in metrics(results, "overfit") if "episode/verdict" in line]
    # Both steps of the critic's warm-up are the untrained policy's.
    assert sum(verdicts[-3:]) / 3 > sum(verdicts[:2]) / 2 + 0.2, verdicts


def test_the_policy_rises_above_the_majority_on_rows_it_never_saw(results: Path) -> None:
    held_out = {line["step"]: line["val/verdict"] for line in metrics(results, "formal") if "val/verdict" in line}
    reference = majority(results / "data" / "mini" / "val.parquet")
    assert held_out[20] > reference + 0.15, (held_out, reference)
    assert held_out[20] > held_out[0] + 0.15, held_out


def test_it_learns_to_stop_exploring(results: Path) -> None:
    explores = [line["episode/mean_explores"] for line in metrics(results, "formal") if "episode/verdict" in line]
    assert explores[-1] < 0.75 * explores[0], explores


def test_a_healthy_run_has_no_alarm(results: Path) -> None:
    for run in ("overfit", "formal"):
        health = json.loads((results / "runs" / run / "health.json").read_text())
        assert health["worst_level"] in ("healthy", "note"), health

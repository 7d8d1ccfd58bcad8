"""What the page says in tables, from folders as the workflow leaves them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))

from run_folder import RunFolder

from genselect.config import Config, check_config
from genselect.errors import GenselectError
from genselect.formats import read_json, write_json
from genselect.formats.atomic import write_text
from genselect.plan.runs import resolved_runs
from genselect.report.facts import collect_facts

SCHEDULE = {"steps": 4, "save_every": 2, "validate_every": 2}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    values = {
        "results": str(tmp_path / "results"),
        "dataset": {"name": "mini", "source": "generated"},
        "judge": {"kind": "rule", "model": None, "revision": None},
        "models": {"base": {"source": "made"}},
        "runs": {
            "smoke": {"kind": "smoke", "cards": 1, "schedule": {**SCHEDULE, "steps": 1}},
            "formal": {"kind": "formal", "cards": 1, "schedule": SCHEDULE},
        },
    }
    return check_config(yaml.safe_load(yaml.safe_dump(values)), "test")


@pytest.fixture
def results(config: Config) -> Path:
    """Both runs finished; the formal one was killed once, and a guard spoke in its last step."""
    root = config.results
    write_json(root / "data/mini/stats.json", {"problems_kept": 7})
    verdict = {"gate": "smoke", "kind": "smoke", "passed": True, "checks": 3, "failed": []}
    write_json(root / "gates/smoke.json", verdict)
    smoke = RunFolder(root / "runs/smoke").attempt()
    smoke.step(1)
    formal = RunFolder(root / "runs/formal").attempt()
    formal.line(0, val__verdict=0.25, val__rows=8.0)
    for step, judged in enumerate((0.25, 0.5, 0.75, 1.0), start=1):
        if step == 3:
            formal.attempt(resumed_from=2, ended="killed")
        kl = {"actor__ppo_kl_max": 0.5} if step == 4 else {}
        held_out = {"val__verdict": 0.625, "val__rows": 8.0} if step == 4 else {}
        formal.step(step, episode__verdict=judged, episode__mean_explores=4.5 - step / 2, **kl, **held_out)
    return root


def facts(config: Config) -> dict[str, Any]:
    return collect_facts(config, resolved_runs(config), config.results)


def run_rows(config: Config) -> dict[str, dict[str, Any]]:
    """The table of runs, by name."""
    return {row["name"]: row for row in facts(config)["runs"]}


def test_a_run_is_one_line_with_its_ends_and_what_spoke(config: Config, results: Path) -> None:
    formal = run_rows(config)["formal"]
    assert (formal["steps"], formal["planned"]) == (4, 4)
    assert formal["verdict"] == (0.25, 0.75)  # the first, and the mean of the last three
    assert formal["explores"] == (4.0, 3.0)
    assert formal["held_out"] == [0.25, 0.625]
    assert formal["attempts"] == ["attempt 1: killed", "attempt 2: no end, from step 2"]
    assert (formal["worst"], formal["spoke"]) != ("healthy", 0)
    assert [finding.partition(",")[0] for finding in formal["findings"]] == ["step 4"]


def test_time_is_that_of_the_attempts_that_wrote_their_end(config: Config, results: Path) -> None:
    path = results / "runs/formal/manifest.json"
    manifest = read_json(path)
    first, second = manifest["attempts"]
    first.update(start="2026-01-01T00:00:00+00:00", end="2026-01-01T00:01:30+00:00")
    second.update(start="2026-01-02T00:00:00+00:00")  # and wrote none
    write_json(path, manifest)
    assert {name: row["seconds"] for name, row in run_rows(config).items()} == {"smoke": "-", "formal": "90 s"}


def test_jobs_are_listed_longest_first_and_a_short_one_has_no_memory(config: Config, results: Path) -> None:
    for job, seconds, memory in (("merge_candidates", "1.5", "-"), ("train_run/formal", "300.25", "2048.5")):
        write_text(results / f"benchmarks/mini/{job}.tsv", f"s\th:m:s\tmax_rss\n{seconds}\t0:00:01\t{memory}\n")
    times = facts(config)["times"]
    assert [(row["job"], row["memory"]) for row in times] == [("train_run/formal", 2048.5), ("merge_candidates", None)]


def test_differences_are_told_in_the_projects_words_and_may_be_absent(config: Config, results: Path) -> None:
    assert facts(config)["differences"] == []
    changed = {
        "run": "slow",
        "base": "formal",
        "changes": [{"key": "optimiser.actor_lr", "before": 0.5, "after": 0.25}],
    }
    write_json(results / "data/mini/differences.json", [changed])
    assert facts(config)["differences"] == [
        {"run": "slow", "base": "formal", "changes": ["optimiser.actor_lr: 0.5 -> 0.25"]}
    ]


def test_a_missing_file_is_named(config: Config, results: Path) -> None:
    (results / "gates/smoke.json").unlink()
    with pytest.raises(GenselectError, match=r"gates/smoke\.json"):
        facts(config)

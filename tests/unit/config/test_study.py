"""The study of report 30: every run of the record is a run of config/study.yaml, and differs from its base as the record says."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from genselect.config import Config, check_config, load_config
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.plan.evaluation import evaluation_plan
from genselect.plan.runs import differences, gates, resolved_runs
from genselect.plan.saves import kept_saves
from genselect.plan.selection import check_selections

#: The names under which report 30 lists its runs, and how many runs here each became: one, and one for each segment or
#: attempt that went on under another setting.
RECORD = {
    "r30-genselect-9b-4train-3rollout-memory": 1,
    "r30-genselect-9b-8sync-predictor": 1,
    "r30-overfit-64": 1,
    "r30-overfit-64-grpo": 1,
    "r30-overfit-32-predictor": 3,
    "r30-overfit-32-predictor-cost0.1": 1,
    "r30-cost0.1": 1,
    "r30-cost0.1-from-overfit": 1,
    "r30-cost0.1-from-overfit-padded-smoke": 1,
    "r30-cost0.1-from-overfit-padded": 1,
    "r30-cost0.1-from-overfit-boundaries-smoke": 1,
    "r30-cost0.1-from-overfit-boundaries": 2,
    "r30-cost0.02-from-boundaries50-actor2e-4": 2,
    "r30-cost0.02-from-boundaries50-actor1e-4": 1,
    "r30-cost0.1-from-overfit-boundaries-lr1e-5": 2,
}
#: Its one run without a name.
UNNAMED = "r30-genselect-9b-8sync-memory"
#: What the record claims: all else is equal. Where a run starts and ends is not what the claim is about.
CLAIMS = {
    "r30-overfit-32-predictor-cost0.1": {"reward.cost_per_explore"},
    "r30-cost0.1-from-overfit-padded": {"tokens.packing"},
    "r30-cost0.1-from-overfit-boundaries": set(),
    "r30-cost0.1-from-overfit-boundaries-actor2e-4": {"optimiser.actor_lr"},
    "r30-cost0.02-from-boundaries50-actor2e-4": {"reward.cost_per_explore"},
    "r30-cost0.02-from-boundaries50-actor2e-4-then1e-4": {"optimiser.actor_lr"},
    "r30-cost0.02-from-boundaries50-actor1e-4": {"optimiser.actor_lr"},
    "r30-cost0.1-from-overfit-boundaries-lr1e-5": {
        "optimiser.actor_lr",
        "optimiser.critic_lr",
        "optimiser.predictor_lr",
    },
    "r30-cost0.1-from-overfit-boundaries-lr1e-5-fusedtorch": {
        "verl.actor_rollout_ref.model.fused_kernel_options.impl_backend"
    },
}


@pytest.fixture(scope="module")
def values(repository: Path) -> dict[str, Any]:
    return yaml.safe_load((repository / "config" / "study.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def study(repository: Path) -> Config:
    return load_config(repository / "config" / "study.yaml")


@pytest.fixture(scope="module")
def runs(study: Config) -> dict[str, Run]:
    return resolved_runs(study)


def written(repository: Path) -> list[list[str]]:
    """The rows of the hand-written table of runs, cell by cell."""
    text = (repository / "docs" / "study.md").read_text(encoding="utf-8")
    section = text.split("\n## Runs\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_it_fits_the_schema_and_everything_in_it_resolves(repository: Path, values, study, runs) -> None:
    jsonschema.validate(values, json.loads((repository / "config" / "schema.json").read_text(encoding="utf-8")))
    # A circle of starts, sets and gates would be refused here.
    check_selections(study, runs)
    assert all(run.extends is None or run.expect_difference is not None for run in study.runs.values())


def test_every_run_of_the_record_is_a_run_and_every_run_is_of_the_record(runs) -> None:
    named = {name: [key for key in runs if _belongs(key) == name] for name in RECORD}
    assert {name: len(keys) for name, keys in named.items()} == RECORD
    assert set(runs) == {UNNAMED, *(key for keys in named.values() for key in keys)}


def test_the_record_names_no_other_run(shared: Path) -> None:
    path = shared / "report-30.txt"
    if not path.exists():
        pytest.skip("the record of the study is not beside this checkout")
    names = {
        re.sub(r"(\.attempt|\.tar|\.log|\.$).*", "", name) for name in re.findall(r"r30-[a-z0-9.-]+", path.read_text())
    }
    assert names == set(RECORD)


def _belongs(key: str) -> str | None:
    """The run of the record that a key is a segment of: the longest name that it begins with, up to a dash."""
    return max((name for name in RECORD if key == name or key.startswith(f"{name}-")), key=len, default=None)


def test_the_runs_of_the_documented_table_are_the_runs_of_the_configuration(repository: Path, runs) -> None:
    rows = written(repository)
    assert [len(row) for row in rows] == [5] * len(runs)
    keys = [re.fullmatch(r"`(.+)`", row[1])[1] for row in rows]  # type: ignore[index]
    assert len(keys) == len(set(keys))
    assert set(keys) == set(runs)
    assert all(all(row) for row in rows)


def test_what_the_record_claims_to_be_the_only_change_is(study, runs) -> None:
    found = differences(study, runs)
    for name, claimed in CLAIMS.items():
        changed = {change.key for change in found[name]}
        assert {key for key in changed if not key.startswith("start.") and key != "schedule.steps"} == claimed, name
    assert [change.key for change in found["r30-cost0.02-from-boundaries50-actor2e-4"]] == ["reward.cost_per_explore"]


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_a_second_change_is_refused_by_name(values, name: str) -> None:
    planted = copy.deepcopy(values)
    planted["runs"][name].setdefault("set", {})["optimiser.clip"] = 0.3
    with pytest.raises(
        GenselectError, match=rf"run {re.escape(name)}: [\s\S]*differs and is not expected: optimiser\.clip"
    ):
        resolved_runs(check_config(planted, "study.yaml"))


def test_a_base_that_takes_a_claim_away_is_refused(values) -> None:
    planted = copy.deepcopy(values)
    planted["runs"]["r30-cost0.1-from-overfit-boundaries-actor2e-4"]["set"]["optimiser.actor_lr"] = 1e-4
    with pytest.raises(GenselectError, match=r"expected and does not differ: optimiser\.actor_lr"):
        resolved_runs(check_config(planted, "study.yaml"))


def test_figures_that_the_record_states(runs) -> None:
    control, formal = runs["r30-overfit-32-predictor-cost0.1"], runs["r30-cost0.1"]
    assert (control.schedule.problems, control.schedule.samples, control.optimiser.lora_rank) == (32, 8, 64)
    assert (control.optimiser.actor_lr, control.optimiser.critic_lr, control.schedule.epochs) == (5e-5, 2e-4, 2)
    assert (control.start.step, control.schedule.steps) == (15, 35)
    schedule = formal.schedule
    assert (schedule.problems, schedule.critic_warmup, schedule.validate_every, schedule.steps) == (64, 32, 5, 200)
    assert (formal.reward.cost_per_explore, formal.reward.format_score) == (0.1, 0.1)
    rates = formal.optimiser
    assert (rates.actor_lr, rates.critic_lr, rates.predictor_lr) == (5e-5, 2e-4, 6e-5)
    smoke = runs["r30-cost0.1-from-overfit-padded-smoke"]
    tokens = smoke.tokens
    assert (tokens.actor_budget, tokens.critic_budget, tokens.predictor_budget) == (81_920, 196_608, 81_920)
    assert not tokens.packing
    assert runs["r30-overfit-32-predictor"].optimiser.actor_lr == 2e-4
    last = runs["r30-cost0.1-from-overfit-boundaries-lr1e-5-fusedtorch"].optimiser
    assert last.actor_lr == last.critic_lr == last.predictor_lr == 1e-5


def test_every_start_is_a_save_that_is_kept_and_no_run_ends_before_it_starts(runs) -> None:
    for name, run in runs.items():
        if run.start.run is not None:
            assert run.start.step in kept_saves(runs[run.start.run]), name
            assert run.start.step < run.schedule.steps, name


def test_only_the_last_formal_run_is_a_hypothesis_and_the_rest_is_exploratory(study, runs) -> None:
    plan = evaluation_plan(study, runs)
    last = "r30-cost0.1-from-overfit-boundaries-lr1e-5-fusedtorch@105"
    assert [(arm, against) for arm, against in plan.hypotheses if arm not in plan.exploratory] == [
        (last, "untrained"),
        (last, "majority_8"),
    ]


def test_verls_own_schema_takes_the_keys_of_both_layouts_and_of_the_last_run(runs) -> None:
    from genselect.training.verl_config import Launch, verl_config

    paths = [Path(name) for name in ("model", "train.parquet", "val.parquet", "runs/r")]

    def resolved(name: str) -> Any:
        run = runs[name]
        return verl_config(
            run, Launch(name, *paths, 1, None, Path("loop.yaml"), total_steps=run.schedule.steps, cpu=False), {}
        )

    together, apart = resolved(UNNAMED), resolved("r30-genselect-9b-4train-3rollout-memory")
    assert (together.trainer.n_gpus_per_node, together.trainer.v1.trainer_mode) == (8, "sync")
    assert (apart.trainer.n_gpus_per_node, apart.trainer.v1.trainer_mode) == (4, "sync")
    assert (apart.actor_rollout_ref.rollout.n_gpus_per_node, apart.actor_rollout_ref.hybrid_engine) == (3, False)
    assert runs["r30-genselect-9b-4train-3rollout-memory"].cards == 8
    assert together.actor_rollout_ref.model.fused_kernel_options.impl_backend == "triton"
    last = resolved("r30-cost0.1-from-overfit-boundaries-lr1e-5-fusedtorch")
    assert last.actor_rollout_ref.model.fused_kernel_options.impl_backend == "torch"


@pytest.mark.timeout(600)
def test_snakemake_plans_the_study(repository: Path, tmp_path: Path, study, runs) -> None:
    command = ["snakemake", "-n", "--configfile", "config/study.yaml", "--config", f"results={tmp_path}/results"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {rule: int(count) for rule, count in re.findall(r"^(\w+)\s+(\d+)$", done.stdout, flags=re.MULTILINE)}
    plan = evaluation_plan(study, runs)
    wanted = {
        "train_run": len(runs),
        "check_gate": len(gates(runs)),
        "select_overfit": len(study.overfit_sets),
        "rollout_policy": len(study.rollouts),
        "evaluate_arm": len(plan.played),
        "merge_anchor": len(study.evaluation.anchors),
        "preregister": 1,
        "compare_arms": 1,
    }
    assert {rule: counts.get(rule) for rule in wanted} == wanted
    # Four cards to train, three to roll out, one for the judge: the scheduler is asked for all of them.
    asked = re.search(r"run=r30-genselect-9b-4train-3rollout-memory\n.*?gpu=(\d+)", done.stdout, re.DOTALL)
    assert asked is not None
    assert asked[1] == "8"

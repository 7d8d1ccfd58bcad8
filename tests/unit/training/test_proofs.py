"""Proofs: given on clean numbers, and refused on the faults that cost the study days."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from genselect.formats import read_json
from genselect.training.guards import Level, Settings, evaluate
from genselect.training.proofs import (
    first_state_agrees,
    first_update_is_on_policy,
    packed_equals_padded,
    proof_metrics,
    rollout_matches_actor,
    write_proofs,
)

QUESTIONS = [f"q{number}" for number in range(4) for _ in range(8)]


def test_samples_of_one_prompt_share_their_first_state() -> None:
    values = np.repeat([0.3, -2.0, 5.0, 0.0], 8)
    proof = first_state_agrees("predictor_k0", values, QUESTIONS)
    assert proof.passed
    assert proof.numbers["max_std"] == 0
    # Float noise is no leak.
    noise = np.random.default_rng(0).normal(0, 1e-5, 32)
    assert first_state_agrees("predictor_k0", values + noise, QUESTIONS).passed


def test_a_leak_in_one_question_is_found_and_the_question_named() -> None:
    values = np.repeat([0.3, -2.0, 5.0, 0.0], 8)
    values[17] += 0.03
    proof = first_state_agrees("critic_first_value", values, QUESTIONS)
    assert not proof.passed
    assert proof.numbers["question"] == "q2"
    assert "q2" in proof.message
    assert "boundaries" in proof.message
    # Whatever order the trajectories came in.
    order = np.random.default_rng(1).permutation(32)
    assert first_state_agrees("x", values[order], [QUESTIONS[at] for at in order]).numbers["question"] == "q2"


@pytest.mark.parametrize("fault", [math.nan, math.inf])
def test_a_value_that_is_not_finite_proves_nothing(fault: float) -> None:
    values = np.zeros(32)
    values[9] = fault
    values[30] = 1.0
    proof = first_state_agrees("critic_first_value", values, QUESTIONS)
    assert not proof.passed
    assert proof.numbers["question"] == "q1"
    assert proof.as_json()["numbers"]["max_std"] is None


def test_nothing_to_compare_is_no_proof() -> None:
    assert not first_state_agrees("x", [0.1, 0.2], ["a", "b"]).passed
    assert not packed_equals_padded("x", [1.0], [1.0], [0]).passed
    assert not rollout_matches_actor([-1.0], [-1.0], [1]).passed


@pytest.mark.parametrize(
    ("clipfrac", "kl", "passed"),
    [
        (0.0, 0.0, True),
        (0.0, -5e-8, True),
        (0.026, 0.0, False),
        (0.0, 0.02, False),
        (0.0, -0.02, False),
        (1e-5, 0.0, False),
        (math.nan, 0.0, False),
        (0.0, math.nan, False),
    ],
)
def test_the_first_mini_batch_compares_the_policy_with_itself(clipfrac: float, kl: float, passed: bool) -> None:
    proof = first_update_is_on_policy(clipfrac, kl)
    assert proof.passed is passed
    assert ("stale" in proof.message) is not passed
    assert first_update_is_on_policy(0.01, 0.01, clipfrac_tolerance=0.02, kl_tolerance=0.02).passed


def test_packed_and_padded_agree_where_the_mask_says() -> None:
    padded = np.random.default_rng(0).normal(-1, 0.5, (4, 6))
    mask = np.ones((4, 6))
    mask[:, 4:] = 0
    packed = padded + np.where(mask, 1e-6, 9.0)
    proof = packed_equals_padded("packed_actor", packed, padded, mask)
    assert proof.passed
    assert proof.numbers["tokens"] == 16
    packed[2, 1] += 0.005  # what verl's torch fallback leaks
    assert not packed_equals_padded("packed_actor", packed, padded, mask).passed
    packed[2, 1] = math.nan
    assert not packed_equals_padded("packed_actor", packed, padded, mask).passed
    with pytest.raises(ValueError, match="one shape"):
        packed_equals_padded("packed_actor", packed[0], padded)


def test_rollout_and_actor_give_the_same_probabilities() -> None:
    generator = np.random.default_rng(0)
    actor = np.log(generator.uniform(0.05, 1, 500))
    mask = np.ones(500)
    close = rollout_matches_actor(actor + generator.normal(0, 0.005, 500), actor, mask)
    assert close.passed
    assert close.numbers["pearson"] > 0.999
    # A rollout at another temperature, and one of a policy that was never synced.
    assert not rollout_matches_actor(actor / 0.7, actor, mask).passed
    stale = rollout_matches_actor(generator.permutation(actor), actor, mask)
    assert not stale.passed
    assert "weight sync" in stale.message


def test_proofs_are_a_json_list(tmp_path: Path) -> None:
    proofs = [first_update_is_on_policy(0.0, math.nan), first_state_agrees("predictor_k0", [1, 1], ["a", "a"])]
    write_proofs(tmp_path / "proofs.json", proofs)
    written = read_json(tmp_path / "proofs.json")
    assert [(entry["name"], entry["passed"]) for entry in written] == [
        ("first_update_on_policy", False),
        ("predictor_k0", True),
    ]
    assert written[0]["numbers"]["ppo_kl"] is None


def test_a_failed_proof_stops_the_run_by_its_metric() -> None:
    leak = first_state_agrees("critic_first_value", [0.0, 0.1], ["a", "a"])
    clean = first_update_is_on_policy(0.0, 0.0)
    metrics = proof_metrics([leak, clean])
    assert metrics["proof/critic_first_value/max_std"] == pytest.approx(0.05)
    assert metrics["proof/first_update_on_policy/passed"] == 1
    health = evaluate([], metrics, Settings(), step=1)
    assert (health.level, [finding.guard for finding in health.findings]) == (Level.STOP, ["proof_failed"])
    assert "proof/critic_first_value/passed" in health.findings[0].message
    assert evaluate([], proof_metrics([clean]), Settings(), step=1).level is Level.HEALTHY

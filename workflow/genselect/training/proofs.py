"""Proofs that the trainer computes what it claims to, from one step's own numbers.

1. Samples of one prompt share their first state: the predictor's logit at k = 0 and the critic's first-token value must not
   differ among them. A spread is state that leaked between packed rows.
2. The first actor mini-batch, before any optimiser step, compares the policy with itself: nothing clipped, no divergence.
3. Packed and padded forwards agree, and so do the rollout engine and the actor.
4. The rollout engine played the step with the weights that the step before left, and with no others.

A proof without anything to compare has not been given: it fails.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genselect.formats import write_json
from genselect.training.calibration import json_safe


@dataclass(frozen=True, slots=True)
class Proof:
    """One proof's outcome."""

    name: str
    passed: bool
    numbers: dict[str, Any]
    """What was measured and the limits; a number that is not finite is null in JSON."""
    message: str
    """In words, with the numbers and, when it failed, what to look at."""

    def as_json(self) -> dict[str, Any]:
        """For ``proofs`` in the records."""
        return json_safe(asdict(self))


def write_proofs(path: Path | str, proofs: Iterable[Proof]) -> None:
    """Write the proofs of a step as a JSON list."""
    write_json(path, [proof.as_json() for proof in proofs])


def proof_metrics(proofs: Iterable[Proof]) -> dict[str, float]:
    """The proofs as flat metrics, for guards and assertions: ``proof/<name>/passed`` (0 or 1) and each number."""
    metrics: dict[str, float] = {}
    for proof in proofs:
        metrics[f"proof/{proof.name}/passed"] = float(proof.passed)
        for key, value in proof.numbers.items():
            if isinstance(value, int | float):
                metrics[f"proof/{proof.name}/{key}"] = float(value)
    return metrics


def first_state_agrees(name: str, values: ArrayLike, question_ids: Sequence[str], limit: float = 1e-3) -> Proof:
    """Proof 1: what a model says of the prompt is the same for every sample of a question.

    Args:
        name: Of the proof, such as ``predictor_k0`` or ``critic_first_value``.
        values: The predictor's logit at k = 0, or the critic's value at the first response token; shape (trajectories,).
        question_ids: Of each trajectory. Pass one draw: two attempts at a step are two policies.
        limit: Largest allowed standard deviation (population) within a question. The study's healthy runs read 0.0000; its
            leaking ones 0.03 and more.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.shape != (len(question_ids),):
        raise ValueError(f"{numbers.shape} values for {len(question_ids)} trajectories")
    groups: dict[str, list[float]] = defaultdict(list)
    for question, number in zip(question_ids, numbers, strict=True):
        groups[question].append(float(number))
    compared = {question: _std(group) for question, group in groups.items() if len(group) > 1}
    if not compared:
        measured: dict[str, Any] = {"questions": 0, "limit": limit}
        return Proof(name, False, measured, "no question has two samples, so there is nothing to compare")
    # A nan is worse than any spread.
    question = max(sorted(compared), key=lambda name: math.inf if math.isnan(compared[name]) else compared[name])
    worst = compared[question]
    passed = worst < limit
    message = f"largest std within a question {worst:.2g} ({question}), limit {limit:g}, {len(compared)} questions"
    if not passed:
        message += (
            ": samples of one prompt differ before anything was sampled. State leaks between packed rows: see that the value "
            "models' forward is given the sequence boundaries (cu_seqlens), or switch packing off."
        )
    return Proof(
        name, passed, {"max_std": worst, "question": question, "questions": len(compared), "limit": limit}, message
    )


def first_update_is_on_policy(
    pg_clipfrac: float, ppo_kl: float, *, clipfrac_tolerance: float = 0.0, kl_tolerance: float = 1e-6
) -> Proof:
    """Proof 2: the first actor mini-batch of a step, before any optimiser step, has ``pg_clipfrac`` 0 and ``ppo_kl`` 0.

    Args:
        pg_clipfrac: verl's, of the step's first mini-batch: share of tokens clipped.
        ppo_kl: verl's, of the same mini-batch, in nats a token.
        clipfrac_tolerance: 0 by default: float noise is far from the clip range and clips nothing.
        kl_tolerance: For float noise between the pass that gave the old log-probabilities and the update's forward, whose
            micro-batches may be cut differently. The study read exactly 0; its stale or leaking actors clipped 0.026 to 0.047.
    """
    # Written so that a nan fails.
    passed = bool(abs(pg_clipfrac) <= clipfrac_tolerance and abs(ppo_kl) <= kl_tolerance)
    message = (
        f"first mini-batch: pg_clipfrac {pg_clipfrac:.3g} (at most {clipfrac_tolerance:g}), "
        f"ppo_kl {ppo_kl:.3g} (at most {kl_tolerance:g} in magnitude)"
    )
    if not passed:
        message += (
            ": the policy differs from itself before it was updated. The old log-probabilities are stale, or the update's "
            "forward sees other sequence boundaries than the pass that made them."
        )
    numbers = {
        "pg_clipfrac": float(pg_clipfrac),
        "ppo_kl": float(ppo_kl),
        "clipfrac_tolerance": clipfrac_tolerance,
        "kl_tolerance": kl_tolerance,
    }
    return Proof("first_update_on_policy", passed, numbers, message)


def packed_equals_padded(
    name: str, packed: ArrayLike, padded: ArrayLike, mask: ArrayLike | None = None, limit: float = 1e-3
) -> Proof:
    """Proof 3a: log-probabilities (or values, or logits) of packed rows are those of padded ones.

    Args:
        name: Of the proof, such as ``packed_actor``.
        packed: Any shape.
        padded: The same shape.
        mask: 1 where to compare, the same shape; everywhere by default.
        limit: Largest allowed difference, absolute. About 1e-3 in fp32; in bf16 kernels differ by more, so measure with equal
            boundaries and set it there.
    """
    first, second = _chosen(packed, padded, mask)
    difference = float(np.abs(first - second).max()) if first.size else math.nan
    passed = bool(difference <= limit)
    message = f"largest difference {difference:.3g} over {first.size} tokens, limit {limit:g}"
    if not passed:
        message += (
            ": nothing to compare"
            if not first.size
            else ": packed rows see each other. See that every layer is given the sequence boundaries (cu_seqlens)."
        )
    return Proof(name, passed, {"max_difference": difference, "tokens": int(first.size), "limit": limit}, message)


def rollout_matches_actor(
    rollout_log_probs: ArrayLike,
    actor_log_probs: ArrayLike,
    mask: ArrayLike,
    *,
    max_mean_difference: float = 0.02,
    min_pearson: float = 0.99,
) -> Proof:
    """Proof 3b: the rollout engine and the actor give the sampled tokens the same probabilities.

    Args:
        rollout_log_probs: In nats, any shape.
        actor_log_probs: The actor's before the update, the same shape.
        mask: 1 for the policy's tokens, the same shape.
        max_mean_difference: Largest allowed mean of |p − q|, in probability. bf16 against fp32 reads about 0.005.
        min_pearson: Smallest allowed Pearson correlation of p and q. The miniature reads 0.9994.
    """
    first, second = (np.exp(side) for side in _chosen(rollout_log_probs, actor_log_probs, mask))
    difference = float(np.abs(first - second).mean()) if first.size else math.nan
    pearson = _pearson(first, second)
    passed = bool(difference <= max_mean_difference and pearson >= min_pearson)
    message = (
        f"mean difference {difference:.3g} in probability (at most {max_mean_difference:g}), Pearson {pearson:.4f} "
        f"(at least {min_pearson:g}), {first.size} tokens"
    )
    if not passed:
        message += (
            ": the engine samples from another policy than the one trained. Check the weight sync (adapter merged, on time), the "
            "temperature on both sides, and the numeric type."
        )
    numbers = {
        "mean_difference": difference,
        "pearson": pearson,
        "tokens": int(first.size),
        "max_mean_difference": max_mean_difference,
        "min_pearson": min_pearson,
    }
    return Proof("rollout_matches_actor", passed, numbers, message)


def rollout_is_current(behind: float) -> Proof:
    """Proof 4: no episode was played by weights older than the last step's.

    Weights that are one step old pass for the actor's in :func:`rollout_matches_actor` (docs/benchmarks/planted_faults.md), so their
    version is proven by itself: the engine takes it over with the weights, and reports it with each turn.

    Args:
        behind: The oldest turn's version, in steps behind the trainer's.
    """
    # Written so that a nan fails.
    passed = bool(abs(behind) < 1)
    message = f"oldest weights that played: {behind:g} steps behind"
    if not passed:
        message += ": the weight sync at the end of a step did not reach every engine, or episodes outlived a step."
    return Proof("rollout_is_current", passed, {"steps_behind": float(behind)}, message)


def _std(group: list[float]) -> float:
    # numpy would warn about infinities, and they are a failure rather than a surprise.
    return float(np.std(group)) if all(map(math.isfinite, group)) else math.nan


def _chosen(
    first: ArrayLike, second: ArrayLike, mask: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    chosen = np.ones(a.shape, dtype=bool) if mask is None else np.asarray(mask) != 0
    if not a.shape == b.shape == chosen.shape:
        raise ValueError(f"arrays of one shape are expected, not {a.shape}, {b.shape} and a mask of {chosen.shape}")
    return a[chosen], b[chosen]


def _pearson(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """nan for fewer than two tokens, and where a side does not vary."""
    if first.size < 2 or not first.std() > 0 or not second.std() > 0:
        return math.nan
    return float(np.corrcoef(first, second)[0, 1])

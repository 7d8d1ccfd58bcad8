"""How good the submit predictor's probabilities and the critic's values are, overall and by k.

All of it is measured on predictions made before the step's update. A figure that is not defined (one class only, too few
points) is nan here, null in JSON, and absent from the metrics, where a nan means that something broke.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from scipy.stats import rankdata

from genselect.formats import write_json

Array = NDArray[np.float64]


def brier_score(probability: ArrayLike, outcome: ArrayLike) -> float:
    """Mean of (p − y)² (Brier 1950): 0 is perfect, 0.25 is always saying one half. nan without a point.

    Args:
        probability: Shape (n,), in [0, 1].
        outcome: Shape (n,), 0 or 1.
    """
    p, y = _paired(probability, outcome)
    return float(np.mean((p - y) ** 2)) if p.size else math.nan


def brier_skill(probability: ArrayLike, outcome: ArrayLike) -> float:
    """1 − B / (p(1 − p)), p being the share of ones: 0 for a predictor that knows only that share, 1 for a perfect one.

    nan when p is 0 or 1, where the reference is perfect. A constant predictor is never above 0.
    """
    _, y = _paired(probability, outcome)
    rate = float(np.mean(y)) if y.size else math.nan
    reference = rate * (1 - rate)
    return 1 - brier_score(probability, outcome) / reference if reference > 0 else math.nan


def auc(score: ArrayLike, outcome: ArrayLike) -> float:
    """Area under the ROC curve: chance that a one scores above a zero, ties counting half (Mann and Whitney 1947).

    nan when there is one class only.
    """
    s, y = _paired(score, outcome)
    positive = y > 0.5
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return math.nan
    # Midranks give tied pairs one half each.
    return float((rankdata(s)[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def reliability_bins(probability: ArrayLike, outcome: ArrayLike, bins: int = 10) -> list[dict[str, float]]:
    """Predictions in equal bins of [0, 1], the last one closed: bounds, count, mean prediction, share of ones (nan if empty)."""
    p, y = _paired(probability, outcome)
    # As floats: a nan then falls into no bin.
    place = np.minimum(np.floor(p * bins), bins - 1)
    table = []
    for number in range(bins):
        inside = place == number
        count = int(inside.sum())
        table.append(
            {
                "lower": number / bins,
                "upper": (number + 1) / bins,
                "count": count,
                "mean_prediction": float(p[inside].mean()) if count else math.nan,
                "rate": float(y[inside].mean()) if count else math.nan,
            }
        )
    return table


def explained_variance(returns: ArrayLike, values: ArrayLike) -> float:
    """1 − Var(R − V) / Var(R), R being Monte-Carlo returns: 1 is perfect, 0 is a constant, below 0 is worse than one.

    verl's ``critic/vf_explained_var`` compares with advantages + values, which contain the values themselves when λ < 1, and
    so flatters; this does not. nan when there are fewer than two points or all returns are equal.
    """
    r, v = _paired(returns, values)
    spread = float(np.var(r)) if r.size > 1 else 0.0
    # The variance of equal numbers can come out as 1e-33: nothing was there to be explained.
    if spread <= 1e-24 * max(1.0, float(np.abs(r).max(initial=0.0)) ** 2):
        return math.nan
    return 1 - float(np.var(r - v)) / spread


def monte_carlo_returns(rewards: ArrayLike, response_mask: ArrayLike, gamma: float) -> Array:
    """Discounted sum of the rewards from each token of one episode on; γ counts the policy's tokens, as verl's GAE does.

    Args:
        rewards: As trained on, shape (response tokens,).
        response_mask: 1 for the policy's tokens, shape (response tokens,).
        gamma: Discount of one token.

    Returns:
        Shape (response tokens,); nan on masked tokens, where no value is asked for.
    """
    r, mask = _paired(rewards, response_mask)
    returns = np.full(r.size, math.nan)
    running = 0.0
    for token in range(r.size - 1, -1, -1):
        if mask[token]:
            running = r[token] + gamma * running
            returns[token] = running
    return returns


def predictor_report(
    logits: ArrayLike, outcomes: ArrayLike, k: ArrayLike, bins: int = 10, *, all_logits: ArrayLike | None = None
) -> dict[str, Any]:
    """Calibration of the submit predictor, overall and by k.

    Args:
        logits: The predictor's, shape (decision points,).
        outcomes: 1 where an answer submitted from there was correct, shape (decision points,).
        k: Candidates revealed there, shape (decision points,).
        bins: Reliability bins.
        all_logits: At every decision point, those that no submission left from included; ``logits`` by default. A policy that
            submits from one kind of state only makes those look alike to a predictor that is far from constant.

    Returns:
        ``{"overall": {...}, "by_k": {"0": {...}, ...}}``, each with count, base_rate, mean_prediction, std_prediction, brier,
        brier_skill, auc, and overall with reliability and std_all_states.
    """
    x, y = _paired(logits, outcomes)
    p = np.asarray(expit(x), dtype=np.float64)
    everywhere = p if all_logits is None else expit(np.asarray(all_logits, dtype=np.float64))
    overall = {
        **_predictor_figures(x, p, y),
        "reliability": reliability_bins(p, y, bins),
        "std_all_states": float(everywhere.std()) if everywhere.size else math.nan,
    }
    return {
        "overall": overall,
        "by_k": {str(state): _predictor_figures(x[at], p[at], y[at]) for state, at in _by_k(k, x.size)},
    }


def critic_report(returns: ArrayLike, values: ArrayLike, k: ArrayLike) -> dict[str, Any]:
    """Explained variance of the critic at the decision points against Monte-Carlo returns, overall and by k.

    Args:
        returns: Monte-Carlo returns at the decision points, of the rewards trained on, shape (decision points,).
        values: The critic's there, shape (decision points,).
        k: Candidates revealed there, shape (decision points,).
    """
    r, v = _paired(returns, values)
    return {
        "overall": _critic_figures(r, v),
        "by_k": {str(state): _critic_figures(r[at], v[at]) for state, at in _by_k(k, r.size)},
    }


def report_metrics(predictor: Mapping[str, Any] | None, critic: Mapping[str, Any] | None) -> dict[str, float]:
    """The reports as flat metrics, undefined figures left out.

    Names: ``predictor/brier``, ``predictor/brier_skill``, ``predictor/auc``, ``critic/mc_explained_variance``; each with
    ``/k<n>`` after it for one k; and ``predictor/std`` over all decision points.
    """
    wanted = [
        (
            predictor,
            "predictor",
            {"brier": "brier", "brier_skill": "brier_skill", "auc": "auc", "std_all_states": "std"},
        ),
        (critic, "critic", {"explained_variance": "mc_explained_variance"}),
    ]
    metrics: dict[str, float] = {}
    for report, prefix, names in wanted:
        if report is None:
            continue
        parts = {"": report["overall"], **{f"/k{state}": figures for state, figures in report["by_k"].items()}}
        for suffix, figures in parts.items():
            for figure, name in names.items():
                if figure not in figures:
                    continue
                if not math.isnan(figures[figure]) or figures["broken"]:
                    metrics[f"{prefix}/{name}{suffix}"] = figures[figure]
    return metrics


def write_report(path: Path | str, step: int, reports: Mapping[str, Any]) -> None:
    """Write ``potential/step_<n>.json``: the step and the named reports, nan and infinite as null."""
    write_json(path, json_safe({"step": step, **reports}))


def json_safe(value: Any) -> Any:
    """``value`` with numpy numbers as plain ones, and numbers that JSON lacks (nan, infinite) as None."""
    if isinstance(value, Mapping):
        return {str(key): json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [json_safe(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _predictor_figures(x: Array, p: Array, y: Array) -> dict[str, Any]:
    return {
        "count": int(p.size),
        "base_rate": float(y.mean()) if y.size else math.nan,
        "mean_prediction": float(p.mean()) if p.size else math.nan,
        "std_prediction": float(p.std()) if p.size else math.nan,
        "brier": brier_score(p, y),
        "brier_skill": brier_skill(p, y),
        # Of the logits: far out, probabilities tie where logits do not.
        "auc": auc(x, y) if np.isfinite(x).all() else math.nan,
        "broken": not bool(np.isfinite(x).all()),
    }


def _critic_figures(r: Array, v: Array) -> dict[str, Any]:
    return {
        "count": int(r.size),
        "mean_return": float(r.mean()) if r.size else math.nan,
        "mean_value": float(v.mean()) if v.size else math.nan,
        "explained_variance": explained_variance(r, v),
        "broken": not bool(np.isfinite(r).all() and np.isfinite(v).all()),
    }


def _by_k(k: ArrayLike, size: int) -> list[tuple[int, NDArray[np.bool_]]]:
    states = np.asarray(k)
    if states.shape != (size,):
        raise ValueError(f"k has shape {states.shape}, and there are {size} decision points")
    return [(int(state), states == state) for state in np.unique(states)]


def _paired(first: ArrayLike, second: ArrayLike) -> tuple[Array, Array]:
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"two arrays of one shape (n,) are expected, not {a.shape} and {b.shape}")
    return a, b

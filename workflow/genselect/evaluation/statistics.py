"""Two arms on the same questions: difference, clustered standard error, intervals, tests.

The unit is the question. An arm's samples of one question are averaged first, so all figures are over one difference a question,
and everything that correlates answers to the same question is accounted for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats
from statsmodels.stats.multitest import multipletests

Array = npt.NDArray[np.float64]
Interval = tuple[float, float]

#: Below this many questions that differ, a t distribution is not trusted: exact test and interval are used.
FEW_DIFFERING = 10
#: Resamples of a bootstrap.
RESAMPLES = 9999
# Resamples held in memory at once, as differences: 32 MB.
_BATCH_VALUES = 4_000_000


@dataclass(frozen=True, slots=True)
class McNemar:
    """Exact McNemar test."""

    gained: int
    """Questions that only the arm has right."""
    lost: int
    """Questions that only the reference has right."""
    p_value: float
    """Two-sided, binomial on the discordant pairs; 1 when there are none."""


@dataclass(frozen=True, slots=True)
class Paired:
    """An arm against a reference on the same questions."""

    questions: int
    difference: float
    """Mean over questions of (arm - reference), in [-1, 1]."""
    standard_error: float
    """Clustered by question."""
    sd: float
    """Standard deviation of the differences of single questions."""
    differing: int
    """Questions on which the two differ at all."""
    p_value: float
    """Two-sided; see ``test``."""
    test: Literal["paired_t", "sign_exact"]
    """``paired_t``, or the exact sign test where fewer than :data:`FEW_DIFFERING` questions differ."""
    interval: Interval
    """The primary interval; see ``interval_kind``."""
    interval_kind: Literal["bca", "exact"]
    """``bca``, or ``exact`` where fewer than :data:`FEW_DIFFERING` questions differ."""
    interval_bca: Interval
    interval_percentile: Interval
    interval_normal: Interval


def question_means(rows: pd.DataFrame, value: str) -> pd.Series:
    """Mean of ``value`` over seeds and samples of each question, by ``question_id``, sorted."""
    return rows.groupby("question_id", sort=True)[value].mean()


def question_differences(arm: pd.DataFrame, reference: pd.DataFrame, value: str = "expected") -> pd.DataFrame:
    """Arm minus reference on each question, by training seed.

    Args:
        arm: Columns ``question_id``, ``seed`` and ``value``; any number of samples a question and seed.
        reference: The same columns; its seeds are averaged.
        value: The column compared.

    Returns:
        Shape (questions, seeds of the arm): index ``question_id`` sorted, one column a seed.

    Raises:
        ValueError: The arms are not on the same questions.
    """
    means = arm.groupby(["question_id", "seed"], sort=True)[value].mean().unstack("seed")
    against = question_means(reference, value)
    if not means.index.equals(against.index) or bool(means.isna().to_numpy().any()):
        raise ValueError("the arms are not on the same questions")
    return means.sub(against, axis=0)


def paired_comparison(
    differences: npt.ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Paired:
    """All figures of one comparison.

    The standard error is ``sqrt(sum((d - mean d)^2) / (n (n - 1)))`` over the n questions' differences: the cluster-robust one
    of a regression with questions as clusters and ``n / (n - 1)`` as its correction (Miller 2024, Adding Error Bars to Evals,
    arXiv 2411.00640; tested against statsmodels). The p value is that of ``t = difference / standard error`` with n - 1 degrees of
    freedom. BCa is the primary interval. Where fewer than :data:`FEW_DIFFERING` questions differ both are replaced by exact
    ones, which are never too narrow: the sign test over the questions that differ, and ``[-u(losses), u(gains)]`` with u
    the Clopper-Pearson upper limit of the share of questions that moved that way (no question can move by more than 1).

    Args:
        differences: Shape (questions,), one mean difference a question, in [-1, 1].
        level: Of the intervals, two-sided.
        resamples: Of the bootstrap.
        seed: Of the bootstrap.

    Raises:
        ValueError: Fewer than two questions.
    """
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim != 1 or len(d) < 2:
        raise ValueError("at least two questions are needed, in one dimension")
    n, mean, sd = len(d), float(d.mean()), float(d.std(ddof=1))
    standard_error = sd / math.sqrt(n)
    gains, losses = int((d > 0).sum()), int((d < 0).sum())
    half = float(stats.norm.ppf(0.5 + level / 2)) * standard_error
    percentile, bca = bootstrap_intervals(d, level=level, resamples=resamples, seed=seed)
    few = gains + losses < FEW_DIFFERING or sd == 0
    return Paired(
        questions=n,
        difference=mean,
        standard_error=standard_error,
        sd=sd,
        differing=gains + losses,
        p_value=sign_p(gains, losses) if few else t_p(mean, standard_error, n - 1),
        test="sign_exact" if few else "paired_t",
        interval=_exact_interval(gains, losses, n, level) if few else bca,
        interval_kind="exact" if few else "bca",
        interval_bca=bca,
        interval_percentile=percentile,
        interval_normal=(mean - half, mean + half),
    )


def bootstrap_intervals(
    differences: Array, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Interval, Interval]:
    """Percentile and BCa interval of the mean, resampling questions (``scipy.stats.bootstrap``; Efron 1987 for BCa).

    Both come from the same resamples. Without any spread, both are the mean itself.
    """
    mean = float(differences.mean())
    if np.ptp(differences) == 0:
        return (mean, mean), (mean, mean)
    batch = max(1, _BATCH_VALUES // len(differences))
    drawn = stats.bootstrap(
        (differences,), np.mean, n_resamples=resamples, batch=batch, vectorized=True, confidence_level=level,
        method="percentile", rng=np.random.default_rng(seed),
    )  # fmt: skip
    corrected = stats.bootstrap(
        (differences,), np.mean, n_resamples=0, batch=batch, vectorized=True, confidence_level=level,
        method="BCa", bootstrap_result=drawn,
    )  # fmt: skip
    low, high = drawn.confidence_interval
    corrected_low, corrected_high = corrected.confidence_interval
    return (float(low), float(high)), (float(corrected_low), float(corrected_high))


def t_p(difference: float, standard_error: float, df: float) -> float:
    """Two-sided p value of ``difference / standard_error`` under a t distribution."""
    if standard_error == 0:
        return 1.0 if difference == 0 else 0.0
    return float(2 * stats.t.sf(abs(difference) / standard_error, df))


def sign_p(gains: int, losses: int) -> float:
    """Two-sided exact binomial p value of ``gains`` against ``losses``; 1 when there are neither."""
    return float(stats.binomtest(gains, gains + losses, 0.5).pvalue) if gains + losses else 1.0


def mcnemar_exact(arm: npt.ArrayLike, reference: npt.ArrayLike) -> McNemar:
    """Exact McNemar test of two arms with one verdict a question each.

    Args:
        arm: Shape (questions,), 0 or 1.
        reference: The same, in the same order.

    Raises:
        ValueError: A verdict is neither 0 nor 1, or the shapes differ.
    """
    a, b = np.asarray(arm, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if a.shape != b.shape or not (np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all()):
        raise ValueError("McNemar's test takes one verdict, 0 or 1, a question and arm")
    gained, lost = int(((a == 1) & (b == 0)).sum()), int(((a == 0) & (b == 1)).sum())
    return McNemar(gained, lost, sign_p(gained, lost))


def single_draw(rows: pd.DataFrame, seed: int) -> pd.Series:
    """One verdict (column ``correct``) a question out of an arm's seeds and samples, drawn with ``seed``, by ``question_id``.

    McNemar's test needs one verdict; a draw is one answer that the arm really gave, which a majority of its samples is not.
    """
    ordered = rows.sort_values([name for name in ("question_id", "seed", "sample") if name in rows], kind="stable")
    order = np.random.default_rng(seed).random(len(ordered))
    position = ordered.assign(_order=order).groupby("question_id", sort=True)["_order"].idxmin()
    return pd.Series(rows.loc[position.to_numpy(), "correct"].to_numpy(), index=position.index)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p values of one family, by name (statsmodels)."""
    if not p_values:
        return {}
    adjusted = multipletests(list(p_values.values()), method="holm")[1]
    return {name: float(value) for name, value in zip(p_values, adjusted, strict=True)}


def _exact_interval(gains: int, losses: int, n: int, level: float) -> Interval:
    def upper(count: int) -> float:
        return 1.0 if count == n else float(stats.beta.ppf(0.5 + level / 2, count + 1, n - count))

    return 0.0 - upper(losses), upper(gains)

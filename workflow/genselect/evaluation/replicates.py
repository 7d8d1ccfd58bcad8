"""Runs that differ only by their seed, combined: what can be said of training, not of one run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

from genselect.evaluation.statistics import Interval


@dataclass(frozen=True, slots=True)
class Replicates:
    """Differences of several training seeds on the same questions, combined."""

    seeds: int
    difference: float
    """Mean of the seeds' means."""
    by_seed: tuple[float, ...]
    """Mean difference of each seed."""
    question_error: float
    """Standard error from the choice of questions."""
    seed_error: float | None
    """Standard error from the spread between seeds; None with one seed, where it cannot be known."""
    standard_error: float
    """Both together: ``sqrt(question_error^2 + seed_error^2)``."""
    p_value: float
    """Two-sided: the level at which the interval would end at 0."""
    interval: Interval
    note: str
    """What this number of seeds can say."""


def combine_seeds(differences: npt.ArrayLike, *, level: float = 0.95) -> Replicates:
    """Random effects over seeds, crossed with questions.

    The model is ``d_qs = mu + question_q + seed_s + rest_qs``. The estimate of mu is the mean of the S seed means. ``V_q`` is the
    variance of the Q questions' means over seeds, by Q; ``V_s`` that of the seed means, by S. The interval is
    ``mean +- sqrt(t_(Q-1)^2 V_q + t_(S-1)^2 V_s)``, each part with the t quantile of its own degrees of freedom (Howe 1974, J. Am.
    Stat. Assoc. 69, for sums of variances). Both parts contain the rest, so it is too wide rather than too narrow:
    docs/benchmarks/paired_statistics.md has its coverage, and that of the Satterthwaite interval, which is too narrow with few seeds.

    Limits. One seed: no spread between seeds can be seen; interval and p value are about this run alone. Two seeds: the spread
    rests on one degree of freedom, with a quantile of 12.7; such an interval is several times as wide as that of one run,
    and rightly so. Three: 4.3. Seeds that agree do not prove that others would.

    Args:
        differences: Shape (questions, seeds), arm minus reference; the reference is the same in every column.
        level: Of the interval.

    Raises:
        ValueError: Fewer than two questions, or no seed.
    """
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim != 2 or d.shape[0] < 2 or d.shape[1] < 1:
        raise ValueError("differences must have shape (questions, seeds), with two questions at least")
    questions, seeds = d.shape
    by_question, by_seed, mean = d.mean(axis=1), d.mean(axis=0), float(d.mean())
    question_variance = float(by_question.var(ddof=1)) / questions
    seed_variance = float(by_seed.var(ddof=1)) / seeds if seeds > 1 else 0.0
    half = _half_width(1 - level, question_variance, questions, seed_variance, seeds)
    return Replicates(
        seeds=seeds,
        difference=mean,
        by_seed=tuple(float(value) for value in by_seed),
        question_error=math.sqrt(question_variance),
        seed_error=math.sqrt(seed_variance) if seeds > 1 else None,
        standard_error=math.sqrt(question_variance + seed_variance),
        p_value=_p_value(mean, question_variance, questions, seed_variance, seeds),
        interval=(mean - half, mean + half),
        note=_note(seeds),
    )


def _half_width(alpha: float, question_variance: float, questions: int, seed_variance: float, seeds: int) -> float:
    over_questions = float(stats.t.isf(alpha / 2, questions - 1)) ** 2 * question_variance
    over_seeds = float(stats.t.isf(alpha / 2, seeds - 1)) ** 2 * seed_variance if seeds > 1 else 0.0
    return math.sqrt(over_questions + over_seeds)


def _p_value(mean: float, question_variance: float, questions: int, seed_variance: float, seeds: int) -> float:
    """The alpha at which half the interval is as wide as the mean is far from 0; found in its logarithm."""
    if mean == 0 or question_variance + seed_variance == 0:
        return 1.0 if mean == 0 else 0.0

    def beyond(log_alpha: float) -> float:
        return _half_width(math.exp(log_alpha), question_variance, questions, seed_variance, seeds) - abs(mean)

    smallest = math.log(1e-100)
    return math.exp(optimize.brentq(beyond, smallest, 0.0, xtol=1e-12)) if beyond(smallest) > 0 else 1e-100


def _note(seeds: int) -> str:
    if seeds == 1:
        return "One training seed: this speaks of this run, not of what another seed would give."
    if seeds == 2:
        return "Two training seeds: how much seeds differ rests on one difference between them, and is hardly known."
    return f"{seeds} training seeds: how much seeds differ rests on {seeds - 1} degrees of freedom."

"""What a comparison can see: minimum detectable effect and power of a paired comparison of n questions."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from scipy import stats

from genselect.evaluation.statistics import question_means


def difference_variance(effect: float, *, discordance: float | None = None, variance: float | None = None) -> float:
    """Variance of one question's difference.

    With one 0 / 1 verdict an arm and a share ``discordance`` of questions on which they differ, a true difference ``effect``
    leaves ``discordance - effect^2``. With several samples give the ``variance`` itself; it does not depend on the effect.

    Raises:
        ValueError: Neither or both are given, they are out of range, or the effect exceeds the discordance.
    """
    if (discordance is None) == (variance is None):
        raise ValueError("give discordance (one sample an arm) or variance (several), not both")
    if variance is not None:
        if variance < 0:
            raise ValueError(f"variance is {variance}, and none is negative")
        return variance
    assert discordance is not None
    if not 0 <= discordance <= 1 or abs(effect) > discordance:
        raise ValueError(f"a discordance of {discordance} and an effect of {effect} do not go together")
    return discordance - effect**2


def power_at(
    effect: float,
    questions: int,
    *,
    alpha: float = 0.05,
    discordance: float | None = None,
    variance: float | None = None,
) -> float:
    """Chance that the two-sided paired test finds a true difference ``effect``, in its own direction.

    ``Phi(|effect| sqrt(n) / sd - z_(1 - alpha/2))`` with ``sd`` of :func:`difference_variance` (Connor 1987 for paired
    proportions, with the standard error estimated under the alternative, as the t test does; normal approximation).
    """
    sd = math.sqrt(difference_variance(effect, discordance=discordance, variance=variance))
    if sd == 0:
        return 1.0 if effect else alpha / 2
    return float(stats.norm.cdf(abs(effect) * math.sqrt(questions) / sd - stats.norm.ppf(1 - alpha / 2)))


def minimum_detectable_effect(
    questions: int,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
    discordance: float | None = None,
    variance: float | None = None,
) -> float:
    """Smallest true difference that is found with chance ``power``: the inverse of :func:`power_at`.

    With ``z = z_(1 - alpha/2) + z_power``: ``z sqrt(variance / n)``, and ``z sqrt(discordance / (n + z^2))`` for one sample
    an arm.

    Raises:
        ValueError: As :func:`difference_variance`; or alpha, power or questions is out of range.
    """
    if questions < 2 or not 0 < alpha < 1 or not alpha < power < 1:
        raise ValueError("questions must be 2 or more, and 0 < alpha < power < 1")
    z = float(stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power))
    if discordance is None:
        return z * math.sqrt(difference_variance(0.0, variance=variance) / questions)
    difference_variance(0.0, discordance=discordance, variance=variance)
    return z * math.sqrt(discordance / (questions + z**2))


def own_discordance(rows: pd.DataFrame) -> tuple[float, str]:
    """How often two independent answers of one policy to one question differ in correctness, and how it was estimated.

    With two or more samples a question: mean over questions of ``2 c (m - c) / (m (m - 1))``, c of m samples right, which is
    unbiased. With one sample it cannot be known; ``2 p (1 - p)`` of the overall accuracy p is its upper bound.

    Args:
        rows: Of one arm: ``question_id`` and ``correct`` (0 or 1).
    """
    groups = rows.groupby("question_id")["correct"]
    samples, right = groups.size(), groups.sum()
    if int(samples.min()) < 2:
        share = float(groups.mean().mean())
        return 2 * share * (1 - share), "upper bound from one sample a question: 2 p (1 - p) of the accuracy"
    pairs = 2 * right * (samples - right) / (samples * (samples - 1))
    return float(pairs.mean()), f"pairs of samples of one question, {int(samples.min())} a question"


def plan_effect(
    untrained: pd.DataFrame,
    reference: pd.DataFrame | None,
    *,
    questions: int,
    samples: int,
    alpha: float,
    power: float,
    hypotheses: int = 1,
) -> dict[str, Any]:
    """The minimum detectable effect of a hypothesis, from what is known before training.

    Against another arm (``reference``), the differences of single questions are taken from the untrained policy as it
    is. Against the untrained policy itself (None), a trained one that answers exactly as well on each question still
    differs from it by chance: the variance is ``discordance / samples``. That is the least it can be, since training
    moves questions; so the effect at twice the discordance is given beside it.

    Args:
        untrained: Rows of the untrained policy, with ``question_id``, ``correct``, and ``expected`` where it differs from that.
        reference: Rows of the arm compared with, on the same questions; None for the untrained policy itself.
        questions: Of the comparison.
        samples: Samples a question in each arm of the comparison.
        alpha: Of the family.
        power: Wanted.
        hypotheses: In the family. Holm's first step asks for ``alpha / hypotheses``, which is planned for.

    Returns:
        ``difference``; ``at_double_variance``, the effect if questions differ twice as much; ``variance`` of one question's
        difference; ``discordance`` of two single answers and ``source``, how it was had; ``alpha`` used; ``power``; ``questions``;
        ``samples``.
    """
    discordance, source = own_discordance(untrained)
    if reference is None:
        variance = discordance / samples
    else:
        ours, theirs = (
            question_means(rows, "expected" if "expected" in rows else "correct") for rows in (untrained, reference)
        )
        given = int(untrained.groupby("question_id").size().min())
        spread = float((ours - theirs.reindex(ours.index)).var(ddof=1))
        # The spread at hand holds the noise of `given` samples; the comparison will have that of `samples`.
        variance = max(spread + discordance / 2 * (1 / samples - 1 / given), 0.0)
        source += "; differences of single questions as between the untrained policy and the reference"
    used = alpha / hypotheses

    def effect(factor: float) -> float:
        return minimum_detectable_effect(questions, alpha=used, power=power, variance=factor * variance)

    return {
        "difference": effect(1),
        "at_double_variance": effect(2),
        "variance": variance,
        "discordance": discordance,
        "source": source,
        "alpha": used,
        "power": power,
        "questions": questions,
        "samples": samples,
    }

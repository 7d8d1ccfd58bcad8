"""Are the statistics of the comparison right, and what do they cost?

``paired_statistics.py [--simulations 1000] [--parts coverage,power,seeds,cost]`` writes ``paired_statistics.md`` beside it:
coverage and false positives of the intervals, power of the preregistered test against its formula, seeds as replicates,
seconds and memory at full size. Not named statistics.py: that would shadow the standard library's module for the programs
beside it.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import platform
import resource
import time
from pathlib import Path

import numpy as np
import pandas as pd
import scipy
import statsmodels
from scipy import stats

from genselect.evaluation import (
    Arm,
    CandidateView,
    Question,
    baseline_arms,
    baseline_rows,
    combine_seeds,
    compare_arms,
    comparison_text,
    make_hypothesis,
    make_settings,
    minimum_detectable_effect,
    paired_comparison,
    plan_effect,
    population_sha256,
    power_at,
)

RESAMPLES = 999
JUDGE = "f" * 64


def chances(rng, questions, rise):
    """Chance of a right answer to each question: of the reference, and of an arm whose chance is, on average, ``rise`` higher.

    Training moves questions up and down: a fifth of them by up to half of what is left, besides the rise.
    """
    base = rng.beta(0.7, 0.7, questions)
    moved = rng.random(questions) < 0.2
    swing = np.where(moved, rng.uniform(-0.5, 0.5, questions), 0.0) * np.minimum(base, 1 - base)
    return base, base * (1 - rise) + rise * (0.5 + 0.5 * base) + swing * (1 - rise)


def true_rise(rise):
    """Mean difference of the two chances of :func:`chances`: ``rise (0.5 - 0.5 E base)``, and E base is 0.5."""
    return rise * 0.25


def simulated_differences(rng, questions, samples, rise):
    base, arm = chances(rng, questions, rise)
    return (rng.binomial(samples, arm) - rng.binomial(samples, base)) / samples


def coverage(simulations):
    """Share of simulations whose interval holds the truth, and false positives where there is no difference."""
    lines = [
        "| questions | samples | true rise, points | p < 0.05 where there is none | normal | percentile | BCa | primary | exact used |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for questions in (60, 500):
        for samples in (1, 4):
            for rise in (0.0, 0.2):
                truth, found = true_rise(rise), []
                for number in range(simulations):
                    rng = np.random.default_rng([questions, samples, int(10 * rise), number])
                    d = simulated_differences(rng, questions, samples, rise)
                    one = paired_comparison(d, resamples=RESAMPLES, seed=number)
                    kinds = (one.interval_normal, one.interval_percentile, one.interval_bca, one.interval)
                    found.append(
                        [
                            one.p_value < 0.05,
                            *(low <= truth <= high for low, high in kinds),
                            one.interval_kind == "exact",
                        ]
                    )
                mean = np.mean(found, axis=0)
                false = f"{mean[0]:.1%}" if rise == 0 else ""
                shares = " | ".join(f"{value:.1%}" for value in mean[1:])
                lines.append(f"| {questions} | {samples} | {100 * truth:.0f} | {false} | {shares} |")
    error = math.sqrt(0.95 * 0.05 / simulations)
    return [
        "## Coverage and false positives",
        "",
        f"{simulations:,} simulations a row, {RESAMPLES} resamples each; aim 95 % and 5 %, give or take {1.96 * error:.1%} by chance.",
        "Questions differ in difficulty, and training moves a fifth of them up or down, also where the mean does not rise.",
        "",
        *lines,
    ]


def power_table(simulations):
    """Found rises against the formula, with the family's first Holm step."""
    lines = [
        "| questions | samples | hypotheses | rise, points | planned | formula | found |",
        "|---|---|---|---|---|---|---|",
    ]
    for questions, samples, hypotheses in ((500, 1, 1), (500, 4, 1), (1500, 1, 2), (1500, 4, 2)):
        alpha = 0.05 / hypotheses
        pilot = simulated_differences(np.random.default_rng(9), 200_000, samples, 0.0)
        variance = float(pilot.var())
        effect = minimum_detectable_effect(questions, alpha=alpha, variance=variance)
        for factor in (1.0, 0.5):
            rise = factor * effect / 0.25
            rng = np.random.default_rng([questions, samples, int(10 * factor)])
            hits = 0
            for _ in range(simulations):
                d = simulated_differences(rng, questions, samples, rise)
                t = d.mean() / (d.std(ddof=1) / math.sqrt(questions))
                hits += t > 0 and 2 * stats.t.sf(t, questions - 1) < alpha
            risen = float(simulated_differences(np.random.default_rng(9), 200_000, samples, rise).var())
            planned, formula = (
                power_at(factor * effect, questions, alpha=alpha, variance=v) for v in (variance, risen)
            )
            lines.append(
                f"| {questions} | {samples} | {hypotheses} | {100 * factor * effect:.1f} | {planned:.1%} | {formula:.1%} | "
                f"{hits / simulations:.1%} |"
            )
    return [
        "## Power of the preregistered test",
        "",
        f"The paired t test, two-sided, at 0.05 by the number of hypotheses (Holm's first step); {simulations:,} simulations",
        f"a row, give or take {1.96 * math.sqrt(0.16 / simulations):.1%}. *Planned*: the formula with the variance of one question's",
        "difference where there is no rise, which is what is known before. *Formula*: with the variance under the rise, which is",
        "larger here, since a rise moves questions. So a plan promises a few points of power more than it keeps.",
        "",
        *lines,
    ]


def seeds_table(simulations):
    """Coverage over training seeds: this interval, Satterthwaite's, and that of the first seed alone."""
    lines = [
        "| seeds | spread between seeds, points | this interval | Satterthwaite | first seed alone | half width, points |",
        "|---|---|---|---|---|---|",
    ]
    questions = 400
    for seeds in (2, 3, 5):
        for spread in (0.0, 0.02, 0.05):
            rng = np.random.default_rng([seeds, int(100 * spread)])
            found = []
            for _ in range(simulations):
                d = (
                    rng.normal(0, 0.3, (questions, 1))
                    + rng.normal(0, spread, (1, seeds))
                    + rng.normal(0, 0.4, (questions, seeds))
                )
                ours, alone = combine_seeds(d), combine_seeds(d[:, :1])
                half = ours.interval[1] - ours.difference
                found.append(
                    [holds_zero(ours.interval), abs(d.mean()) <= satterthwaite(d), holds_zero(alone.interval), half]
                )
            mean = np.mean(found, axis=0)
            shares = " | ".join(f"{value:.1%}" for value in mean[:3])
            lines.append(f"| {seeds} | {100 * spread:.0f} | {shares} | {100 * mean[3]:.1f} |")
    return [
        "## Seeds as replicates",
        "",
        f"{simulations:,} simulations a row of {questions} questions; the truth is the mean over all seeds there could be. Shares of",
        "intervals that hold it, aim 95 %. The one used here is never too narrow, and pays for it in width; the usual one, which",
        "adds variances and counts degrees of freedom by Satterthwaite, misses too often with two or three seeds that differ.",
        "",
        *lines,
    ]


def holds_zero(interval):
    return interval[0] <= 0 <= interval[1]


def satterthwaite(d):
    """Half of the usual interval: variances added, the residual taken off, degrees of freedom by Satterthwaite."""
    questions, seeds = d.shape
    by_question, by_seed = d.mean(axis=1), d.mean(axis=0)
    rest = d - by_question[:, None] - by_seed[None, :] + d.mean()
    over_rest = (rest**2).sum() / ((questions - 1) * (seeds - 1)) / (questions * seeds)
    over_questions = by_question.var(ddof=1) / questions
    over_seeds = max(0.0, by_seed.var(ddof=1) / seeds - over_rest)
    both = over_questions + over_seeds
    df = both**2 / (over_questions**2 / (questions - 1) + over_seeds**2 / (seeds - 1))
    return stats.t.ppf(0.975, df) * math.sqrt(both)


def clock():
    """Wall and CPU seconds, to be subtracted."""
    return np.array([time.perf_counter(), time.process_time()])


def cost(questions, samples, models):
    """Seconds and peak memory of the whole at full size: baselines, planning, comparison and text."""
    rng = np.random.default_rng(0)
    asked = []
    for number in range(questions):
        right = rng.permutation(8) < rng.integers(1, 8)
        wrong = rng.integers(0, 4, 8)
        views = tuple(
            CandidateView(rf"\frac{{{number + (0 if ok else 1 + slip)}}}{{7}}", bool(ok))
            for ok, slip in zip(right, wrong, strict=True)
        )
        asked.append(Question(f"omr-{number:06d}", views[0].answer, views))
    base, trained = chances(rng, questions, 0.1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = {}
    start = clock()
    arms = baseline_arms(baseline_rows(asked, seed=1), JUDGE)
    seconds[f"baselines (14 arms, {8 * questions:,} candidates)"] = clock() - start
    chosen = [question.candidates[0].answer for question in asked]
    for number in range(models):
        chance = base if number == 0 else trained
        right = (rng.random((samples, questions)) < chance).astype(float)
        arms[f"model_{number}"] = Arm(
            f"model_{number}",
            pd.DataFrame(
                {
                    "question_id": [question.question_id for question in asked] * samples,
                    "sample": np.repeat(np.arange(samples), questions),
                    "correct": right.ravel(),
                    "answer": chosen * samples,
                    "shown": rng.integers(1, 9, samples * questions),
                }
            ),
            JUDGE,
        )
    hypotheses = [
        make_hypothesis(f"{number}_{against}", f"model_{number}", against)
        for number in range(1, models)
        for against in ("model_0", "majority_8")
    ]
    settings = make_settings(
        hypotheses=hypotheses,
        arms=list(arms),
        questions=questions,
        population_sha256=population_sha256(asked),
        samples={f"model_{number}": samples for number in range(models)},
        seeds={"tie_break": 1},
        judge_fingerprint=JUDGE,
        smallest_effect=0.02,
    )
    start = clock()
    untrained = arms["model_0"].rows
    plan = plan_effect(
        untrained, arms["majority_8"].rows, questions=questions, samples=samples, alpha=0.05, power=0.8, hypotheses=len(hypotheses)
    )  # fmt: skip
    seconds["planning one hypothesis"] = clock() - start
    registered = {**settings, "written": "now", "minimum_detectable": {entry["name"]: plan for entry in hypotheses}}
    start = clock()
    found = compare_arms(arms, asked, registered, settings)
    seconds[f"comparison ({len(hypotheses)} hypotheses, 9,999 resamples each)"] = clock() - start
    start = clock()
    comparison_text(found)
    seconds["text"] = clock() - start
    whole = sum(seconds.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return [
        "## Cost at full size",
        "",
        f"{questions:,} questions, {models} model arms of {samples} samples each and the 14 baselines.",
        "",
        "| part | seconds | CPU seconds |",
        "|---|---|---|",
        *(f"| {name} | {wall:.1f} | {cpu:.1f} |" for name, (wall, cpu) in seconds.items()),
        f"| **all** | **{whole[0]:.1f}** | **{whole[1]:.1f}** |",
        "",
        f"Peak memory of the process {peak / 1024:.0f} MB, of which {before / 1024:.0f} MB were in use before (libraries and questions).",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--parts", default="cost,coverage,power,seeds")
    parser.add_argument("--questions", type=int, default=7000)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    sections = {
        # First: peak memory is that of the whole process.
        "cost": lambda: cost(arguments.questions, 8, 12),
        "coverage": lambda: coverage(arguments.simulations),
        "power": lambda: power_table(arguments.simulations),
        "seeds": lambda: seeds_table(arguments.simulations),
    }
    pages, start = {}, time.perf_counter()
    for name in arguments.parts.split(","):
        began = time.perf_counter()
        pages[name] = sections[name]()
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    page = [
        "# The statistics: right, and at what cost",
        "",
        f"Made by `docs/benchmarks/paired_statistics.py` on {datetime.date.today()}: one process, {platform.machine()},",
        f"Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}, statsmodels {statsmodels.__version__}.",
        f"Other work ran on the same two cores (load average {os.getloadavg()[0]:.1f} at the end), so seconds are an upper bound;",
        f"CPU seconds are beside them. {time.perf_counter() - start:.0f} s in all. What the words mean: [evaluation.md](../evaluation.md).",
    ]
    for name in ("coverage", "power", "seeds", "cost"):
        page += ["", *pages[name]] if name in pages else []
    arguments.output.write_text("\n".join(page) + "\n")
    print(arguments.output.read_text())


if __name__ == "__main__":
    main()

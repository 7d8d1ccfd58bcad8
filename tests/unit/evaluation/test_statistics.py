"""Figures against independent sources: statsmodels, hand calculation, simulation with known truth."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

from genselect.evaluation import (
    combine_seeds,
    holm,
    mcnemar_exact,
    minimum_detectable_effect,
    paired_comparison,
    plan_effect,
    power_at,
)
from genselect.evaluation.power import own_discordance
from genselect.evaluation.statistics import question_differences, single_draw


def draws(
    questions: int, samples: int, lift: float = 0.0, seed: int = 0, spread: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Verdicts of two arms, shape (questions, samples); answers to one question are alike."""
    rng = np.random.default_rng(seed)
    chance = rng.beta(spread, spread, questions)[:, None]
    return (
        (rng.random((questions, samples)) < np.clip(chance + lift, 0, 1)).astype(float),
        (rng.random((questions, samples)) < chance).astype(float),
    )


def table(verdicts: np.ndarray, seed: int = 0) -> pd.DataFrame:
    questions, samples = verdicts.shape
    return pd.DataFrame(
        {
            "question_id": np.repeat([f"q{n:04d}" for n in range(questions)], samples),
            "seed": seed,
            "sample": np.tile(np.arange(samples), questions),
            "correct": verdicts.ravel(),
            "expected": verdicts.ravel(),
        }
    )


def test_clustered_error_is_that_of_statsmodels() -> None:
    arm, reference = draws(200, 4, 0.05)
    ours = paired_comparison((arm - reference).mean(axis=1), resamples=99)
    groups = np.repeat(np.arange(200), 4)
    # Differences of paired samples on a constant: the same small-sample factor, n / (n - 1).
    fit = sm.OLS((arm - reference).ravel(), np.ones(800)).fit(cov_type="cluster", cov_kwds={"groups": groups})
    assert ours.difference == pytest.approx(fit.params[0])
    assert ours.standard_error == pytest.approx(fit.bse[0])
    # All answers stacked, on an indicator of the arm: without a factor, then with ours.
    outcome = np.concatenate([arm.ravel(), reference.ravel()])
    design = sm.add_constant(np.repeat([1.0, 0.0], 800))
    stacked = sm.OLS(outcome, design).fit(
        cov_type="cluster", cov_kwds={"groups": np.concatenate([groups, groups]), "use_correction": False}
    )
    assert ours.difference == pytest.approx(stacked.params[1])
    assert ours.standard_error == pytest.approx(stacked.bse[1] * np.sqrt(200 / 199))


def test_samples_of_one_question_are_not_independent() -> None:
    """With answers that repeat eight times there is no more information than in one of them."""
    arm, reference = draws(150, 1, 0.05)
    once = paired_comparison((arm - reference)[:, 0], resamples=99)
    frames = [table(np.repeat(verdicts, 8, axis=1)) for verdicts in (arm, reference)]
    eight = paired_comparison(question_differences(*frames)[0].to_numpy(), resamples=99)
    assert eight.standard_error == once.standard_error


def test_the_paired_t_test_is_that_of_scipy() -> None:
    arm, reference = draws(300, 2, 0.04)
    ours = paired_comparison((arm - reference).mean(axis=1), resamples=99)
    assert ours.test == "paired_t"
    assert ours.p_value == pytest.approx(stats.ttest_rel(arm.mean(axis=1), reference.mean(axis=1)).pvalue)


def test_differences_are_by_question_whatever_the_order_of_rows() -> None:
    arm, reference = (table(verdicts) for verdicts in draws(50, 3, 0.1))
    expected = question_differences(arm, reference)
    shuffled = question_differences(arm.sample(frac=1, random_state=1), reference.sample(frac=1, random_state=2))
    pd.testing.assert_frame_equal(shuffled, expected)
    with pytest.raises(ValueError, match="same questions"):
        question_differences(arm[arm.question_id != "q0003"], reference)


@pytest.mark.parametrize("seed", range(5))
def test_mcnemar_is_that_of_statsmodels(seed: int) -> None:
    arm, reference = (verdicts[:, 0] for verdicts in draws(80, 1, 0.1, seed))
    ours = mcnemar_exact(arm, reference)
    cells = [[int(((arm == i) & (reference == j)).sum()) for j in (1, 0)] for i in (1, 0)]
    assert ours.p_value == pytest.approx(mcnemar(cells, exact=True).pvalue)
    assert (ours.gained, ours.lost) == (cells[0][1], cells[1][0])


def test_mcnemar_takes_verdicts_only() -> None:
    assert mcnemar_exact([1, 0], [1, 0]).p_value == 1
    with pytest.raises(ValueError, match="0 or 1"):
        mcnemar_exact([0.5, 0], [1, 0])


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1 is 0.04, 0.06, 0.06, 0.04; never falling: 0.04, 0.06, 0.06, 0.06.
    assert holm({"c": 0.03, "a": 0.01, "d": 0.04, "b": 0.02}) == pytest.approx(
        {"c": 0.06, "a": 0.04, "d": 0.06, "b": 0.06}
    )
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_bootstrap_intervals_are_near_the_normal_one_where_that_is_right() -> None:
    arm, reference = draws(800, 4, 0.05)
    found = paired_comparison((arm - reference).mean(axis=1), resamples=4999)
    for interval in (found.interval_bca, found.interval_percentile):
        assert interval == pytest.approx(found.interval_normal, abs=0.15 * found.standard_error)
    assert found.interval == found.interval_bca
    assert found.interval_kind == "bca"


def test_bca_leans_with_the_skew() -> None:
    rare = np.zeros(400)
    rare[:14] = 1.0
    found = paired_comparison(rare, resamples=4999)
    low, high = found.interval_bca
    assert high - found.difference > found.difference - low
    assert sum(found.interval_bca) > sum(found.interval_percentile)


def test_the_bootstrap_is_seeded() -> None:
    arm, reference = draws(100, 1, 0.05)
    first, again, other = (paired_comparison((arm - reference)[:, 0], resamples=499, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.interval_percentile != other.interval_percentile


def test_where_hardly_a_question_differs_tests_and_intervals_are_exact() -> None:
    # Five of five gained: a t test would give p = 0.025 at n = 500; that many coins fall alike once in 16 times.
    few = np.zeros(500)
    few[:5] = 1
    found = paired_comparison(few)
    assert (found.test, found.interval_kind) == ("sign_exact", "exact")
    assert found.p_value == pytest.approx(2 / 2**5)
    low, high = found.interval
    assert (low, high) == pytest.approx((-0.00735, stats.binomtest(5, 500).proportion_ci(0.95, "exact").high), abs=1e-5)


def test_no_difference_at_all_on_few_questions_leaves_much_open() -> None:
    assert paired_comparison(np.zeros(3)).interval == pytest.approx((-0.7076, 0.7076), abs=1e-4)
    assert paired_comparison(np.zeros(3)).p_value == 1
    assert paired_comparison(np.ones(4)).p_value == pytest.approx(0.125)
    with pytest.raises(ValueError, match="two questions"):
        paired_comparison([0.5])


def test_one_draw_of_several_samples_is_one_of_them_and_seeded() -> None:
    arm, _ = draws(200, 6)
    rows = table(arm)
    drawn = single_draw(rows, 4)
    assert len(drawn) == 200
    assert set(drawn[arm.all(axis=1)]) == {1.0}
    assert set(drawn[~arm.any(axis=1)]) == {0.0}
    pd.testing.assert_series_equal(drawn, single_draw(rows.sample(frac=1, random_state=3), 4))
    assert (drawn != single_draw(rows, 5)).any()
    assert drawn.mean() == pytest.approx(arm.mean(), abs=0.08)


# --- power ---------------------------------------------------------------------------------------------------------------


def test_effect_and_power_are_inverse() -> None:
    for given in ({"discordance": 0.3}, {"variance": 0.12}):
        effect = minimum_detectable_effect(1000, alpha=0.025, power=0.9, **given)
        assert power_at(effect, 1000, alpha=0.025, **given) == pytest.approx(0.9)
    # Connor's sample size for this effect, solved by hand: (1.96 + 0.8416)^2 (0.3 - d^2) / d^2 = 500.
    effect = minimum_detectable_effect(500, discordance=0.3)
    assert 7.8489 * (0.3 - effect**2) / effect**2 == pytest.approx(500, rel=1e-3)


@pytest.mark.parametrize(("questions", "discordance"), [(300, 0.3), (800, 0.2)])
def test_the_minimum_detectable_effect_is_found_as_often_as_promised(questions: int, discordance: float) -> None:
    effect = minimum_detectable_effect(questions, discordance=discordance)
    rng = np.random.default_rng(7)
    up, down = (discordance + effect) / 2, (discordance - effect) / 2
    differences = rng.choice([1.0, 0.0, -1.0], p=[up, 1 - up - down, down], size=(600, questions))
    found = np.mean([stats.ttest_1samp(row, 0).pvalue < 0.05 and row.mean() > 0 for row in differences])
    assert found == pytest.approx(0.8, abs=0.05)  # three standard errors of 600 simulations


def test_own_discordance_is_unbiased_by_the_number_of_samples() -> None:
    rng = np.random.default_rng(1)
    chance = rng.beta(1, 1, 4000)[:, None]
    truth = float((2 * chance * (1 - chance)).mean())
    for samples in (2, 8):
        rows = table((rng.random((4000, samples)) < chance).astype(float))
        assert own_discordance(rows)[0] == pytest.approx(truth, abs=0.02)
    one, source = own_discordance(table((rng.random((4000, 1)) < chance).astype(float)))
    assert one > truth
    assert "upper bound" in source


def test_a_planned_effect_against_oneself_is_found_as_often_as_promised() -> None:
    """A trained policy that is right a little more often everywhere, and whose answers vary as the untrained ones do."""
    rng = np.random.default_rng(3)
    chance = rng.beta(2, 2, 600)[:, None] * 0.8
    untrained = table((rng.random((600, 4)) < chance).astype(float))
    plan = plan_effect(untrained, None, questions=600, samples=4, alpha=0.05, power=0.8)
    found = 0
    for _ in range(300):
        ours, theirs = rng.random((600, 4)) < chance + plan["difference"], rng.random((600, 4)) < chance
        found += stats.ttest_rel(ours.mean(axis=1), theirs.mean(axis=1)).pvalue < 0.05
    assert found / 300 == pytest.approx(0.8, abs=0.08)


def test_a_plan_pays_for_more_hypotheses_and_fewer_samples() -> None:
    arm, reference = (table(verdicts) for verdicts in draws(500, 4))
    common = {"questions": 500, "alpha": 0.05, "power": 0.8}
    one = plan_effect(arm, None, samples=4, **common)
    assert plan_effect(arm, None, samples=4, hypotheses=2, **common)["difference"] > one["difference"]
    assert plan_effect(arm, None, samples=1, **common)["variance"] == pytest.approx(4 * one["variance"])
    assert one["at_double_variance"] == pytest.approx(2**0.5 * one["difference"])
    against = plan_effect(arm, reference, samples=4, **common)
    fewer = plan_effect(arm, reference, samples=1, **common)
    assert against["variance"] == pytest.approx(
        (arm.groupby("question_id").correct.mean() - reference.groupby("question_id").correct.mean()).var()
    )
    assert fewer["variance"] == pytest.approx(against["variance"] + one["discordance"] / 2 * 0.75)


# --- seeds ---------------------------------------------------------------------------------------------------------------


def seeded(questions: int, seeds: int, spread: float, rng: np.random.Generator) -> np.ndarray:
    """Differences with true mean 0: question effects shared by the seeds, seed effects, and the rest."""
    return (
        rng.normal(0, 0.3, (questions, 1)) + rng.normal(0, spread, (1, seeds)) + rng.normal(0, 0.4, (questions, seeds))
    )


def test_one_seed_is_the_clustered_error_and_says_what_it_cannot() -> None:
    d = seeded(200, 1, 0.1, np.random.default_rng(0))
    ours = combine_seeds(d)
    assert ours.standard_error == pytest.approx(d.std(ddof=1) / np.sqrt(200))
    assert ours.seed_error is None
    assert "One training seed" in ours.note


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_combined_seeds_rarely_cry_wolf_and_single_ones_often_do(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    alarms, covered = [], []
    for _ in range(400):
        d = seeded(400, seeds, 0.05, rng)
        combined = combine_seeds(d)
        covered.append(combined.interval[0] <= 0 <= combined.interval[1])
        alarms.append(combine_seeds(d[:, :1]).p_value < 0.05)
    assert np.mean(covered) > 0.94
    assert np.mean(alarms) > 0.2  # a seed's own luck looks like a difference to whoever sees one seed


def test_two_seeds_that_disagree_give_a_wide_interval() -> None:
    d = np.random.default_rng(0).normal(0, 0.1, (500, 2)) + np.array([0.1, 0.0])
    combined = combine_seeds(d)
    # By hand: half the difference of two seeds is their standard error, times the t quantile of one degree of freedom.
    by_hand = 12.706 * abs(combined.by_seed[0] - combined.by_seed[1]) / 2
    assert combined.interval[1] - combined.difference == pytest.approx(by_hand, rel=0.01)
    assert combined.p_value > 0.3


def test_p_value_and_interval_of_seeds_agree() -> None:
    for seeds in (1, 2, 3):
        d = seeded(300, seeds, 0.02, np.random.default_rng(seeds)) + 0.05
        combined = combine_seeds(d)
        low, high = combine_seeds(d, level=1 - combined.p_value).interval
        assert min(abs(low), abs(high)) == pytest.approx(0, abs=1e-6)
    alone = combine_seeds(d[:, :1])
    assert alone.p_value == pytest.approx(stats.ttest_1samp(d[:, 0], 0).pvalue)

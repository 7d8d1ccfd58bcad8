"""Calibration figures against hand counts, brute force and what their names promise."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genselect.formats import read_json
from genselect.training.calibration import (
    auc,
    brier_score,
    brier_skill,
    critic_report,
    explained_variance,
    monte_carlo_returns,
    predictor_report,
    reliability_bins,
    report_metrics,
    write_report,
)


def test_brier_and_its_skill() -> None:
    assert brier_score([0.2, 0.9], [0, 1]) == pytest.approx((0.04 + 0.01) / 2)
    assert brier_skill([1.0, 0.0], [1, 0]) == 1
    assert brier_skill([0.75] * 4, [1, 1, 1, 0]) == pytest.approx(0)
    assert brier_skill([0.5] * 4, [1, 1, 1, 0]) == pytest.approx(1 - 0.25 / 0.1875)
    assert math.isnan(brier_skill([0.5, 0.6], [1, 1]))
    assert math.isnan(brier_skill([0.5, 0.6], [0, 0]))
    assert math.isnan(brier_score([], []))


@given(st.floats(0, 1), st.lists(st.sampled_from([0, 1]), min_size=2, max_size=30).filter(lambda y: len(set(y)) == 2))
@settings(max_examples=50, deadline=None)
def test_no_constant_predictor_has_skill(constant: float, outcomes: list[int]) -> None:
    assert brier_skill([constant] * len(outcomes), outcomes) <= 1e-9
    assert auc([constant] * len(outcomes), outcomes) == 0.5


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 1])), min_size=2, max_size=25))
@settings(max_examples=100, deadline=None)
def test_auc_is_the_share_of_pairs_in_order(points: list[tuple[int, int]]) -> None:
    ones = [score for score, outcome in points if outcome]
    zeros = [score for score, outcome in points if not outcome]
    found = auc(*zip(*points, strict=True))
    if not ones or not zeros:
        assert math.isnan(found)
    else:
        pairs = [(one > zero) + (one == zero) / 2 for one in ones for zero in zeros]
        assert found == pytest.approx(sum(pairs) / len(pairs))


def test_reliability_bins_hold_every_prediction_once() -> None:
    bins = reliability_bins([0.0, 0.05, 0.1, 0.95, 1.0], [0, 1, 1, 1, 1])
    assert [entry["count"] for entry in bins] == [2, 1, 0, 0, 0, 0, 0, 0, 0, 2]
    assert (bins[0]["mean_prediction"], bins[0]["rate"]) == (pytest.approx(0.025), 0.5)
    assert (bins[9]["lower"], bins[9]["upper"], bins[9]["rate"]) == (0.9, 1.0, 1)
    assert math.isnan(bins[4]["rate"])


def test_explained_variance() -> None:
    returns = np.array([0.0, 1.0, 1.0, 0.0])
    assert explained_variance(returns, returns + 5) == 1
    assert explained_variance(returns, np.full(4, 0.3)) == pytest.approx(0)
    assert explained_variance(returns, -returns) == pytest.approx(-3)
    for equal in ([0.1] * 3, [], [0.5]):
        assert math.isnan(explained_variance(equal, np.zeros(len(equal))))


def test_bootstrapped_returns_flatter_and_monte_carlo_returns_do_not() -> None:
    # verl's returns are advantages + values; with λ = 0 and wild values they explain themselves.
    generator = np.random.default_rng(0)
    values = generator.normal(size=(200, 6))
    rewards = np.zeros((200, 6))
    rewards[:, -1] = generator.integers(0, 2, 200)
    bootstrapped = rewards + np.append(values[:, 1:], np.zeros((200, 1)), axis=1)
    values[:, :-1] = bootstrapped[:, :-1]
    honest = np.stack([monte_carlo_returns(row, np.ones(6), 1.0) for row in rewards])
    assert explained_variance(bootstrapped.ravel(), values.ravel()) > 0.3
    assert explained_variance(honest.ravel(), values.ravel()) < -1


def test_monte_carlo_returns_discount_the_policys_tokens_only() -> None:
    returns = monte_carlo_returns([0, -0.1, 0, 0, 1.0], [1, 1, 0, 0, 1], 0.5)
    assert returns[[0, 1, 4]] == pytest.approx([0.5 * (-0.1 + 0.5), -0.1 + 0.5, 1])
    assert np.isnan(returns[[2, 3]]).all()


def test_reports_tell_the_states_apart(tmp_path: Path) -> None:
    # Knows nothing at k = 0, everything at k = 1, and k = 2 has one class.
    logits = [0.0, 0.0, 8.0, -8.0, 1.0, 2.0]
    outcomes, k = [1, 0, 1, 0, 1, 1], [0, 0, 1, 1, 2, 2]
    predictor = predictor_report(logits, outcomes, k)
    assert predictor["by_k"]["0"]["brier_skill"] == pytest.approx(0)
    assert predictor["by_k"]["1"]["brier_skill"] > 0.99
    assert predictor["by_k"]["1"]["auc"] == 1
    assert predictor["overall"]["count"] == 6
    critic = critic_report([1, 0, 1, 0, 1, 1], [0.5, 0.5, 0.9, 0.1, 0.5, 0.5], k)
    assert critic["by_k"]["0"]["explained_variance"] == pytest.approx(0)
    assert critic["by_k"]["1"]["explained_variance"] == pytest.approx(0.96)

    metrics = report_metrics(predictor, critic)
    assert metrics["predictor/brier_skill/k1"] > 0.99
    assert metrics["critic/mc_explained_variance/k1"] == pytest.approx(0.96)
    # Undefined is absent, so that a nan among the metrics always means a fault.
    assert {"predictor/brier_skill/k2", "predictor/auc/k2", "critic/mc_explained_variance/k2"}.isdisjoint(metrics)
    assert all(map(math.isfinite, metrics.values()))
    assert report_metrics(None, None) == {}

    write_report(tmp_path / "step_7.json", 7, {"predictor": predictor, "critic": critic})
    written = read_json(tmp_path / "step_7.json")
    assert written["step"] == 7
    assert written["predictor"]["by_k"]["2"]["brier_skill"] is None
    assert written["predictor"]["overall"]["reliability"][0]["count"] == 1
    assert "NaN" not in (tmp_path / "step_7.json").read_text()


def test_a_broken_model_shows_as_nan_and_not_as_undefined() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics = report_metrics(
            predictor_report([math.nan, 1.0], [0, 1], [0, 0]), critic_report([0, 1], [math.nan, 0.5], [0, 0])
        )
    assert math.isnan(metrics["predictor/brier"])
    assert math.isnan(metrics["critic/mc_explained_variance"])


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        brier_score([0.1, 0.2], [1])
    with pytest.raises(ValueError, match="k has shape"):
        critic_report([0, 1], [0, 1], [0])


def test_a_predictor_is_constant_only_if_it_says_the_same_in_every_state() -> None:
    # A policy that submits only after a passing check makes the states that submissions leave from look alike.
    same = [3.0, 3.0, 3.0]
    metrics = report_metrics(predictor_report(same, [1, 1, 0], [1, 1, 2], all_logits=[-3.0, *same]), None)
    assert metrics["predictor/std"] > 0.3
    assert (
        report_metrics(predictor_report(same, [1, 1, 0], [1, 1, 2], all_logits=[3.0, *same]), None)["predictor/std"]
        == 0
    )

"""Metric assertions: what they say, what they refuse, and that they run no code."""

from __future__ import annotations

import math

import numpy as np
import pytest

from genselect.errors import GenselectError
from genselect.training.assertions import check_syntax, evaluate_assertion, evaluate_assertions

METRICS = {
    "proof/critic_k0_std": 2e-6,
    "actor/grad_norm": np.float32(0.75),
    "actor/ppo_kl": [-0.02, 0.05, -0.08],
    "actor/entropy": 0.4,
    "score": -0.5,
    "val-core/omr/acc/mean@1": 0.64,
    "val": 1.0,
    "timing_s/gen": 4,
    "timing_s/step": 8,
    "critic/mc_explained_variance/k0": math.nan,
    "critic/undefined": None,
    "passed": True,
    "empty": [],
}


@pytest.mark.parametrize(
    ("expression", "passed"),
    [
        ("proof/critic_k0_std < 1e-3", True),
        ("proof/critic_k0_std<1e-6", False),
        ("actor/grad_norm > 0 and actor/grad_norm < 100", True),
        ("actor/grad_norm > 1 or not score > 0", True),
        ("0 < actor/grad_norm < .8", True),
        ("0 < actor/grad_norm < 0.7", False),
        ("max(abs(actor/ppo_kl)) < 0.1", True),
        ("max(abs(actor/ppo_kl)) < 0.08", False),
        ("min(actor/ppo_kl) == -0.08", True),
        ("timing_s/gen / timing_s/step <= 0.5", True),
        ("-(score + 1) * 2 - 1 == -2", True),
        ("val-core/omr/acc/mean@1 >= 0.64", True),
        ("val - score == 1.5", True),
        ("val-score == 1.5", True),
        ("min(val, score, 3) == score", True),
        ("isfinite(actor/entropy)", True),
        ("isfinite(critic/mc_explained_variance/k0)", False),
        ("isfinite(critic/undefined) or val == 1", True),
        ("passed == 1", True),
        ("+score != 0", True),
        # A nan fails whatever is said of it, and so does what cannot be computed.
        ("critic/mc_explained_variance/k0 < 1", False),
        ("not critic/mc_explained_variance/k0 > 1", False),
        ("critic/mc_explained_variance/k0 != 0", False),
        ("critic/undefined < 1", False),
        ("isfinite(val) and critic/undefined < 1", False),
        ("val / (score - score) > 0", False),
        ("max(empty) < 1", False),
        ("val * 1" + "0" * 400 + " > 0", False),
    ],
)
def test_what_an_expression_says(expression: str, passed: bool) -> None:
    check_syntax(expression)
    result = evaluate_assertion(expression, METRICS)
    assert result.passed is passed
    assert (result.message == "holds") is passed


def test_a_result_carries_the_values() -> None:
    first, second = evaluate_assertions(["actor/grad_norm > 1 and val > 0", "score < 0"], METRICS)
    assert first.values == {"actor/grad_norm": 0.75, "val": 1.0}
    assert first.message == "fails with actor/grad_norm = 0.75, val = 1"
    assert (second.expression, second.passed, second.values) == ("score < 0", True, {"score": -0.5})
    assert evaluate_assertion("not isfinite(val)", METRICS).message == "fails with val = 1"
    assert evaluate_assertion("isfinite(critic/undefined)", METRICS).message == "fails with critic/undefined = null"
    assert "[-0.02, 0.05, -0.08]" in evaluate_assertion("max(actor/ppo_kl) > 1", METRICS).message


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("actor/grad_nrm < 1", "Did you mean actor/grad_norm"),
        ("critic/grad_norm < 1", "Did you mean actor/grad_norm"),
        ("val_core/omr/acc/mean@1 > 0", "Did you mean val-core/omr/acc/mean@1"),
        ("score/2 < 1", "score"),
        ("True == 1", "metrics.jsonl"),
        ("score.__class__ == 1", "metrics.jsonl"),
        ("score < zzz", "metrics.jsonl"),
    ],
)
def test_an_unknown_metric_is_an_error_with_a_suggestion(expression: str, hint: str) -> None:
    with pytest.raises(GenselectError, match="there is no metric") as caught:
        evaluate_assertion(expression, METRICS)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('touch planted')",
        "(lambda: 1)() < 2",
        "(score).real < 1",
        "[score for score in (1, 2)] == 1",
        "'a' < 'b'",
        "score ** 2 < 1",
        "score % 2 < 1",
        "score if val else val < 1",
        "(walrus := 3) < 4",
        "open(val) < 1",
        "exec < 1 < eval(1)",
        "abs(val, key=score) < 1",
        "abs(val, score) < 1",
        "max() < 1",
        "max(*val) < 1",
        "abs < 1",
        "1 is 1",
        "val in (1, 2)",
        "1j < 2",
        "score <",
        "",
        "score < 1; val < 1",
        "score < 1 # and val < 0",
        "(" * 300 + "1" + ")" * 300,
        "1 < 2" + " < 2" * 200,
        "actor/ppo_kl < 0.1",
        "actor/ppo_kl + 1 < 0.1",
        # No yes or no.
        "score",
        "score + 1",
        "score and val",
        "max(score > 0, val)",
    ],
)
def test_anything_else_is_refused(expression: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.chdir(str(tmp_path))
    with pytest.raises(GenselectError, match=r"^assertion ") as caught:
        evaluate_assertion(expression, {**METRICS, "open": 1, "exec": 1, "eval": 1, "real": 1})
    assert "Write a comparison" in caught.value.hint


def test_the_configuration_is_checked_without_metrics() -> None:
    check_syntax("any/thing@1 < 1 and val-core/x/mean@8 > 0")
    with pytest.raises(GenselectError, match="yes or no"):
        check_syntax("any/thing")

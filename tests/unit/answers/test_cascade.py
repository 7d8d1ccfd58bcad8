"""The cascade's record: which stage decided, what it said, and what is left to the judge."""

from __future__ import annotations

import pytest

from genselect.answers import CASCADE_VERSION, Cascade, cascade_fingerprint_fields


@pytest.fixture(scope="module")
def with_rule():
    with Cascade(rule=True, workers=1) as running:
        yield running


@pytest.fixture(scope="module")
def before_judge():
    with Cascade(workers=1) as running:
        yield running


def test_each_stage_leaves_its_name(with_rule):
    pairs = [("5", "$5$"), ("1/2", "0.5"), ("1/2", "1/3"), ("20", "20%"), ("5", None), ("5", " ")]
    found = with_rule.decide_many([*pairs, *pairs])
    assert list(found) == pairs  # each distinct pair once
    summary = [(v.correct, v.judged, v.source) for v in found.values()]
    assert summary == [
        (True, True, "identical"),
        (True, True, "symbolic"),
        (False, True, "rule"),
        (False, False, "none"),
        (False, False, "none"),
        (False, False, "none"),
    ]
    assert found["5", None].reasoning == "no boxed answer"
    assert all(verdict.reasoning for verdict in found.values())


def test_without_the_rule_a_symbolic_no_proves_nothing(before_judge):
    assert before_judge.decide("1/2", "1/3") is None
    assert before_judge.decide("20", "20%") is None
    assert before_judge.decide("1/2", "0.5").source == "symbolic"
    assert before_judge.decide("5", "").source == "none"


def test_stages_can_be_switched_off():
    with Cascade(symbolic=False) as cascade:
        assert cascade.decide("5", "5").source == "identical"
        assert cascade.decide("1/2", "0.5") is None
    with Cascade(identical=False, symbolic=False, rule=True, workers=1) as cascade:
        verdict = cascade.decide("5", "5")
        assert (verdict.correct, verdict.source) == (True, "rule")


def test_the_fingerprint_names_the_versions_a_verdict_depends_on():
    fields = cascade_fingerprint_fields()
    assert fields["cascade"] == CASCADE_VERSION
    assert {"math-verify", "sympy", "latex2sympy2_extended"} <= set(fields)
    assert all(fields.values())

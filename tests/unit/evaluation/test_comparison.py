"""Planted cases end in the right words; what must not be compared is refused."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import planted
import pytest

from genselect.errors import GenselectError
from genselect.evaluation import Arm, CandidateView, Question, compare_arms, comparison_text, make_hypothesis, verdict
from genselect.evaluation.behaviour import Votes


def registered(settings: Mapping[str, Any]) -> dict[str, Any]:
    empty = {"arms": [], "hypotheses": []}
    names = [entry["name"] for entry in settings["hypotheses"]]
    minimum = dict.fromkeys(names, planted.MINIMUM)
    return {
        **settings,
        "exploratory": empty,
        "schema_version": 1,
        "written": "2026-01-01",
        "minimum_detectable": minimum,
    }


def compare(
    arms: Mapping[str, Arm], questions: list[Question], settings: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    return compare_arms(arms, questions, registered(settings), settings, resamples=499, **more)


def outcome(*planted_study: Any, name: str = "above_untrained") -> dict[str, Any]:
    found = compare(*planted_study)
    return next(entry for entry in found["hypotheses"] if entry["name"] == name)


def test_a_real_rise_is_a_yes() -> None:
    entry = outcome(*planted.study(1200, 0.15))
    assert entry["verdict"]["word"] == "yes"
    assert entry["interval"][0] < 0.13 < entry["interval"][1]
    assert entry["verdict"]["sentence"].startswith("Yes, it rose above: +1")


def test_no_difference_on_enough_questions_is_a_no() -> None:
    study = planted.study(6000, 0.0, samples=8)
    entry = outcome(*study)
    assert entry["verdict"]["word"] == "no"
    assert entry["verdict"]["why"] == "too small to matter"
    assert (
        "a rise of 2.0 points, the smallest named as mattering, lies outside the interval"
        in entry["verdict"]["sentence"]
    )


def test_a_drop_is_a_no_that_says_so() -> None:
    entry = outcome(*planted.study(1200, -0.15))
    assert entry["verdict"]["word"] == "no"
    assert entry["verdict"]["sentence"].startswith("No, it fell below: -1")


def test_too_little_data_cannot_tell_and_names_what_it_could_have_seen() -> None:
    entry = outcome(*planted.study(60, 0.03, samples=1))
    assert entry["verdict"]["word"] == "cannot tell"
    seen = re.search(
        r"A true rise of (\d+\.\d) points would have been found with chance 80%", entry["verdict"]["sentence"]
    )
    assert seen is not None
    # 60 questions that differ on about every third: formula by hand, Holm's two hypotheses in alpha.
    by_hand = (2.2414 + 0.8416) * entry["paired"]["sd"] / 60**0.5
    assert float(seen.group(1)) == pytest.approx(100 * by_hand, abs=0.1)


def test_arms_that_answer_alike_on_four_questions_are_no_proof_of_anything() -> None:
    arms, questions, _ = planted.study(4, 0.0)
    arms["trained"] = dataclasses.replace(arms["untrained"], name="trained")
    entry = outcome(arms, questions, planted.settings_of(arms, questions))
    assert entry["verdict"]["word"] == "cannot tell"
    assert entry["detectable"] > 0.3


@pytest.mark.parametrize(
    ("difference", "interval", "p", "word", "why"),
    [
        (0.05, (0.02, 0.08), 0.01, "yes", "rose"),
        (0.01, (0.002, 0.018), 0.01, "yes", "rose"),
        (-0.05, (-0.08, -0.02), 0.01, "no", "fell"),
        (0.0, (-0.01, 0.019), 0.9, "no", "too small to matter"),
        (0.0, (-0.03, 0.021), 0.9, "cannot tell", "too little data"),
        (0.05, (0.001, 0.1), 0.051, "cannot tell", "too little data"),  # Holm took it away
    ],
)
def test_the_words(difference: float, interval: tuple[float, float], p: float, word: str, why: str) -> None:
    found = verdict(difference, interval, p_adjusted=p, alpha=0.05, smallest_effect=0.02, detectable=0.04)
    assert (found.word, found.why) == (word, why)
    assert ("less than the 2.0 points" in found.sentence) == (difference == 0.01)


def test_no_difference_seldom_becomes_a_yes() -> None:
    words = [outcome(*planted.study(150, 0.0, samples=1)) for _ in range(1)]
    rng = np.random.default_rng(0)
    arms, questions, settings = planted.study(150, 0.0, samples=1)
    for stream in rng.integers(1000, 10**6, 40):
        arms["trained"] = Arm("trained", planted.model_rows(questions, 0.0, stream=int(stream)), planted.JUDGE)
        words.append(outcome(arms, questions, settings))
    assert sum(entry["verdict"]["word"] == "yes" for entry in words) <= 4


# --- refusals ------------------------------------------------------------------------------------------------------------


def test_another_judge_is_refused_by_name() -> None:
    with pytest.raises(
        GenselectError, match=r"1 arm\(s\) were not judged by the preregistered judge \(a{12}\): trained b{12}"
    ):
        compare(*planted.study(30, judge="b" * 64))


def test_a_missing_arm_is_refused_by_name() -> None:
    arms, questions, settings = planted.study(30)
    del arms["majority_8"]
    with pytest.raises(GenselectError, match=r"1 arm\(s\) are missing: majority_8"):
        compare(arms, questions, settings)


def test_an_unlisted_arm_is_refused() -> None:
    arms, questions, settings = planted.study(30)
    arms["late"] = arms["trained"]
    with pytest.raises(GenselectError, match=r"were not preregistered: late"):
        compare(arms, questions, settings)


def test_other_questions_are_refused_with_an_example() -> None:
    arms, questions, settings = planted.study(30)
    rows = arms["trained"].rows
    arms["trained"] = dataclasses.replace(arms["trained"], rows=rows[~rows.question_id.isin(["q00007", "q00003"])])
    with pytest.raises(GenselectError, match=r"arm trained: 2 question\(s\) are missing, such as q00003"):
        compare(arms, questions, settings)
    arms["trained"] = dataclasses.replace(arms["trained"], rows=rows.replace({"question_id": {"q00007": "other"}}))
    with pytest.raises(GenselectError, match=r"such as q00007; 1 do not belong to the population, such as other"):
        compare(arms, questions, settings)


def test_another_number_of_samples_is_refused() -> None:
    arms, questions, settings = planted.study(30)
    rows = arms["trained"].rows
    arms["trained"] = dataclasses.replace(arms["trained"], rows=rows.drop(index=3))
    with pytest.raises(
        GenselectError, match=r"1 question\(s\) do not have the 2 sample\(s\) preregistered; q00003 has 1"
    ):
        compare(arms, questions, settings)


def test_another_population_is_refused() -> None:
    arms, questions, settings = planted.study(30)
    questions[0] = dataclasses.replace(questions[0], candidates=questions[0].candidates[::-1])
    with pytest.raises(GenselectError, match="not the 30 preregistered ones"):
        compare(arms, questions, settings)


def test_settings_that_differ_from_the_preregistered_ones_are_refused() -> None:
    arms, questions, settings = planted.study(30)
    with pytest.raises(GenselectError, match=r"smallest_effect: 0\.02 -> 0\.001"):
        compare_arms(arms, questions, registered(settings), {**settings, "smallest_effect": 0.001})


@pytest.mark.parametrize("value", [2.0, float("nan")])
def test_values_that_are_no_verdicts_are_refused(value: float) -> None:
    arms, questions, settings = planted.study(30)
    rows = arms["trained"].rows.copy()
    rows.loc[5, "correct"] = value
    arms["trained"] = dataclasses.replace(arms["trained"], rows=rows)
    with pytest.raises(GenselectError, match="correct holds values that are not between 0 and 1"):
        compare(arms, questions, settings)


# --- the rest of the comparison --------------------------------------------------------------------------------------------


def test_holm_is_over_the_family() -> None:
    found = compare(*planted.study(300, 0.03))
    p = {entry["name"]: entry["p_value"] for entry in found["hypotheses"]}
    adjusted = {entry["name"]: entry["p_adjusted"] for entry in found["hypotheses"]}
    smaller = min(p, key=lambda name: p[name])
    assert adjusted[smaller] == pytest.approx(2 * p[smaller])


def test_a_second_hypothesis_can_cost_the_yes() -> None:
    arms, questions, _ = planted.study(400, samples=1)
    rows = arms["untrained"].rows.assign(correct=[1.0] * 24 + [0.0] * 376)
    arms["untrained"] = Arm("untrained", rows, planted.JUDGE)
    # 40 gained, 24 lost: t = 2.01 on 400 questions, p = 0.045.
    arms["trained"] = Arm("trained", rows.assign(correct=[0.0] * 24 + [1.0] * 40 + [0.0] * 336), planted.JUDGE)
    arms["twin"] = arms["trained"]
    alone = [make_hypothesis("above_untrained", "trained", "untrained")]
    both = [*alone, make_hypothesis("above_twin", "trained", "twin")]
    single = outcome(arms, questions, planted.settings_of(arms, questions, samples=1, hypotheses=alone))
    assert (single["verdict"]["word"], round(single["p_value"], 3)) == ("yes", 0.045)
    family = outcome(arms, questions, planted.settings_of(arms, questions, samples=1, hypotheses=both))
    assert (family["verdict"]["word"], round(family["p_adjusted"], 2)) == ("cannot tell", 0.09)


def test_nothing_can_be_recovered_where_no_candidate_is_right() -> None:
    right, wrong = CandidateView("7", True), CandidateView("1", False)
    asked = [
        Question("none", "7", (wrong,) * 3),
        Question("one", "7", (wrong, wrong, right)),
        Question("two", "7", (right, right, wrong)),
    ]
    assert Votes.of(asked, tie_seed=0).recoverable == {"one"}


def test_votes_enter_by_their_mean_over_ties_and_mcnemar_by_their_draw() -> None:
    arms, questions, settings = planted.study(400)
    entry = outcome(arms, questions, settings, name="above_majority")
    votes, policy = arms["majority_8"].rows, arms["trained"].rows
    assert (votes.expected != votes.correct).any()
    assert entry["difference"] == pytest.approx(policy.correct.mean() - votes.expected.mean())
    assert entry["against_accuracy"] == pytest.approx(votes.expected.mean())
    assert entry["mcnemar"]["of"] == "one verdict a question, drawn by seed"


def test_strata_add_up_to_the_whole() -> None:
    entry = outcome(*planted.study(400, 0.1))
    assert [level["correct"] for level in entry["strata"]] == list(range(1, 8))
    assert sum(level["questions"] for level in entry["strata"]) == 400
    total = sum(level["questions"] * level["difference"] for level in entry["strata"]) / 400
    assert total == pytest.approx(entry["difference"])


def test_policies_that_follow_or_oppose_the_vote_are_told_apart() -> None:
    arms, questions, settings = planted.study(300, samples=1)
    votes = arms["majority_8"].rows
    wins = votes.correct.to_numpy() == 1
    follower = votes.assign(answer=np.where(wins, "$7$", "1"), shown=8)
    # A majority of wrong answers is not always 1: let the follower submit what leads.
    leads = []
    for question in questions:
        answers = [view.answer for view in question.candidates]
        leads.append(max(dict.fromkeys(answers), key=answers.count))
    follower["answer"] = leads
    genius = follower.assign(answer="7", correct=1.0, expected=1.0)
    arms["untrained"] = Arm("untrained", follower, planted.JUDGE)
    arms["trained"] = Arm("trained", genius, planted.JUDGE)
    found = {arm["name"]: arm for arm in compare(arms, questions, settings)["arms"]}
    assert found["untrained"]["follow_majority"] == 1
    assert found["untrained"]["minority_recovery"] == 0
    assert found["untrained"]["majority_kept"] == 1
    assert found["trained"]["minority_recovery"] == 1
    assert 0.3 < found["trained"]["follow_majority"] < 1
    assert found["trained"]["recoverable_questions"] == int((~wins).sum())
    assert found["first"]["follow_majority"] is None


def test_an_episode_without_a_submission_follows_nobody() -> None:
    arms, questions, settings = planted.study(50, samples=1)
    rows = arms["trained"].rows.assign(answer=None, correct=0.0)
    arms["trained"] = Arm("trained", rows, planted.JUDGE)
    found = {arm["name"]: arm for arm in compare(arms, questions, settings)["arms"]}
    assert found["trained"]["submitted"] == 0
    assert found["trained"]["follow_majority"] is None


def test_cost_reads_the_majority_of_as_many_candidates() -> None:
    arms, questions, settings = planted.study(300, samples=1)
    arms["trained"] = Arm("trained", arms["trained"].rows.assign(shown=[2, 3] * 150), planted.JUDGE)
    points = {point["arm"]: point for point in compare(arms, questions, settings)["cost"]}
    halfway = (points["majority_2"]["accuracy"] + points["majority_3"]["accuracy"]) / 2
    assert points["trained"]["majority_at_same_cost"] == pytest.approx(halfway)
    assert points["majority_8"]["majority_at_same_cost"] == pytest.approx(points["majority_8"]["accuracy"])
    arms["trained"] = Arm("trained", arms["trained"].rows.assign(shown=0), planted.JUDGE)
    points = {point["arm"]: point for point in compare(arms, questions, settings)["cost"]}
    assert points["trained"]["majority_at_same_cost"] is None


def test_replicate_seeds_that_disagree_cannot_tell_where_one_seed_said_yes() -> None:
    arms, questions, settings = planted.study(1500)
    lucky = planted.model_rows(questions, 0.09, samples=2, seeds=[1], stream=11)
    unlucky = planted.model_rows(questions, -0.03, samples=2, seeds=[2], stream=12)
    arms["trained"] = Arm("trained", lucky, planted.JUDGE)
    assert outcome(arms, questions, settings)["verdict"]["word"] == "yes"
    arms["trained"] = Arm("trained", pd.concat([lucky, unlucky], ignore_index=True), planted.JUDGE)
    entry = outcome(arms, questions, settings)
    assert entry["verdict"]["word"] == "cannot tell"
    assert entry["test"] == "t_over_seeds"
    assert entry["replicates"]["seeds"] == 2
    assert len(entry["replicates"]["by_seed"]) == 2


def test_mcnemar_can_be_the_preregistered_test() -> None:
    arms, questions, _ = planted.study(300, 0.1, samples=1)
    settings = planted.settings_of(arms, questions, samples=1, test="mcnemar_exact")
    entry = outcome(arms, questions, settings)
    assert entry["p_value"] == entry["mcnemar"]["p_value"]
    hypotheses = [make_hypothesis("above_mean", "trained", "mean")]
    with pytest.raises(GenselectError, match="McNemar's test needs 0 / 1 verdicts"):
        compare(
            arms,
            questions,
            planted.settings_of(arms, questions, samples=1, test="mcnemar_exact", hypotheses=hypotheses),
        )


# --- the text --------------------------------------------------------------------------------------------------------------


def test_the_text_answers_both_questions_with_numbers() -> None:
    found = compare(*planted.study(1200, 0.15), waived_gates={"overfit": "the card was needed"})
    text = comparison_text(found)
    entry = found["hypotheses"][0]
    assert "### trained above untrained? **Yes**" in text
    assert "### trained above majority_8? **" in text
    assert entry["verdict"]["sentence"] in text
    assert "on 1,200 questions" in text
    assert "Could have been seen at this size" in text
    assert "planned before: 5.0 (7.0 if questions differed twice as much)" in text
    assert "- `overfit`: the card was needed" in text
    assert "One training seed" in text
    for arm in found["arms"]:
        assert f"| {arm['name']} |" in text
    assert "nan" not in text
    assert "None" not in text
    assert comparison_text(found) == text


def test_exploratory_arms_and_hypotheses_are_labelled_and_leave_the_family_alone() -> None:
    arms, questions, settings = planted.study(400, 0.1)
    before = compare(arms, questions, settings)["hypotheses"]
    arms["late"] = Arm("late", planted.model_rows(questions, 0.3, stream=9), planted.JUDGE)
    # One that shows and one that does not: in the family, either would change what the others have to pass.
    added = [make_hypothesis("late_above", "late", "untrained"), make_hypothesis("first_above", "first", "mean")]
    more = {**settings, "exploratory": {"arms": ["late"], "hypotheses": added}}
    found = compare(arms, questions, more)
    assert [entry["p_adjusted"] for entry in found["hypotheses"][:2]] == [entry["p_adjusted"] for entry in before]
    text = comparison_text(found)
    assert "### late above untrained? (exploratory) **Yes**" in text
    assert "| late (exploratory) |" in text
    assert text.index("## Exploratory") > text.index("### trained above majority_8?")


def test_the_comparison_is_plain_json() -> None:
    found = compare(*planted.study(100, 0.1))
    again = json.loads(json.dumps(found, allow_nan=False))
    assert comparison_text(again) == comparison_text(found)

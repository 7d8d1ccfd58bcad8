"""What each baseline answers on candidates whose votes can be counted by hand."""

from __future__ import annotations

import pytest
from scipy import integrate

from genselect.evaluation import (
    CandidateView,
    Question,
    baseline_rows,
    baseline_summary,
    classify,
    equal_by,
    form_pairs,
)
from genselect.evaluation.baselines import majority, stop_after


def question(*candidates: tuple[str | None, bool], name: str = "q") -> Question:
    return Question(name, "7", tuple(CandidateView(answer, right) for answer, right in candidates))


def arms(asked: Question, seed: int = 0) -> dict[str, tuple[float, float, int]]:
    rows = baseline_rows([asked], seed=seed)
    return {row.arm: (row.correct, row.expected, row.shown) for row in rows.itertuples()}


R, W = ("7", True), ("1", False)


def test_each_arm_on_a_question_counted_by_hand() -> None:
    found = arms(question(W, R, ("2", False), R, W, R, R, W))
    assert found["first"] == (0, 0, 1)
    assert found["mean"] == (0.5, 0.5, 1)
    assert found["oracle"] == (1, 1, 8)
    # Votes as they come in: 1; 1 7; 1 7 2; 1 7 2 7; a tie 2:2; 7 leads; 7 leads; 4:3.
    assert [found[f"majority_{k}"][1] for k in range(1, 9)] == [0, 1 / 2, 1 / 3, 1, 1 / 2, 1, 1, 1]
    assert [found[f"majority_{k}"][2] for k in range(1, 9)] == list(range(1, 9))


def test_an_oracle_needs_one_right_candidate() -> None:
    assert arms(question(*[W] * 8))["oracle"] == (0, 0, 8)
    assert arms(question(*[W] * 7, R))["oracle"] == (1, 1, 8)


def test_a_tie_is_drawn_by_seed_and_question_and_reported_by_its_mean() -> None:
    tied = [question(R, W, name=f"q{number}") for number in range(400)]
    rows = baseline_rows(tied, seed=1)
    pairs = rows[rows.arm == "majority_2"]
    assert set(pairs.expected) == {0.5}
    assert set(pairs.correct) == {0.0, 1.0}
    assert 0.4 < pairs.correct.mean() < 0.6
    assert (baseline_rows(tied, seed=1).correct == rows.correct).all()
    assert (baseline_rows(tied, seed=2).correct != rows.correct).any()
    # One question's draw does not depend on the others.
    alone = baseline_rows(tied[17:18], seed=1)
    assert (alone.correct.to_numpy() == rows[rows.question_id == "q17"].correct.to_numpy()).all()


def test_three_way_ties_share_evenly() -> None:
    classes = classify(question(R, W, ("2", False)).candidates)
    assert majority(classes, "q", 3, seed=0)[1] == pytest.approx(1 / 3)


def test_candidates_without_a_box_vote_for_nothing_but_are_shown() -> None:
    found = arms(
        question(
            (None, False), ("", False), ("  ", False), (None, False), (None, False), R, (None, False), (None, False)
        )
    )
    assert [found[f"majority_{k}"][:2] for k in range(1, 9)] == [(0, 0)] * 5 + [(1, 1)] * 3
    assert found["majority_8"][2] == 8
    assert found["mean"][0] == 1 / 8  # they do count as candidates
    summary = baseline_summary(
        [question((None, False), R)], baseline_rows([question((None, False), R)], seed=0), seed=0
    )
    assert summary["without_answer"] == 1


def test_no_answer_at_all_is_wrong() -> None:
    found = arms(question((None, False), (None, False)))
    assert found["majority_2"] == (0, 0, 2)
    assert found["adaptive_0.8"] == (0, 0, 2)


def test_typesetting_makes_no_other_answer() -> None:
    half = question((r"\frac{1}{2}", True), (r"$\dfrac12$", True), (r"\tfrac{1}{2}", True), *[W] * 2)
    assert arms(half)["majority_5"][1] == 1
    assert classify(half.candidates).of == (0, 0, 0, 1, 1)


def test_equal_values_written_differently_are_one_class_only_where_a_check_says_so() -> None:
    asked = question(("0.5", True), ("1", False), ("1/2", True), ("1", False), (r"\frac{1}{2}", True))
    assert arms(asked)["majority_5"][1] == 0  # by normal form three answers stand against one with two votes
    assert form_pairs([asked])[0] == ("0.5", "1")
    equal = equal_by({("0.5", "1/2"): True, ("0.5", r"\frac{1}{2}"): True})
    merged = classify(asked.candidates, equal)
    assert merged.of == (0, 1, 0, 1, 0)
    assert merged.class_of("1/2") == 0
    rows = baseline_rows([asked], seed=0, equal=equal)
    assert rows.set_index("arm").expected["majority_5"] == 1
    # The check may answer in either order.
    assert classify(asked.candidates, equal_by({("1/2", "0.5"): True})).of == (0, 1, 0, 1, 2)


def test_a_class_whose_labels_disagree_goes_by_most_of_them_and_is_counted() -> None:
    asked = question(("7", True), ("7", False), ("7", True), W)
    classes = classify(asked.candidates)
    assert classes.correct == (True, False)
    assert classes.mixed == (True, False)
    for first in (False, True):  # half and half: the first decides
        assert classify(question(("7", first), ("7", not first)).candidates).correct == (first,)
    assert baseline_summary([asked], baseline_rows([asked], seed=0), seed=0)["mixed_classes"] == 1


def published_criterion(first: int, second: int) -> float:
    """As the paper's own code has it: the integral over the upper half by that over all."""
    upper = integrate.quad(lambda p: p**first * (1 - p) ** second, 0.5, 1)[0]
    return upper / integrate.quad(lambda p: p**first * (1 - p) ** second, 0, 1)[0]


@pytest.mark.parametrize("threshold", [0.8, 0.9, 0.95])
@pytest.mark.parametrize(
    "answers", ["77777777", "71777777", "12345671", "71717171", "11777777", "77111111", "7x7x7777", "xxxxxxxx"]
)
def test_adaptive_consistency_stops_where_the_published_criterion_does(answers: str, threshold: float) -> None:
    views = tuple(CandidateView(None if answer == "x" else answer, answer == "7") for answer in answers)
    wanted = len(answers)
    for shown in range(1, len(answers)):
        counts = sorted((answers[:shown].count(answer) for answer in set("1234567")), reverse=True)
        if published_criterion(counts[0], counts[1]) >= threshold:
            wanted = shown
            break
    assert stop_after(classify(views), threshold) == wanted


def test_adaptive_consistency_answers_with_the_leader_at_its_stop() -> None:
    asked = question(W, W, *[R] * 6)
    found = arms(asked)
    assert found["adaptive_0.8"] == (0, 0, 2)  # 2:0 gives 0.875
    # 2:0, 2:1, 2:2, 2:3, 2:4 (0.77), 2:5 (0.86), 2:6 (0.91): not above 0.9 before the eighth
    assert found["adaptive_0.9"] == (1, 1, 8)


def test_the_summary_gives_accuracy_by_arm() -> None:
    asked = [question(R, W, name="a"), question(W, W, name="b")]
    summary = baseline_summary(asked, baseline_rows(asked, seed=0), seed=0)
    assert summary["arms"]["majority_2"]["accuracy"] == 0.25
    assert summary["arms"]["first"] == {"accuracy": 0.5, "accuracy_drawn": 0.5, "shown": 1.0}
    assert summary["tied_majorities"] == 1

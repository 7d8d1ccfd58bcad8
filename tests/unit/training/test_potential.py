"""The potential: its components, that shaping telescopes, and where rewards land."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genselect.episode import Score
from genselect.errors import GenselectError
from genselect.training import potential as module
from genselect.training.potential import (
    DecisionState,
    Placement,
    Potential,
    check_telescoping,
    component_names,
    place,
    register,
    shaping,
)

finite = st.floats(-1e3, 1e3)


def state(k: int = 0, logit: float | None = 0.0, answers: tuple[str | None, ...] = ()) -> DecisionState:
    return DecisionState(k, logit, answers)


@pytest.mark.parametrize(
    ("answers", "share"),
    [
        ((), 0),
        (("4",), 1),
        (("4", "5", "4"), 2 / 3),
        (("4", "5"), 1 / 2),
        ((None, None), 0),
        (("4", None, None), 1 / 3),
    ],
)
def test_leading_share(answers: tuple[str | None, ...], share: float) -> None:
    assert Potential([("leading_share", 1.0)])([state(len(answers), answers=answers)]) == pytest.approx([share])


def test_submit_probability_is_the_sigmoid_even_far_out() -> None:
    phi = Potential([("submit_probability", 1.0)])([state(logit=logit) for logit in (0.0, 2.0, -1000.0, 1000.0)])
    assert phi == pytest.approx([0.5, 1 / (1 + math.exp(-2)), 0, 1])
    with pytest.raises(GenselectError, match="no predictor"):
        Potential([("submit_probability", 1.0)])([state(logit=None)])


def test_components_add_up_with_their_weights_and_more_can_be_registered() -> None:
    @register("revealed_eighths")
    def revealed_eighths(at: DecisionState) -> float:
        return at.k / 8

    try:
        assert "revealed_eighths" in component_names()
        potential = Potential([("submit_probability", 0.5), ("leading_share", -2.0), ("revealed_eighths", 1.0)])
        phi = potential([state(), state(2, 0.0, ("1", "1"))])
        assert phi == pytest.approx([0.25, 0.25 - 2 + 0.25])
        with pytest.raises(ValueError, match="registered already"):
            register("leading_share")(revealed_eighths)
    finally:
        del module._COMPONENTS["revealed_eighths"]


@pytest.mark.parametrize(
    ("components", "words"),
    [
        ([("leading_shares", 1.0)], "Did you mean leading_share"),
        ([("nothing", 1.0)], "no component named 'nothing'"),
        ([("leading_share", 1.0), ("leading_share", 2.0)], "twice"),
        ([("leading_share", math.nan)], "weight of leading_share is nan"),
    ],
)
def test_a_faulty_potential_is_refused(components: list[tuple[str, float]], words: str) -> None:
    with pytest.raises(GenselectError, match=words):
        Potential(components)


@given(st.lists(finite, max_size=12), st.floats(0.1, 1.0))
@settings(max_examples=100, deadline=None)
def test_shaping_telescopes_to_minus_the_first_potential(phi: list[float], gamma: float) -> None:
    plain = shaping(phi, 1.0)
    assert len(plain) == len(phi)
    if phi:
        assert math.fsum(plain) == pytest.approx(-phi[0], abs=1e-9 * max(1, max(map(abs, phi))))
    check_telescoping(plain, phi)
    check_telescoping(shaping(phi, gamma), phi, gamma)


@given(st.lists(finite, min_size=1, max_size=12), st.integers(0, 11), st.floats(1e-3, 10))
@settings(max_examples=100, deadline=None)
def test_a_changed_transition_does_not_telescope(phi: list[float], at: int, change: float) -> None:
    shaped = shaping(phi, 1.0)
    shaped[at % len(phi)] += change
    with pytest.raises(GenselectError, match="sums to"):
        check_telescoping(shaped, phi)


def test_shaping_is_what_its_formula_says() -> None:
    assert shaping([0.5, 0.75, 0.25], 0.5) == pytest.approx([0.5 * 0.75 - 0.5, 0.5 * 0.25 - 0.75, -0.25])
    with pytest.raises(GenselectError, match="decision point 1"):
        shaping([0.1, math.nan], 1.0)
    with pytest.raises(GenselectError):
        check_telescoping([math.nan], [0.5])
    with pytest.raises(GenselectError, match="2 shaping rewards for 1"):
        check_telescoping([0.1, 0.2], [0.5])


# Three turns; the tool's responses between them are masked.
MASK = [1, 1, 1, 0, 0, 1, 1, 0, 1, 1]
TURNS = [(0, 3), (5, 7), (8, 10)]
SCORE = Score(verdict=1.0, format=0.0, cost=-0.2)
COSTS = [-0.1, -0.1, 0.0]


def test_costs_and_shaping_lie_on_their_turns_last_token_and_the_rest_on_the_last() -> None:
    placed = place(SCORE, COSTS, [0.25, -0.5, -0.125], TURNS, MASK)
    assert placed.scores.tolist() == [0, 0, -0.1, 0, 0, 0, -0.1, 0, 0, 1.0]
    assert placed.shaping.tolist() == [0, 0, 0.25, 0, 0, 0, -0.5, 0, 0, -0.125]
    assert placed.rewards.tolist() == (placed.scores + placed.shaping).tolist()


def test_an_episode_that_ends_on_an_explore_keeps_its_whole_reward() -> None:
    # Its tool response was trimmed; what is left of the turn's frame is masked and inside the span.
    placed = place(Score(0.0, 0.0, -0.2), [-0.1, -0.1], [0.1, -0.3], [(0, 3), (5, 8)], MASK[:8])
    assert placed.scores.tolist() == [0, 0, -0.1, 0, 0, 0, -0.1, 0]
    assert placed.rewards[6] == -0.1 + -0.3


def test_no_components_change_nothing_at_all() -> None:
    potential = Potential([])
    phi = potential([state(), state(1), state(2)])
    unshaped = place(SCORE, COSTS, [], TURNS, MASK)
    shaped = place(SCORE, COSTS, shaping(phi, 1.0), TURNS, MASK)
    assert not potential
    assert shaped.rewards.tobytes() == unshaped.rewards.tobytes() == unshaped.scores.tobytes()
    assert not shaped.shaping.any()


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_rewards_add_up_and_never_lie_on_a_masked_token(data: st.DataObject) -> None:
    turns, mask = [], list[int]()
    for _ in range(data.draw(st.integers(1, 9))):
        start = len(mask)
        mask += [1] * data.draw(st.integers(1, 5))
        turns.append((start, len(mask)))
        mask += [0] * data.draw(st.integers(0, 4))
    cost = data.draw(st.sampled_from([0.0, 0.01, 0.02, 0.1, 0.37]))
    charged = data.draw(st.lists(st.booleans(), min_size=len(turns), max_size=len(turns)))
    costs = [-cost if paid else 0.0 for paid in charged]
    score = Score(data.draw(st.sampled_from([0.0, 1.0])), data.draw(st.sampled_from([0.0, 0.1])), -cost * sum(charged))
    phi = data.draw(st.lists(finite, min_size=len(turns), max_size=len(turns)))
    placed: Placement = place(score, costs, shaping(phi, 1.0), turns, mask)
    masked = np.array(mask) == 0
    assert not placed.rewards[masked].any()
    assert math.fsum(placed.scores) == pytest.approx(score.total, abs=1e-15)
    assert math.fsum(placed.shaping) == math.fsum(shaping(phi, 1.0))
    assert math.fsum(placed.rewards) == pytest.approx(score.total - phi[0], abs=1e-9)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"turns": [(0, 3), (3, 5), (5, 7), (8, 10)], "costs": [*COSTS, 0.0]}, "turn 1 .* masked tokens only"),
        ({"turns": [(0, 3), (4, 7), (8, 10)]}, "token 4, which is masked"),
        ({"turns": [(0, 3), (8, 10)], "costs": [-0.1, -0.1]}, "token 5 is the policy's and belongs to no turn"),
        ({"turns": [(0, 3), (2, 7), (8, 10)]}, "turn 1 spans tokens 2 to 7"),
        ({"turns": [(0, 3), (5, 7), (8, 11)]}, "8 to 11 of 10"),
        ({"turns": [], "costs": []}, "no turn"),
        ({"costs": [-0.1, 0.0, 0.0]}, "add up to -0.1, and the score's cost is -0.2"),
        ({"shaped": [0.1]}, "1 shaping rewards for 3 turns"),
    ],
)
def test_rewards_without_a_place_are_refused(changes: dict[str, list], words: str) -> None:
    values = {"turns": TURNS, "costs": COSTS, "shaped": [], **changes}
    with pytest.raises(GenselectError, match=words):
        place(SCORE, values["costs"], values["shaped"], values["turns"], MASK)

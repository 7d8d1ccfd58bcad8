"""Whatever a policy says, an episode ends in exactly one well-defined way."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genselect.episode import NONE_LEFT, CachedCandidate, Call, EndReason, Episode, score

EXPLORE = Call("explore", "{}")
CANDIDATES = [CachedCandidate(str(index), f"reasoning {index}", index % 2 == 0) for index in range(8)]


def submit(answer: object = "7") -> Call:
    return Call("submit", json.dumps({"answer": answer}))


def played(*turns: list[Call], candidates: list[CachedCandidate] = CANDIDATES, max_turns: int = 12) -> Episode:
    episode = Episode(candidates, max_turns)
    for calls in turns:
        episode.step(calls)
    return episode


def test_candidates_are_revealed_in_order_and_then_none_is_left() -> None:
    episode = Episode(CANDIDATES, 12)
    said = [episode.step([EXPLORE]) for _ in range(10)]
    assert said == [f"reasoning {index}" for index in range(8)] + [NONE_LEFT] * 2
    assert (episode.explores, episode.charged_explores, episode.revealed, episode.done) == (10, 8, 8, False)


def test_a_submission_ends_it() -> None:
    episode = played([EXPLORE], [submit(" 42 ")])
    assert (episode.end, episode.submitted, episode.well_formed, episode.explores) == (EndReason.SUBMIT, "42", True, 1)


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [EXPLORE, EXPLORE],
        [EXPLORE, submit()],
        [Call("search", "{}")],
        [Call("explore", '{"n": 2}')],
        [Call("explore", "")],
        [Call("submit", "{}")],
        [Call("submit", '{"answer": "1", "sure": true}')],
        [Call("submit", '{"answer": ')],
        [Call("submit", '["1"]')],
        [submit("  ")],
        [submit(None)],
        [submit(True)],
        [submit({"value": 3})],
    ],
    ids=str,
)
def test_anything_but_one_valid_call_ends_it_without_a_submission(calls: list[Call]) -> None:
    episode = played([EXPLORE], calls)
    assert (episode.end, episode.submitted, episode.well_formed) == (EndReason.NO_CALL, None, False)
    assert score(episode, verdict=True, format_score=0.1, cost_per_explore=0.02).total == -0.02


def test_a_bare_number_is_an_answer() -> None:
    assert played([submit(12)]).submitted == "12"
    assert played([submit(0.5)]).submitted == "0.5"


def test_the_turn_limit_ends_it_and_its_last_explore_reveals_nothing() -> None:
    episode = played([EXPLORE], [EXPLORE], [EXPLORE], max_turns=3)
    assert (episode.end, episode.explores, episode.revealed) == (EndReason.TURNS, 3, 2)
    assert played([EXPLORE], [EXPLORE], [submit()], max_turns=3).end is EndReason.SUBMIT


def test_a_cut_ends_what_is_not_over() -> None:
    episode = played([EXPLORE])
    episode.cut()
    assert (episode.end, episode.well_formed) == (EndReason.LENGTH, False)
    finished = played([submit()])
    finished.cut()
    assert finished.end is EndReason.SUBMIT


def test_a_finished_episode_takes_no_turn() -> None:
    with pytest.raises(RuntimeError):
        played([submit()], [EXPLORE])


@pytest.mark.parametrize(
    ("turns", "verdict", "expected"),
    [
        ([[submit()]], True, 1.0),
        ([[submit()]], False, 0.1),
        ([[EXPLORE], [EXPLORE], [submit()]], True, 1.0 - 0.2),
        ([[EXPLORE], [submit()]], False, 0.1 - 0.1),
        ([[EXPLORE], []], False, -0.1),
        ([[EXPLORE]] * 10 + [[submit()]], True, 1.0 - 0.8),
    ],
)
def test_the_score_is_that_of_the_study(turns: list[list[Call]], verdict: bool, expected: float) -> None:
    found = score(played(*turns), verdict=verdict, format_score=0.1, cost_per_explore=0.10)
    assert found.total == pytest.approx(expected)
    assert found.total == found.verdict + found.format + found.cost


def test_the_published_objective_is_reproduced() -> None:
    # Report 30: verdict 0.664, 1.02 explores a trajectory at cost 0.10, format score 0.1, all well-formed: objective 0.595.
    assert pytest.approx(0.595, abs=0.001) == 0.664 + 0.1 * (1 - 0.664) - 0.10 * 1.02


text = st.text(max_size=8)
calls = st.lists(
    st.one_of(
        st.just(EXPLORE),
        st.builds(submit, text),
        st.builds(Call, text, text),
        st.builds(Call, st.sampled_from(["explore", "submit"]), text),
    ),
    max_size=3,
)


@given(st.lists(calls, min_size=1, max_size=20), st.integers(0, 8), st.integers(1, 12), st.booleans())
def test_every_sequence_of_turns_ends_in_one_defined_outcome(
    turns: list[list[Call]], known: int, limit: int, verdict: bool
) -> None:
    episode = Episode(CANDIDATES[:known], limit)
    responses = []
    for turn in turns:
        if episode.done:
            break
        responses.append(episode.step(turn))
    else:
        episode.cut()
    assert episode.end in set(EndReason)
    assert episode.turns <= limit
    # The environment answers each turn but the last one of an episode that ended by itself.
    assert all(response is not None for response in responses[:-1])
    explored = sum(response is not None for response in responses)
    assert episode.explores in {explored, explored + (episode.end is EndReason.TURNS)}
    assert episode.revealed == sum(response not in {None, NONE_LEFT} for response in responses) <= known
    assert (episode.submitted is not None) == episode.well_formed == (episode.end is EndReason.SUBMIT)
    pieces = score(episode, verdict=verdict, format_score=0.1, cost_per_explore=0.02)
    assert pieces.total == pieces.verdict + pieces.format + pieces.cost
    assert -0.02 * known <= pieces.total <= 1.0

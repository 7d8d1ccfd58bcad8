"""Where an episode's score lands on its tokens, and which decision points teach the predictor."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from genselect.episode import CachedCandidate, Call, Episode, Generated, Limits, Played, play, score
from genselect.training.agent_loop import _supervised, _token_scores

END = 1
CANDIDATES = [CachedCandidate("7", "seven", True), CachedCandidate("8", "eight", False)]


class Frames:
    """Responses of four tokens."""

    def response(self, text: str) -> list[int]:
        return [50, 51, 52, 53]


def played(*turns: Sequence[Call], response_tokens: int = 100) -> Played:
    """Each turn is three tokens, the last of which ends it."""
    said = iter(turns)

    async def generate(context: Sequence[int], max_tokens: int) -> Generated:
        return Generated([5, 6, END][:max_tokens], [-0.1] * min(3, max_tokens))

    async def parse(ids: Sequence[int]) -> Sequence[Call]:
        return next(said)

    frames: Any = Frames()
    return asyncio.run(play(Episode(CANDIDATES, 6), [9, 9], frames, generate, parse, Limits(response_tokens, 10), END))


EXPLORE, SUBMIT = [Call("explore", "{}")], [Call("submit", '{"answer": "7"}')]


def test_each_explores_cost_lies_on_its_turn_and_the_rest_on_the_last_token() -> None:
    episode = played(EXPLORE, EXPLORE, EXPLORE, SUBMIT)
    pieces = score(episode.episode, verdict=True, format_score=0.1, cost_per_explore=0.02)
    tokens = _token_scores(episode, pieces, 0.02)
    # Turns end at tokens 2, 9, 16 and 23; the third explore found no candidate left and costs nothing.
    assert {position: value for position, value in enumerate(tokens) if value} == {2: -0.02, 9: -0.02, 23: 1.0}
    assert sum(tokens) == pytest.approx(pieces.total)
    assert all(episode.response_mask[position] == 1 for position, value in enumerate(tokens) if value)


def test_an_episode_that_would_end_on_a_tool_response_keeps_its_reward() -> None:
    # The second response would leave no room for a turn: it is not written, and the last token is the policy's.
    episode = played(EXPLORE, EXPLORE, response_tokens=12)
    assert (episode.episode.end, episode.length_capped) == ("length", True)
    assert episode.response_mask[-1] == 1
    pieces = score(episode.episode, verdict=False, format_score=0.1, cost_per_explore=0.02)
    assert sum(_token_scores(episode, pieces, 0.02)) == pytest.approx(-0.04)


def test_the_submission_teaches_its_own_state_or_every_state() -> None:
    submitted, lost = played(EXPLORE, SUBMIT), played(EXPLORE, [])
    assert (_supervised(submitted, "submit_state"), _supervised(submitted, "all_states")) == ([7], [0, 7])
    assert (_supervised(lost, "submit_state"), _supervised(lost, "all_states")) == ([], [0, 7])

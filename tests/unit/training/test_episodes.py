"""Seeds of sampling, and what of a played episode is written down."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from genselect.episode import CachedCandidate, Call, Episode, Generated, Limits, Played, play, score
from genselect.training import episodes
from genselect.training.reward import VerdictMaker

END = 1
ROW = {"reward_model": {"ground_truth": "1/2"}, "extra_info": {"question": "1 over 2"}}


class Frames:
    """Responses of two tokens."""

    def response(self, text: str) -> list[int]:
        return [50, 51]


def played(*turns: list[Call]) -> Played:
    said = iter(turns)

    async def generate(context: Sequence[int], max_tokens: int) -> Generated:
        return Generated([5, END], [-0.1, -0.1])

    async def parse(ids: Sequence[int]) -> Sequence[Call]:
        return next(said)

    candidates = [CachedCandidate("1/2", "half", True), CachedCandidate("8", "eight", False)]
    frames: Any = Frames()
    return asyncio.run(play(Episode(candidates, 6), [9, 9, 9], frames, generate, parse, Limits(100, 10), END))


def written(episode: Played) -> dict[str, Any]:
    ruling = asyncio.run(episodes.rule(VerdictMaker(), episode, ROW))
    pieces = score(episode.episode, verdict=ruling.correct, format_score=0.1, cost_per_explore=0.02)
    return episodes.trajectory(episode, ruling, pieces, "omr-000007", 3)


EXPLORE = [Call("explore", "{}")]


def test_seeds_stay_what_they_are() -> None:
    # Another rule would draw other samples: resumed runs and rollouts would no longer equal uninterrupted ones.
    assert episodes.episode_seed(1, "omr-000007", 3, 5) == 1_509_732_755
    assert episodes.turn_seed(2**31 - 1, 2) == 1


@pytest.mark.parametrize("other", [(2, "q", 0, 0), (1, "r", 0, 0), (1, "q", 1, 0), (1, "q", 0, 1)])
def test_each_of_run_question_sample_and_step_gives_another_seed(other: tuple[int, str, int, int]) -> None:
    assert episodes.episode_seed(*other) != episodes.episode_seed(1, "q", 0, 0)


def test_a_submission_is_recorded_with_its_verdict_score_and_decision_points() -> None:
    row = episodes.record(0, 1, {**written(played(EXPLORE, [Call("submit", '{"answer": " 1/2 "}')])), "text": "so"})
    assert (row.question_id, row.sample, row.step, row.attempt, row.text) == ("omr-000007", 3, 0, 1, "so")
    assert (row.submitted, row.verdict, row.verdict_source, row.end) == ("1/2", True, "label", "submit")
    assert row.score == pytest.approx(0.98)
    assert (row.explores, row.revealed, row.turns, row.prompt_tokens, row.response_tokens) == (1, 1, 2, 3, 6)
    assert (row.decision_tokens, row.decision_k) == ((0, 4), (0, 1))


def test_without_a_submission_nobody_rules() -> None:
    row = episodes.record(0, 1, written(played(EXPLORE, [])))
    assert (row.submitted, row.verdict, row.verdict_source, row.well_formed) == (None, False, "none", False)


def test_answers_travel_in_normal_form_as_far_as_they_were_revealed() -> None:
    values = written(played(EXPLORE, []))
    assert len(values["answers"]) == 1
    assert values["answers"] == written(played(EXPLORE, []))["answers"]


def test_a_row_without_a_boxed_answer_gives_a_candidate_with_an_empty_one() -> None:
    entry = {"answer": None, "reasoning": "?", "is_correct": False}
    assert episodes.candidate(entry) == CachedCandidate("", "?", False)

"""The verdict on a submission: labels first, then the cascade, then the judge, if one can be asked."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from genselect.config import Judge
from genselect.episode import CachedCandidate
from genselect.training.reward import Ruling, VerdictMaker

sys.path.append(str(Path(__file__).parents[1] / "judge"))
from fake_judge import PROMPT, FakeJudge

CANDIDATES = [CachedCandidate("1/2", "…", True), CachedCandidate("7", "…", False)]


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[FakeJudge]:
    with FakeJudge(tmp_path / "judge", rules=[{"match": "refused", "fault": "500", "times": 99}]) as running:
        yield running


def maker(judge: FakeJudge, tmp_path: Path) -> VerdictMaker:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(PROMPT)
    return VerdictMaker(
        Judge(
            kind="endpoints",
            model="judge",
            revision=None,
            endpoints=[judge.url],
            prompt={"path": prompt},
            client={"backoff_s": 0.01, "backoff_max_s": 0.02, "max_attempts": 2},
        )
    )


def rule(maker: VerdictMaker, expected: str, *submitted: str) -> list[Ruling]:
    async def all_of_them() -> list[Ruling]:
        return [await maker.rule(expected, answer, CANDIDATES, "how many?") for answer in submitted]

    return asyncio.run(all_of_them())


def test_an_answer_that_a_candidate_gave_has_its_label() -> None:
    # Even where the symbolic reader would say otherwise: the policy is judged as its candidates were.
    assert rule(VerdictMaker(), "7", "7", "$ 1/2 $") == [Ruling(False, "label"), Ruling(True, "label")]


def test_without_a_judge_the_symbolic_reader_decides_both_ways() -> None:
    assert rule(VerdictMaker(), "0.25", "1/4", "3", "0.2500001") == [
        Ruling(True, "symbolic"),
        Ruling(False, "rule"),
        Ruling(False, "none"),
    ]


def test_the_judge_is_asked_only_about_what_nothing_else_accepts(judge: FakeJudge, tmp_path: Path) -> None:
    rulings = rule(maker(judge, tmp_path), "0.25", "1/4", "7", "answer 12", "answer 13", "answer 12")
    assert rulings == [
        Ruling(True, "symbolic"),
        Ruling(False, "label"),
        Ruling(True, "judge"),
        Ruling(False, "judge"),
        Ruling(True, "judge"),
    ]
    # The second time the same answer comes, its verdict is known.
    assert [request["predicted"] for request in judge.requests()] == ["answer 12", "answer 13"]


def test_a_judge_that_fails_gives_no_verdict_and_is_asked_again(judge: FakeJudge, tmp_path: Path) -> None:
    made = maker(judge, tmp_path)
    assert rule(made, "0.25", "refused 2") == [Ruling(False, "none")]
    asked = len(judge.requests())
    rule(made, "0.25", "refused 2")
    assert len(judge.requests()) > asked

"""The episode: a policy reveals cached candidates one at a time and submits an answer.

One state machine serves rollouts, evaluation, the baselines and the reader of records. It knows no tokens and no model: a
turn comes in as the tool calls found in it, the text that the environment answers goes out.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass

#: What exploring answers once every candidate has been revealed.
NONE_LEFT = "No candidate is left. Submit an answer."


class EndReason(enum.StrEnum):
    """Why an episode is over. Each episode has exactly one."""

    SUBMIT = "submit"
    """An answer was submitted."""
    NO_CALL = "no_call"
    """A turn without exactly one valid call: none, several, an unknown tool, or arguments that do not fit."""
    TURNS = "turns"
    """The turn limit was reached without a submission."""
    LENGTH = "length"
    """The token limit was reached."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call as a parser found it."""

    name: str
    arguments: str
    """A JSON object, as text: parsing it is part of the judgement whether the call is valid."""


@dataclass(frozen=True, slots=True)
class CachedCandidate:
    """A candidate as the environment holds it."""

    answer: str
    reasoning: str
    is_correct: bool


class Episode:
    """One problem being played.

    Args:
        candidates: In the order they are revealed.
        max_turns: Turns after which an episode without a submission ends. To see n candidates and submit takes n + 1; an
            explore in the last turn reveals nothing, since nobody would read it.

    Raises:
        ValueError: ``max_turns`` is too small.
    """

    def __init__(self, candidates: Sequence[CachedCandidate], max_turns: int) -> None:
        if max_turns < 1:
            raise ValueError(f"max_turns is {max_turns}, and an episode has at least one turn")
        self.candidates = tuple(candidates)
        self.max_turns = max_turns
        self.revealed = 0
        """Candidates revealed so far, the state k of the study: 0 to ``len(candidates)``."""
        self.turns = 0
        """Turns taken."""
        self.explores = 0
        """Calls of explore, those that found no candidate left included."""
        self.submitted: str | None = None
        """The submitted answer."""
        self.end: EndReason | None = None
        """Why it is over; None while it is not."""

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self.end is not None

    @property
    def well_formed(self) -> bool:
        """Whether it ended in a submission."""
        return self.end is EndReason.SUBMIT

    @property
    def charged_explores(self) -> int:
        """Explores that revealed a candidate: only those cost."""
        return self.revealed

    def step(self, calls: Sequence[Call]) -> str | None:
        """Play one turn.

        Args:
            calls: Every tool call found in the turn.

        Returns:
            The tool's response, or None when the episode is over.

        Raises:
            RuntimeError: The episode was over already.
        """
        if self.done:
            raise RuntimeError("the episode is over")
        self.turns += 1
        arguments = _arguments(calls[0]) if len(calls) == 1 else None
        if arguments is None:
            self.end = EndReason.NO_CALL
            return None
        if "answer" in arguments:
            self.submitted = arguments["answer"]
            self.end = EndReason.SUBMIT
            return None
        self.explores += 1
        if self.turns >= self.max_turns:
            self.end = EndReason.TURNS
            return None
        if self.revealed == len(self.candidates):
            return NONE_LEFT
        self.revealed += 1
        return self.candidates[self.revealed - 1].reasoning

    def cut(self) -> None:
        """End it because no tokens are left. An episode that is over stays as it is."""
        self.end = self.end or EndReason.LENGTH


def _arguments(call: Call) -> dict[str, str] | None:
    """``{}`` for a valid explore, ``{"answer": ...}`` for a valid submit, None for anything else."""
    try:
        arguments = json.loads(call.arguments)
    except (json.JSONDecodeError, RecursionError):
        return None
    if call.name == "explore" and arguments == {}:
        return {}
    if call.name == "submit" and isinstance(arguments, dict) and set(arguments) == {"answer"}:
        answer = arguments["answer"]
        # A bare number is a number to a JSON writer and an answer to everyone else; true and null are not.
        if isinstance(answer, int | float) and not isinstance(answer, bool):
            answer = json.dumps(answer)
        if isinstance(answer, str) and answer.strip():
            return {"answer": answer.strip()}
    return None

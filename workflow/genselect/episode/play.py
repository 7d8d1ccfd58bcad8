"""Playing an episode on token ids: one loop for training rollouts, the untrained policy's rollout and evaluation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from genselect.episode.rendering import Renderer
from genselect.episode.state import Call, Episode


@dataclass(frozen=True, slots=True)
class Generated:
    """What an engine wrote for one turn."""

    token_ids: Sequence[int]
    log_probs: Sequence[float]
    """Of each token, under the policy that sampled it."""


#: ``generate(context_ids, max_tokens)``: the policy's next turn, ended by its end-of-turn token or by the cap.
Generate = Callable[[Sequence[int], int], Awaitable[Generated]]
#: ``parse(turn_ids)``: every tool call in one turn of the policy.
Parse = Callable[[Sequence[int]], Awaitable[Sequence[Call]]]


@dataclass(frozen=True, slots=True)
class Limits:
    """Token caps of an episode."""

    response_tokens: int
    """All turns and tool responses together."""
    turn_tokens: int
    """One turn of the policy."""


@dataclass(slots=True)
class Played:
    """A finished episode on tokens. All lists but ``prompt_ids`` and ``turns`` run over the response, token by token."""

    episode: Episode
    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    """1 where the policy wrote, 0 in tool responses."""
    log_probs: list[float] = field(default_factory=list)
    """0 in tool responses."""
    turns: list[tuple[int, int]] = field(default_factory=list)
    """First token and one past the last of each of the policy's turns; a turn's first token is its decision point, the state
    before it is the number of candidates revealed."""
    revealed: list[int] = field(default_factory=list)
    """Candidates revealed before each turn."""
    length_capped: bool = False
    """A turn was cut, or a tool response did not fit."""


async def play(
    episode: Episode,
    prompt_ids: Sequence[int],
    renderer: Renderer,
    generate: Generate,
    parse: Parse,
    limits: Limits,
    end_of_turn: int,
) -> Played:
    """Play ``episode`` to its end.

    A response never ends on a tool response: one that would leave no room for a turn is not written, and the episode is cut,
    so the last token is always the policy's and can carry reward.

    Args:
        episode: At its start.
        prompt_ids: Ids up to where the policy writes.
        renderer: Frames tool responses.
        generate: The engine.
        parse: The tool-call parser of the model's family.
        limits: Token caps.
        end_of_turn: The token with which the policy ends a turn; a turn without it was cut and holds no call.
    """
    played = Played(episode, list(prompt_ids))
    while not episode.done:
        room = limits.response_tokens - len(played.response_ids)
        turn = await generate([*played.prompt_ids, *played.response_ids], min(limits.turn_tokens, room))
        start = len(played.response_ids)
        played.turns.append((start, start + len(turn.token_ids)))
        played.revealed.append(episode.revealed)
        played.response_ids += turn.token_ids
        played.response_mask += [1] * len(turn.token_ids)
        played.log_probs += turn.log_probs
        if not turn.token_ids or turn.token_ids[-1] != end_of_turn:
            played.length_capped = True
            episode.cut()
            break
        response = episode.step(await parse(turn.token_ids))
        if response is None:
            break
        ids = renderer.response(response)
        if len(played.response_ids) + len(ids) >= limits.response_tokens:
            played.length_capped = True
            episode.cut()
            break
        played.response_ids += ids
        played.response_mask += [0] * len(ids)
        played.log_probs += [0.0] * len(ids)
    return played

"""Playing the episode with a network in this process: many at once, in step, sampled token by token.

Slower than an engine and free of one: the warm start measures its result with it.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from genselect.base_model.calls import read_calls
from genselect.base_model.problems import Row
from genselect.base_model.transcripts import TranscriptWriter
from genselect.episode import Episode

#: To see the eight candidates, to ask for a ninth, and to submit.
MAX_TURNS = 10
#: Tokens of an episode, its prompt included.
MAX_TOKENS = 512
#: Tokens of a turn. A note and a submission take 22.
MAX_TURN_TOKENS = 40


@dataclass
class Play:
    """An episode being played, with its tokens."""

    row: Row
    episode: Episode
    ids: list[int]
    policy: list[bool]
    """For each token whether the policy wrote it."""
    turn: list[int] = field(default_factory=list)
    """The turn being written."""
    waiting: collections.deque[int] = field(default_factory=collections.deque)
    """Tokens of a response that the network has yet to read."""


@torch.no_grad()
def play(
    network: Any,
    tokenizer: PreTrainedTokenizerFast,
    writer: TranscriptWriter,
    rows: Sequence[Row],
    generator: torch.Generator,
    *,
    careful: bool,
) -> list[Play]:
    """Play every row to its end, sampling at temperature 1.

    Args:
        network: A causal language model.
        tokenizer: Its tokenizer.
        writer: Renders prompts and responses.
        rows: The problems.
        generator: Draws the tokens.
        careful: Play under the careful policy's system message instead of the plain one.
    """
    plays = [_started(writer, row, careful) for row in rows]
    ids, mask = _left_padded([each.ids for each in plays], int(tokenizer.pad_token_id))
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = None
    while True:
        output = network(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        sampled = torch.multinomial(output.logits[:, -1].float().softmax(-1), 1, generator=generator)[:, 0].tolist()
        following = [_advance(each, token, tokenizer, writer) for each, token in zip(plays, sampled, strict=True)]
        if all(each.episode.done for each in plays):
            return plays
        ids = torch.tensor(following)[:, None]
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
        positions = positions[:, -1:] + 1


def _started(writer: TranscriptWriter, row: Row, careful: bool) -> Play:
    ids = writer.renderer.prompt(writer.prompts.messages(row.statement, careful=careful))
    return Play(row, Episode(row.candidates, MAX_TURNS), ids, [False] * len(ids))


def _advance(each: Play, sampled: int, tokenizer: PreTrainedTokenizerFast, writer: TranscriptWriter) -> int:
    """The token that the network reads next: the response's next one, else the sampled one, which may end a turn."""
    if each.episode.done:
        return int(tokenizer.pad_token_id)
    if each.waiting:
        token = each.waiting.popleft()
        each.ids.append(token)
        each.policy.append(False)
        return token
    each.ids.append(sampled)
    each.policy.append(True)
    each.turn.append(sampled)
    if sampled == tokenizer.eos_token_id:
        response = each.episode.step(read_calls(str(tokenizer.decode(each.turn[:-1]))))
        each.turn = []
        each.waiting.extend([] if response is None else writer.renderer.response(response))
    if len(each.turn) >= MAX_TURN_TOKENS or len(each.ids) + len(each.waiting) >= MAX_TOKENS:
        each.episode.cut()
    return sampled


def _left_padded(prompts: Sequence[list[int]], padding: int) -> tuple[Tensor, Tensor]:
    """Ids and attention mask, each of shape (prompts, longest prompt)."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[padding] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


def summary(plays: Sequence[Play]) -> dict[str, float]:
    """What the plays came to: shares of all plays, and means over them."""
    count = len(plays)
    episodes = [each.episode for each in plays]
    submitted = [each for each in plays if each.episode.well_formed]
    revealed = [
        any(candidate.answer == each.episode.submitted for candidate in each.row.candidates[: each.episode.revealed])
        for each in submitted
    ]
    return {
        "problems": count,
        "accuracy": sum(each.episode.submitted == each.row.answer for each in submitted) / count,
        "well_formed": len(submitted) / count,
        "submitted_a_revealed_answer": sum(revealed) / count,
        "explores": sum(episode.explores for episode in episodes) / count,
        "tokens": sum(len(each.ids) for each in plays) / count,
        "most_tokens": max(len(each.ids) for each in plays),
        "policy_tokens": sum(sum(each.policy) for each in plays) / count,
    }

"""Transcripts that the warm start learns from: two policies at work, in the tokens that rollout and evaluation will see.

Both write a short note after each response that says again what the last candidate's check and answer were, then call. The
*plain* policy explores a random number of times and submits a random revealed answer: on average it does as well as a
candidate. The *careful* one, under another system message, explores up to the first candidate that passes its check and
submits that answer. So the network holds the better skill without showing it where it is trained and measured.

Neither policy counts to eight, and nor does the network: who has seen all candidates explores once more, reads that none is
left, and submits. Without that the network went on asking, to the turn limit, whenever it had asked once too often.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from genselect.base_model.calls import EXPLORE, submit_call
from genselect.base_model.problems import CANDIDATES, Row, first_pass
from genselect.base_model.tokenizer import END_OF_TURN
from genselect.episode import Call, Episode, Renderer


@dataclass(frozen=True, slots=True)
class Prompts:
    """The messages of an episode."""

    plain_system: str
    careful_system: str
    user: str
    """With ``{problem}``."""

    def messages(self, statement: str, *, careful: bool) -> list[dict[str, str]]:
        """System and user message of one problem."""
        return [
            {"role": "system", "content": self.careful_system if careful else self.plain_system},
            {"role": "user", "content": self.user.format(problem=statement)},
        ]


@dataclass(frozen=True, slots=True)
class Transcript:
    """One played episode."""

    ids: list[int]
    policy: list[bool]
    """For each token whether the policy wrote it."""
    first_response_end: int
    """Where the first candidate's response ends: answers in later ones may repeat an earlier one."""


class TranscriptWriter:
    """Plays the two policies.

    Args:
        tokenizer: The miniature's.
        prompts: What the two policies read.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, prompts: Prompts) -> None:
        self.renderer = Renderer(tokenizer)
        self.prompts = prompts
        self._tokenizer = tokenizer
        # A few hundred turns make up all transcripts.
        self._turn = functools.cache(self._encode_turn)

    def plain(self, row: Row, explores: int, rng: random.Random) -> Transcript:
        """Explore ``explores`` times (1 to 9), then submit one of the revealed answers, each candidate equally likely."""
        return self._played(row, explores, rng.choice(row.candidates[:explores]).answer, careful=False)

    def careful(self, row: Row) -> Transcript:
        """Explore up to the first candidate that passes its check and submit its answer; the last one's when none is left."""
        last = first_pass(row)
        explores = last + 1 if row.passes[last] else CANDIDATES + 1
        return self._played(row, explores, row.candidates[last].answer, careful=True)

    def _played(self, row: Row, explores: int, answer: str, *, careful: bool) -> Transcript:
        episode = Episode(row.candidates, max_turns=explores + 1)
        ids = self.renderer.prompt(self.prompts.messages(row.statement, careful=careful))
        policy = [False] * len(ids)
        note, first_response_end = "", 0
        while not episode.done:
            last = episode.explores == explores
            turn = self._turn(note, submit_call(answer) if last else EXPLORE)
            said = episode.step([Call("submit", json.dumps({"answer": answer})) if last else Call("explore", "{}")])
            response = [] if said is None else self.renderer.response(said)
            ids += [*turn, *response]
            policy += [True] * len(turn) + [False] * len(response)
            first_response_end = first_response_end or len(ids)
            note = f"{_check(row, episode.revealed)} {row.candidates[episode.revealed - 1].answer}"
        return Transcript(ids, policy, first_response_end)

    def _encode_turn(self, note: str, call: str) -> tuple[int, ...]:
        """A turn as the chat template writes an assistant's message: the note, an empty line, the call."""
        text = f"{note}\n\n{call}{END_OF_TURN}" if note else f"{call}{END_OF_TURN}"
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def transcripts(
    writer: TranscriptWriter, rows: Iterator[Row], rng: random.Random, *, careful_share: float, most_explores: int
) -> Iterator[Transcript]:
    """Transcripts without end, none with more than ``most_explores`` candidates revealed.

    Args:
        writer: Plays them.
        rows: One is used up by each transcript.
        rng: Decides which policy plays, and how often the plain one explores.
        careful_share: Share of the careful policy.
        most_explores: 1 to 8; fewer while the network is young.
    """
    for row in rows:
        if rng.random() < careful_share:
            # Where no candidate passes, the careful policy explores all of them.
            if any(row.passes) or most_explores == CANDIDATES:
                yield writer.careful(_passing_early(row, rng, most_explores))
        else:
            explores = rng.randrange(1, most_explores + 1)
            yield writer.plain(row, explores + (explores == CANDIDATES), rng)


def batches(source: Iterator[Transcript], rng: random.Random, tokens: int, pool: int = 4) -> Iterator[list[Transcript]]:
    """Batches of about ``tokens`` tokens each, padding included, of transcripts of like length in random order.

    Args:
        source: Transcripts without end.
        rng: Orders the batches.
        tokens: Size of a batch: its transcripts times its longest.
        pool: Batches filled at a time. Sorting among them keeps padding low.
    """
    while True:
        drawn: list[Transcript] = []
        total = 0
        while total < tokens * pool:
            drawn.append(next(source))
            total += len(drawn[-1].ids)
        drawn.sort(key=lambda transcript: len(transcript.ids))
        filled = list(_filled(drawn, tokens))
        rng.shuffle(filled)
        yield from filled


def _filled(ordered: list[Transcript], tokens: int) -> Iterator[list[Transcript]]:
    batch: list[Transcript] = []
    for transcript in ordered:
        if batch and (len(batch) + 1) * len(transcript.ids) > tokens:
            yield batch
            batch = []
        batch.append(transcript)
    yield batch


def _passing_early(row: Row, rng: random.Random, most_explores: int) -> Row:
    """``row`` with its candidates in another order, if need be, such that one passes within the first ``most_explores``."""
    order = list(range(CANDIDATES))
    while any(row.passes) and not any(row.passes[position] for position in order[:most_explores]):
        rng.shuffle(order)
    return Row(
        row.statement,
        row.answer,
        tuple(row.candidates[position] for position in order),
        tuple(row.passes[position] for position in order),
    )


def _check(row: Row, revealed: int) -> str:
    return "pass" if row.passes[revealed - 1] else "fail"

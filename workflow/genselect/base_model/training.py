"""The warm start's two phases of training, counted in updates and drawn from one seed.

1. *Copying.* Short strings in which a number stands after ``\\boxed{`` and is asked for later, with the loss on that copied token
   alone. Trained on whole transcripts only, the copy stays at chance for long; alone it is learnt in some fifty updates.
2. *Transcripts*, with at most one explore at first, then two, then eight. The loss is on what the policy writes, with more
   weight on the decision and on copied answers, and on answers inside later candidates, which often repeat an earlier one.

Matrices are moved by Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/), which learns to copy several times
faster here than AdamW, all else by AdamW.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

from genselect.base_model.problems import CANDIDATES, Row
from genselect.base_model.settings import WarmStartSettings
from genselect.base_model.tokenizer import number_tokens, token_id
from genselect.base_model.transcripts import Transcript, TranscriptWriter, batches, transcripts

logger = logging.getLogger("genselect")

_BOX = "\\boxed{"
_FILLER_ROWS = 30
#: Tokens between a number and its copy: so many at first, one more each update, up to so many.
_FIRST_COPY, _LONGEST_COPY = 4, 60
#: Shares of the second phase after which two, then eight explores are allowed.
_TWO_EXPLORES_FROM, _ALL_EXPLORES_FROM = 0.1, 0.25
#: Share of all updates after which the learning rate falls, and after which only the policy's own tokens count.
_FALL_FROM, _OWN_TOKENS_FROM = 0.5, 0.8
_LAST_LR = 0.02
_RISE = 5
_SECONDS_BETWEEN_LINES = 5.0


class WarmStart:
    """Trains one network.

    Args:
        network: Takes the training; its weights are 32-bit.
        tokenizer: Its tokenizer.
        writer: Plays the transcripts.
        settings: Decide it all.
    """

    def __init__(
        self,
        network: Any,
        tokenizer: PreTrainedTokenizerFast,
        writer: TranscriptWriter,
        settings: WarmStartSettings,
    ) -> None:
        self._network = network
        self._tokenizer = tokenizer
        self._writer = writer
        self._settings = settings
        self._numbers = torch.tensor(number_tokens(tokenizer))
        self._function = token_id(tokenizer, "<function=")
        named = [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]
        matrices = [weight for name, weight in named if weight.dim() == 2 and "embed" not in name]
        chosen = set(map(id, matrices))
        others = [weight for _, weight in named if id(weight) not in chosen]
        self._weights = matrices + others
        self._optimisers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=settings.matrix_lr, weight_decay=0.01),
            torch.optim.AdamW(others, lr=settings.other_lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self._progress = _Progress(settings)

    def run(self, rows: Iterator[Row]) -> None:
        """Both phases. ``rows`` must not end."""
        settings = self._settings
        rng = random.Random(f"warm start {settings.seed}")
        self._network.train()
        filler = self._filler(itertools.islice(rows, _FILLER_ROWS))
        for step, strings in enumerate(self._copy_batches(filler, rng)):
            self._update(self._copy_loss(strings), step)
        for step, batch in enumerate(self._transcript_batches(rows, rng), start=settings.copy_steps):
            self._update(self._transcript_loss(batch, step), step)
        self._network.eval()

    def _update(self, loss: Tensor, step: int) -> None:
        done = step / (self._settings.copy_steps + self._settings.steps)
        fall = 1.0 if done < _FALL_FROM else max(_LAST_LR, (1 - done) / (1 - _FALL_FROM))
        rates = (self._settings.matrix_lr, self._settings.other_lr)
        for optimiser, rate in zip(self._optimisers, rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / _RISE) * fall
            optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        for optimiser in self._optimisers:
            optimiser.step()
        self._progress.note(step, loss.item())

    def _filler(self, rows: Iterable[Row]) -> list[int]:
        """Tokens that candidates are made of, numbers and boxes apart: what stands between a number and its copy."""
        texts = [candidate.reasoning for row in rows for candidate in row.candidates]
        found = {token for text in texts for token in self._encode(text)}
        return sorted(found - set(self._numbers.tolist()) - set(self._encode(_BOX)))

    def _copy_batches(self, filler: list[int], rng: random.Random) -> Iterator[Tensor]:
        """Ids of shape (strings, length), the last of each row being the copy of an earlier number; longer from step to step."""
        numbers = self._numbers.tolist()
        shown, asked = self._encode(_BOX), self._encode("<parameter=answer>\n")
        for step in range(self._settings.copy_steps):
            between = min(_FIRST_COPY + step, _LONGEST_COPY)
            strings = []
            for _ in range(max(1, self._settings.copy_tokens_per_step // (between + 8))):
                number = rng.choice(numbers)
                words = [rng.choice(filler) for _ in range(between)]
                before = rng.randrange(between + 1) // 2
                strings.append([*words[:before], *shown, number, *words[before:], *asked, number])
            yield torch.tensor(strings)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _copy_loss(self, ids: Tensor) -> Tensor:
        hidden = self._network.model(
            input_ids=ids[:, :-1], attention_mask=torch.ones_like(ids[:, :-1])
        ).last_hidden_state
        return functional.cross_entropy(self._network.lm_head(hidden[:, -1]), ids[:, -1])

    def _transcript_batches(self, rows: Iterator[Row], rng: random.Random) -> Iterator[list[Transcript]]:
        """One batch for each update of the second phase."""
        settings = self._settings
        for most_explores, first, last in _curriculum(settings.steps):
            if last == first:
                continue
            source = transcripts(
                self._writer, rows, rng, careful_share=settings.careful_share, most_explores=most_explores
            )
            filled = batches(source, rng, settings.tokens_per_step)
            for _ in range(first, last):
                yield next(filled)

    def _transcript_loss(self, batch: Sequence[Transcript], step: int) -> Tensor:
        """Weighted cross-entropy over the tokens that count, in nats."""
        done = step / (self._settings.copy_steps + self._settings.steps)
        ids, mask, weights = self._tensors(batch, self._settings.repeated_weight if done < _OWN_TOKENS_FROM else 0.0)
        hidden = self._network.model(input_ids=ids, attention_mask=mask).last_hidden_state[:, :-1]
        counted = weights[:, 1:] > 0
        # Logits are the dearest part of so small a network: only where they count.
        losses = functional.cross_entropy(self._network.lm_head(hidden[counted]), ids[:, 1:][counted], reduction="none")
        weights = weights[:, 1:][counted]
        return (losses * weights).sum() / weights.sum()

    def _tensors(self, batch: Sequence[Transcript], repeated_weight: float) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, attention mask and loss weights, each of shape (transcripts, longest), padded on the right."""
        shape = (len(batch), max(len(transcript.ids) for transcript in batch))
        ids = torch.full(shape, int(self._tokenizer.pad_token_id))
        mask = torch.zeros(shape, dtype=torch.long)
        policy = torch.zeros(shape, dtype=torch.bool)
        later = torch.zeros(shape, dtype=torch.bool)
        for row, transcript in enumerate(batch):
            length = len(transcript.ids)
            ids[row, :length] = torch.tensor(transcript.ids)
            mask[row, :length] = 1
            policy[row, :length] = torch.tensor(transcript.policy)
            later[row, transcript.first_response_end : length] = True
        numbers = torch.isin(ids, self._numbers)
        decisions = torch.zeros_like(policy)
        decisions[:, 1:] = ids[:, :-1] == self._function
        weights = policy.float()
        weights += self._settings.decision_weight * (decisions & policy)
        weights += self._settings.answer_weight * (numbers & policy)
        weights += repeated_weight * (numbers & later & ~policy)
        return ids, mask, weights


def _curriculum(steps: int) -> list[tuple[int, int, int]]:
    """Most explores, first and last (exclusive) update, for each stage of the second phase."""
    two, all_ = int(_TWO_EXPLORES_FROM * steps), int(_ALL_EXPLORES_FROM * steps)
    return [(1, 0, two), (2, two, all_), (CANDIDATES, all_, steps)]


class _Progress:
    """A line every few seconds: phase, update, loss, time left."""

    def __init__(self, settings: WarmStartSettings) -> None:
        self._settings = settings
        self._start = self._shown = time.monotonic()
        self._total = self._cost(settings.copy_steps + settings.steps)

    def _cost(self, updates: int) -> int:
        copying = min(updates, self._settings.copy_steps)
        return copying * self._settings.copy_tokens_per_step + (updates - copying) * self._settings.tokens_per_step

    def note(self, step: int, loss: float) -> None:
        now = time.monotonic()
        updates = step + 1
        last = updates in (self._settings.copy_steps, self._settings.copy_steps + self._settings.steps)
        if now - self._shown < _SECONDS_BETWEEN_LINES and not last:
            return
        self._shown = now
        left = (now - self._start) * (self._total / self._cost(updates) - 1)
        if updates <= self._settings.copy_steps:
            where = f"copying, update {updates} of {self._settings.copy_steps}"
        else:
            where = f"transcripts, update {updates - self._settings.copy_steps} of {self._settings.steps}"
        logger.info("%s: loss %.3f nats, %.0f s so far, about %.0f s left", where, loss, now - self._start, left)

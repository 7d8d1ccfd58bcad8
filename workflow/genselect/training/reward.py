"""The verdict on a submitted answer during training: the labels first, then the cascade."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from genselect.answers import Cascade, identical, normal_form
from genselect.episode import CachedCandidate


@dataclass(frozen=True, slots=True)
class Ruling:
    """The verdict on a submission."""

    correct: bool
    """False also when there is no verdict."""
    source: str
    """``label`` when a labelled candidate has the same answer, else the cascade's stage; ``none`` when there is no verdict."""


class VerdictMaker:
    """Rules on submissions, one process's worth of it.

    The first stage reuses labels: a submission equal to a candidate's box, as text or in normal form, has that candidate's
    label. So the verdict on what the policy copies is the verdict it was labelled with, and few submissions go further.
    """

    def __init__(self, timeout_s: float = 5.0) -> None:
        self._timeout_s = timeout_s
        self._cascade: Cascade | None = None
        # One thread: the cascade's worker process answers one question at a time, and the event loop must not wait for it.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="verdict")
        self._known: dict[tuple[str, str], Ruling] = {}

    async def rule(self, expected: str, submitted: str, candidates: Sequence[CachedCandidate]) -> Ruling:
        """The verdict on ``submitted`` where ``expected`` is right."""
        for candidate in candidates:
            if identical(candidate.answer, submitted) or normal_form(candidate.answer) == normal_form(submitted):
                return Ruling(candidate.is_correct, "label")
        pair = (expected, submitted)
        if pair not in self._known:
            self._known[pair] = await asyncio.get_running_loop().run_in_executor(self._thread, self._decide, pair)
        return self._known[pair]

    def _decide(self, pair: tuple[str, str]) -> Ruling:
        if self._cascade is None:
            self._cascade = Cascade(rule=True, timeout_s=self._timeout_s, workers=1).__enter__()
        verdict = self._cascade.decide(*pair)
        if verdict is None or not verdict.judged:
            return Ruling(False, "none")
        return Ruling(verdict.correct, verdict.source)

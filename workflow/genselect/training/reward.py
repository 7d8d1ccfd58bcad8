"""The verdict on a submitted answer during training: the labels first, then the cascade, the judge last if one can be asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from genselect.answers import Cascade, identical, normal_form
from genselect.config import Judge
from genselect.episode import CachedCandidate
from genselect.errors import GenselectError
from genselect.judge.client import ChatClient, Reply
from genselect.judge.prompt import JudgePrompt
from genselect.judge.verdict import parse_verdict

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ruling:
    """The verdict on a submission."""

    correct: bool
    """False also when there is no verdict."""
    source: str
    """``label`` when a labelled candidate has the same answer, else the cascade's stage or ``judge``; ``none`` when there is no
    verdict."""


class VerdictMaker:
    """Rules on submissions, one process's worth of it.

    The first stage reuses labels: a submission equal to a candidate's box, as text or in normal form, has that candidate's
    label. So the verdict on what the policy copies is the verdict it was labelled with, and few submissions go further. Of those
    the cascade accepts what it can; the rest goes to the judge's endpoints, or, without any, is left to the symbolic reader.

    Args:
        judge: The judge of the labels. Only ``kind: endpoints`` is asked here: a training run starts no server of its own.
        timeout_s: Seconds for one pair of the symbolic stage.
    """

    def __init__(self, judge: Judge | None = None, timeout_s: float = 5.0) -> None:
        self._timeout_s = timeout_s
        self._judge = judge if judge is not None and judge.kind == "endpoints" else None
        self._prompt = JudgePrompt.load(self._judge.prompt) if self._judge else None
        self._cascade: Cascade | None = None
        # One thread: the cascade's worker process answers one question at a time, and the event loop must not wait for it.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="verdict")
        self._known: dict[tuple[str, str, str], Ruling] = {}

    async def rule(
        self, expected: str, submitted: str, candidates: Sequence[CachedCandidate], problem: str = ""
    ) -> Ruling:
        """The verdict on ``submitted`` where ``expected`` is right; ``problem`` is for the judge to read."""
        for candidate in candidates:
            if identical(candidate.answer, submitted) or normal_form(candidate.answer) == normal_form(submitted):
                return Ruling(candidate.is_correct, "label")
        question = (problem, expected, submitted)
        if question not in self._known:
            ruling = await asyncio.get_running_loop().run_in_executor(self._thread, self._decide, expected, submitted)
            if ruling is None:
                ruling = await self._ask(*question)
                if ruling.source == "none":
                    return ruling  # the judge may answer the next time
            self._known[question] = ruling
        return self._known[question]

    def _decide(self, expected: str, submitted: str) -> Ruling | None:
        """None when the judge has to be asked."""
        if self._cascade is None:
            self._cascade = Cascade(rule=self._judge is None, timeout_s=self._timeout_s, workers=1).__enter__()
        verdict = self._cascade.decide(expected, submitted)
        if verdict is None:
            return None if self._judge else Ruling(False, "none")
        return Ruling(verdict.correct, verdict.source) if verdict.judged else Ruling(False, "none")

    async def _ask(self, problem: str, expected: str, submitted: str) -> Ruling:
        assert self._judge is not None
        assert self._prompt is not None
        assert self._judge.model is not None
        messages = self._prompt.messages(problem, expected, submitted)
        replies: list[Reply] = []
        # A client for one question: so few come here that the connection's price does not count.
        settings = self._judge.client.model_copy(update={"concurrency": 1})
        try:
            async with ChatClient(self._judge.model, self._judge.endpoints, self._judge.sampling, settings) as client:
                await client.ask_all([problem], lambda item: messages, lambda item, reply: replies.append(reply))
        except GenselectError as error:
            logger.warning("no verdict on %r: %s", submitted, error)
        text = replies[0].text if replies else None
        correct = parse_verdict(text) if text is not None else None
        return Ruling(False, "none") if correct is None else Ruling(correct, "judge")

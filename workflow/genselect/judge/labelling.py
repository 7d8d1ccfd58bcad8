"""Label every candidate of a merge: cascade, then the judge for what is left, then one line a candidate.

The job may be killed at any time and started again: whatever the journal holds is not asked again, and the file that comes out
is the same, byte for byte, as that of a job left in peace.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from genselect.answers import Cascade, Verdict
from genselect.config import Config
from genselect.errors import GenselectError
from genselect.formats import Label, write_jsonl
from genselect.judge.client import ChatClient, Reply
from genselect.judge.counts import Counts, count
from genselect.judge.fingerprint import judge_fingerprint
from genselect.judge.interrupt import interruptible, run_async
from genselect.judge.journal import Journal, Record, content_key
from genselect.judge.pairs import (
    AnswerPair,
    ProblemAnswers,
    Question,
    Shard,
    audit_questions,
    open_questions,
    read_answers,
)
from genselect.judge.progress import Progress
from genselect.judge.prompt import JudgePrompt
from genselect.judge.server import VllmServer
from genselect.judge.verdict import parse_verdict, reasoning_of
from genselect.provenance import check_seal, write_seal
from genselect.provenance.gpu_watch import GPU_WATCH, gpu_watch

#: ``reasoning`` of a label without a verdict.
UNAVAILABLE = "The judge did not answer."
CUT = "The judge's reply was cut at both token caps."
UNPARSABLE = "The judge's reply holds no verdict"

#: Pairs handed to the cascade at a time; the journal is written in between.
CHUNK = 1024

_WATCH_S = 1.0

logger = logging.getLogger(__name__)


def label_candidates(
    merged: Path | str,
    config: Config,
    *,
    journal: Path | str,
    output: Path | str,
    shard: Shard | None = None,
    reuse: Path | str | None = None,
) -> Counts:
    """Write and seal ``output``, the labels of the share's candidates, sorted by (id, index); returns the seal's counts.

    Args:
        merged: ``merged.jsonl``.
        config: Its ``judge`` section decides how.
        journal: Folder of this job's journal, ``progress.json`` and server log. One job at a time.
        output: ``labels.jsonl``.
        shard: Share of the problems; all of them when None.
        reuse: Folder below which other journals lie, whose verdicts need not be asked for again.

    Raises:
        GenselectError: Bad input, no judge, or a judge that is gone; what was judged is in the journal.
        SystemExit: After SIGTERM (75) or SIGINT (130), likewise.
    """
    started = datetime.datetime.now(datetime.UTC)
    shard, folder = shard or Shard(), Path(journal)
    check_seal(merged)
    job = _Job(config, read_answers(merged, shard), folder)
    how_to_go_on = f"Start the same command again to go on: the verdicts so far are in {folder}."
    with interruptible(how_to_go_on), Journal(folder) as job.journal, job.progress(f"labels {shard}") as job.shown:
        if reuse is not None and (known := job.journal.borrow(reuse)):
            logger.info("%d records of other journals under %s can be used", known, reuse)
        owned = config.judge.kind == "vllm"  # with endpoints the cards are somebody else's
        with gpu_watch(folder / GPU_WATCH) if owned else contextlib.nullcontext():
            counts = job.run()
        write_jsonl(output, (label.as_json() for label in job.labels()))
        write_seal(
            output,
            kind="labels",
            counts=counts,
            outputs=[output],
            inputs=[merged],
            started=started,
            fingerprints={"judge": job.fingerprint},
            config={"judge": config.judge.identity(), "shard": str(shard)},
        )
    return counts


class _Job:
    """One share on its way from answers to verdicts."""

    journal: Journal
    shown: Progress

    def __init__(self, config: Config, problems: list[ProblemAnswers], folder: Path) -> None:
        self.judge = config.judge
        self.fingerprint = judge_fingerprint(config)
        self._prompt = None if self.judge.kind == "rule" else JudgePrompt.load(self.judge.prompt)
        self._problems = problems
        self._folder = folder
        # In order of first appearance, with the number of problems that have it: "7 or 8?" is read once.
        self._pairs = Counter(pair for problem in problems for pair in problem.pairs())
        self._verdicts: dict[tuple[str, str | None], Verdict] = {}

    def progress(self, what: str) -> Progress:
        return Progress(self._folder / "progress.json", self._pairs.total(), what=what)

    def run(self) -> Counts:
        """Reach a verdict, or a reason for none, on every pair; returns the counts."""
        with contextlib.ExitStack() as stack:
            # vLLM takes minutes to load: it does so while the cascade works.
            server = stack.enter_context(self._server()) if self._may_need_a_server() else None
            decided = self._cascade()
            questions = open_questions(self._problems, decided, self.fingerprint) if self._prompt else []
            audits = self._audits(decided)
            self._ask([*questions, *audits], server)
        asked = [(question, self.journal.get("judge", question.key)) for question in questions]
        self._verdicts = _fan_out(self._problems, decided, asked)
        found = [(question, self.journal.get("judge", question.key)) for question in audits]
        return count(self._problems, self._verdicts, asked, found)

    def labels(self) -> Iterator[Label]:
        """One a candidate, sorted by (id, index)."""
        for problem in sorted(self._problems, key=lambda problem: problem.id):
            for index, boxed in enumerate(problem.boxed):
                verdict = self._verdicts[problem.id, boxed]
                yield Label(
                    id=problem.id,
                    index=index,
                    correct=verdict.judged and verdict.correct,
                    judged=verdict.judged,
                    reasoning=verdict.reasoning,
                    finish_reason=verdict.finish_reason,
                    source=verdict.source,
                )

    # Stages 1 and 2

    def _cascade(self) -> dict[AnswerPair, Verdict | None]:
        """What the cascade says about each pair; its answers are journaled too, since reading takes its time."""
        settings = self.judge.cascade
        decided = self._known()
        todo = [pair for pair in self._pairs if pair not in decided]
        self.shown.begin("cascade", done=self._settled(decided))
        if not todo:
            return decided
        with Cascade(
            identical=settings.identical,
            symbolic=settings.symbolic,
            rule=self.judge.kind == "rule",
            timeout_s=settings.symbolic_timeout_s,
            workers=settings.symbolic_workers,
        ) as cascade:
            for chunk in _batched(todo, CHUNK):
                found = cascade.decide_many(chunk)
                for pair, verdict in found.items():
                    self.journal.append("cascade", self._cascade_key(pair), verdict=_plain(verdict))
                decided.update(found)
                self.shown.advance(self._settled(found))
        return decided

    def _settled(self, decided: Mapping[AnswerPair, Verdict | None]) -> int:
        return sum(self._pairs[pair] for pair, verdict in decided.items() if verdict is not None)

    def _known(self) -> dict[AnswerPair, Verdict | None]:
        """What the journal holds of the cascade's answers."""
        records = ((pair, self.journal.get("cascade", self._cascade_key(pair))) for pair in self._pairs)
        return {pair: Verdict(**record["verdict"]) if record["verdict"] else None for pair, record in records if record}

    def _cascade_key(self, pair: AnswerPair) -> str:
        # A pair without a box is kept apart from one with an empty box.
        return content_key("", pair[0], "" if pair[1] is None else f"={pair[1]}", self.fingerprint)

    # Stage 3

    def _audits(self, decided: Mapping[AnswerPair, Verdict | None]) -> list[Question]:
        settings = self.judge.cascade
        if self._prompt is None:
            return []
        return audit_questions(
            self._problems, decided, self.fingerprint, fraction=settings.audit_fraction, seed=settings.audit_seed
        )

    def _may_need_a_server(self) -> bool:
        """False when the cascade's answers are all in the journal, and so are the judge's."""
        if self.judge.kind != "vllm":
            return False
        decided = self._known()
        if len(decided) < len(self._pairs):
            return True
        questions = [*open_questions(self._problems, decided, self.fingerprint), *self._audits(decided)]
        return any(self.journal.get("judge", question.key) is None for question in questions)

    def _server(self) -> VllmServer:
        return VllmServer(self.judge, self._folder / "server.log")

    def _ask(self, questions: Sequence[Question], server: VllmServer | None) -> None:
        """Ask what the journal does not hold, and record each reply as it comes."""
        todo = [question for question in questions if self.journal.get("judge", question.key) is None]
        if not questions:
            return
        audits = sum(not question.answers_for for question in questions)
        waiting = sum(len(question.answers_for) or 1 for question in todo)
        total = self._pairs.total() + audits
        self.shown.begin("judge", done=total - waiting, judged=len(questions) - len(todo), further=audits)
        if not todo:
            return
        if server:
            server.wait_until_ready()
        run_async(lambda: self._ask_async(todo, server))

    async def _ask_async(self, questions: Sequence[Question], server: VllmServer | None) -> None:
        prompt, judge = self._prompt, self.judge
        assert prompt is not None
        urls = [server.url] if server else judge.endpoints
        async with ChatClient(str(judge.model), urls, judge.sampling, judge.client) as client:
            for warning in await client.check():
                logger.warning("%s", warning)
            asking = asyncio.create_task(
                client.ask_all(
                    questions,
                    lambda question: prompt.messages(question.problem, question.expected, question.predicted),
                    self._record,
                )
            )
            try:
                while not asking.done():
                    await asyncio.wait([asking], timeout=_WATCH_S)
                    if server and not asking.done():
                        server.check()
                await asking
            except GenselectError:
                if server:
                    await asyncio.sleep(
                        _WATCH_S
                    )  # a server that dies breaks its connections a moment before it is gone
                    server.check()
                raise
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            if client.retries:
                logger.info("%d tries failed and were made again", client.retries)

    def _record(self, question: Question, reply: Reply) -> None:
        # No reply is not final: a later start asks again. A cut or unparsable reply is what this judge says to this question.
        if reply.text is not None:
            cut = reply.finish_reason == "length"
            self.journal.append(
                "judge",
                question.key,
                verdict=None if cut else parse_verdict(reply.text),
                reasoning=reasoning_of(reply.text),
                finish_reason=reply.finish_reason,
                calls=reply.calls,
            )
        self.shown.advance(len(question.answers_for) or 1, judged=1)


def _fan_out(
    problems: Sequence[ProblemAnswers],
    decided: Mapping[AnswerPair, Verdict | None],
    asked: Sequence[tuple[Question, Record | None]],
) -> dict[tuple[str, str | None], Verdict]:
    """The verdict on each pair of each problem."""
    judged = {pair: _verdict(record) for question, record in asked for pair in question.answers_for}
    return {
        (problem.id, boxed): decided[expected, boxed] or judged[problem.id, boxed or ""]
        for problem in problems
        for expected, boxed in problem.pairs()
    }


def _verdict(record: Record | None) -> Verdict:
    """What a judge's reply means for a label."""
    if record is None:
        return Verdict(False, False, "none", UNAVAILABLE)
    if record["finish_reason"] == "length":
        return Verdict(False, False, "none", CUT, "length")
    if record["verdict"] is None:
        return Verdict(False, False, "none", f"{UNPARSABLE}: {record['reasoning']}")
    return Verdict(record["verdict"], True, "judge", record["reasoning"])


def _plain(verdict: Verdict | None) -> dict[str, Any] | None:
    return None if verdict is None else vars(verdict)


def _batched(items: Sequence[AnswerPair], size: int) -> Iterator[Sequence[AnswerPair]]:
    return (items[start : start + size] for start in range(0, len(items), size))

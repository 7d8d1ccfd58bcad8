"""The numbers in the seal of a ``labels.jsonl``. They depend on the answers, the settings and the verdicts, never on how often
the job was stopped; those of shards add up to those of the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from genselect.answers import Verdict
from genselect.formats import SOURCES
from genselect.judge.journal import Record
from genselect.judge.pairs import ProblemAnswers, Question

Counts = dict[str, Any]


def count(
    problems: Iterable[ProblemAnswers],
    verdicts: Mapping[tuple[str, str | None], Verdict],
    asked: Iterable[tuple[Question, Record | None]],
    audits: Iterable[tuple[Question, Record | None]],
) -> Counts:
    """Tally one share.

    Args:
        problems: The share.
        verdicts: By problem id and boxed answer.
        asked: Each question with its record in the journal, None when there was no reply.
        audits: The same for the audited pairs.
    """
    candidates: Counter[str] = Counter()
    pairs: Counter[str] = Counter()
    no_verdict: Counter[str] = Counter()
    numbers: Counter[str] = Counter(problems=0, candidates=0, judged=0, correct=0, distinct_pairs=0)
    for problem in problems:
        numbers["problems"] += 1
        for boxed, repeats in Counter(problem.boxed).items():
            verdict = verdicts[problem.id, boxed]
            numbers["candidates"] += repeats
            numbers["distinct_pairs"] += boxed is not None
            numbers["judged"] += repeats * verdict.judged
            numbers["correct"] += repeats * (verdict.judged and verdict.correct)
            candidates[verdict.source] += repeats
            pairs[verdict.source] += boxed is not None
            if not verdict.judged:
                # The reason's kind; what follows the colon is this reply's own words.
                no_verdict[verdict.reasoning.partition(":")[0]] += repeats
    asked, audits = list(asked), list(audits)
    return {
        **numbers,
        "by_source": {
            "candidates": {source: candidates[source] for source in SOURCES},
            "pairs": {source: pairs[source] for source in SOURCES},
        },
        **_calls(asked, audits),
        "calls_saved": {
            "identical": candidates["identical"],
            "symbolic": candidates["symbolic"],
            "shared_pair": _answered_for(problems, asked) - len(asked),
        },
        "no_verdict": dict(sorted(no_verdict.items())),
    }


def add(parts: Iterable[Counts]) -> Counts:
    """The counts of a whole from those of its shards."""
    total: Counts = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, Mapping):
                total[name] = add([total.get(name, {}), dict(value)])
            else:
                total[name] = total.get(name, 0) + value
    return total


def _calls(asked: list[tuple[Question, Record | None]], audits: list[tuple[Question, Record | None]]) -> Counts:
    replies = [record for _, record in (*asked, *audits) if record]
    audited = [record for _, record in audits if record]
    return {
        "judge_calls": sum(record["calls"] for record in replies),
        "judge_second_cap_calls": sum(record["calls"] - 1 for record in replies),
        "audited": len(audited),
        "audit_calls": sum(record["calls"] for record in audited),
        "audit_disagreements": sum(record["verdict"] is False for record in audited),
        "audit_no_verdict": sum(record["verdict"] is None for record in audited),
    }


def _answered_for(problems: Iterable[ProblemAnswers], asked: list[tuple[Question, Record | None]]) -> int:
    """Candidates that take their verdict from a question."""
    members = {pair for question, _ in asked for pair in question.answers_for}
    return sum((problem.id, boxed) in members for problem in problems for boxed in problem.boxed)

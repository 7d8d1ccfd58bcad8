"""What there is to judge: the answers of a merge, as distinct pairs, and the questions that remain for the judge."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from genselect.answers import Verdict, normal_form
from genselect.errors import GenselectError
from genselect.formats import read_problems
from genselect.judge.journal import content_key

_END_ZEROS = re.compile(r"(?<![\d.,])(\d+)\.(\d*?)(0+)(?![\d.,])", re.ASCII)

#: Expected answer and boxed answer.
AnswerPair = tuple[str, str | None]


@dataclass(frozen=True)
class Shard:
    """One of ``of`` equal shares of the problems: those whose position, from 0, leaves ``number - 1`` when divided by ``of``."""

    number: int = 1
    """From 1."""
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """``K/N`` with K from 1 to N.

        Raises:
            GenselectError: It is not of that form.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise GenselectError(
                f"--shard {text}: a shard is K/N with K from 1 to N", "The second of four shares is --shard 2/4."
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def holds(self, position: int) -> bool:
        """Whether the problem at ``position`` belongs to this share."""
        return position % self.of == self.number - 1


@dataclass(frozen=True, slots=True)
class ProblemAnswers:
    """A problem without its candidates' texts, which no judge reads."""

    id: str
    problem: str
    answer: str
    """Expected."""
    boxed: tuple[str | None, ...]
    """Of each candidate, by its index."""

    def pairs(self) -> Iterator[AnswerPair]:
        """Distinct pairs, in order of first appearance."""
        return ((self.answer, boxed) for boxed in dict.fromkeys(self.boxed))


@dataclass(slots=True)
class Question:
    """One thing to ask the judge."""

    key: str
    """Content hash of the question and the judge fingerprint: its name in the journal."""
    problem: str
    expected: str
    predicted: str
    answers_for: list[tuple[str, str]] = field(default_factory=list)
    """(problem id, boxed answer) of the pairs that take its verdict; empty for an audit."""


def read_answers(merged: Path | str, shard: Shard) -> list[ProblemAnswers]:
    """The share's problems, in the file's order; candidates' texts are dropped line by line.

    Raises:
        GenselectError: A line is not a problem, or an id occurs twice in the file.
    """
    kept: list[ProblemAnswers] = []
    seen: set[str] = set()
    for position, problem in enumerate(read_problems(merged)):
        if problem.id in seen:
            raise GenselectError(f"{merged}: the id {problem.id} occurs twice", "Merge the shards again.")
        seen.add(problem.id)
        if shard.holds(position):
            boxed = tuple(candidate.boxed for candidate in problem.candidates)
            kept.append(ProblemAnswers(problem.id, problem.problem, problem.answer, boxed))
    return kept


def open_questions(
    problems: Iterable[ProblemAnswers], decided: Mapping[AnswerPair, Verdict | None], fingerprint: str
) -> list[Question]:
    """The pairs left undecided, problem by problem (the judge's server then shares their prefix), each asked once.

    Answers of one problem with the same normal form, or the same but for zeros that end a decimal, are one answer written in
    several ways: the first stands for all.
    """
    questions: dict[str, Question] = {}
    for problem in problems:
        first: dict[str, Question] = {}
        for expected, boxed in problem.pairs():
            if boxed is None or decided[expected, boxed] is not None:
                continue
            form = _form(boxed)
            if form not in first:
                key = content_key(problem.problem, expected, boxed, fingerprint)
                first[form] = questions.setdefault(key, Question(key, problem.problem, expected, boxed))
            first[form].answers_for.append((problem.id, boxed))
    return list(questions.values())


def audit_questions(
    problems: Iterable[ProblemAnswers],
    decided: Mapping[AnswerPair, Verdict | None],
    fingerprint: str,
    *,
    fraction: float,
    seed: int,
) -> list[Question]:
    """A sample of the pairs accepted without the judge. Chosen by content: adding a problem changes no other choice."""
    if not fraction:
        return []
    chosen: dict[str, Question] = {}
    for problem in problems:
        for expected, boxed in problem.pairs():
            verdict = decided[expected, boxed]
            if boxed is None or verdict is None or verdict.source not in {"identical", "symbolic"}:
                continue
            if _uniform(seed, problem.problem, expected, boxed) < fraction:
                key = content_key(problem.problem, expected, boxed, fingerprint)
                chosen.setdefault(key, Question(key, problem.problem, expected, boxed))
    return list(chosen.values())


def _form(boxed: str) -> str:
    return _END_ZEROS.sub(_without_zeros, normal_form(boxed))


def _without_zeros(match: re.Match[str]) -> str:
    whole, decimals, zeros = match.groups()
    if len(decimals) + len(zeros) == 3:
        return match[0]  # `1.000` may be a thousand, with a point between the thousands
    return f"{whole}.{decimals}" if decimals else str(whole)


def _uniform(seed: int, *content: str) -> float:
    """A number in [0, 1) that is a function of its arguments."""
    digest = hashlib.blake2b("\0".join([str(seed), *content]).encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64

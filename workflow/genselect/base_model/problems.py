"""Fresh problems for the warm start: the distribution of the miniature's rows, none of their problems.

They come from the generator of the shards, with seeds from a range that shards may not use. Different seeds can still draw
the same few numbers, so problems that ask what a problem to stay away from asks are left out as well: the held-out set
cannot leak into the base model.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from genselect.answers import extract_boxed
from genselect.dataset.miniature import MiniProblem, generate_problems
from genselect.episode import CachedCandidate
from genselect.errors import GenselectError

#: Seeds of the generator from here on belong to the base model.
SEEDS_BEGIN = 10**12
CANDIDATES = 8
# Seeds a stream has to itself; each makes this many problems, as many of each count of right candidates.
_SEEDS_A_STREAM = 10**6
_PROBLEMS_A_SEED = 70


@dataclass(frozen=True, slots=True)
class Row:
    """A problem with its eight candidates, in the order the environment reveals them."""

    statement: str
    answer: str
    candidates: tuple[CachedCandidate, ...]
    passes: tuple[bool, ...]
    """What each candidate's self-check says."""


def shard_statements(seed: int, problems: int) -> frozenset[str]:
    """Statements of the problems in the shards of ``dataset.generated``.

    Raises:
        GenselectError: The shards' seed lies in the base model's range.
    """
    if abs(seed) >= SEEDS_BEGIN - 1:
        raise GenselectError(
            f"dataset.generated.seed is {seed}, and seeds from {SEEDS_BEGIN - 1} on belong to the base model's warm start",
            "Take a smaller seed for the shards.",
        )
    # The shards hold a tenth more, of types that the merge drops.
    return frozenset(problem.statement for problem in generate_problems(seed, problems + max(2, problems // 10)))


def evaluation_rows(seed: int, count: int, keep_away: Iterable[str]) -> list[Row]:
    """``count`` rows to evaluate the base model on."""
    return list(itertools.islice(_rows(2 * seed + 1, keep_away), count))


def training_rows(seed: int, keep_away: Iterable[str]) -> Iterator[Row]:
    """Rows without end, for transcripts. Problems that ask what one of ``keep_away`` asks are left out."""
    return _rows(2 * seed, keep_away)


def asks(statement: str) -> str:
    """What a statement asks, without its wording: numbers and signs. Two statements that ask the same count as one problem."""
    return re.sub(r"[^0-9+*|()-]", "", statement)


def _rows(stream: int, keep_away: Iterable[str]) -> Iterator[Row]:
    away = {asks(statement) for statement in keep_away}
    for block in itertools.count():
        seed = SEEDS_BEGIN + stream * _SEEDS_A_STREAM + block
        rng = random.Random(f"rows of the base model {seed}")
        problems = generate_problems(seed, _PROBLEMS_A_SEED)
        rng.shuffle(problems)
        for problem in problems:
            if problem.kind == "integer" and asks(problem.statement) not in away:
                row = _row(problem, rng)
                if 1 <= sum(candidate.is_correct for candidate in row.candidates) < CANDIDATES:
                    yield row


def _row(problem: MiniProblem, rng: random.Random) -> Row:
    """Eight of the problem's candidates, drawn as ``build_rows`` draws them."""
    drawn = rng.sample(problem.candidates, CANDIDATES)
    candidates = tuple(
        CachedCandidate(str(extract_boxed(candidate.text)), candidate.text, candidate.correct) for candidate in drawn
    )
    return Row(problem.statement, problem.answer, candidates, tuple(candidate.passes for candidate in drawn))


def mean_candidate_accuracy(rows: Sequence[Row]) -> float:
    """Share of correct candidates: what submitting a random one gives."""
    return sum(candidate.is_correct for row in rows for candidate in row.candidates) / (CANDIDATES * len(rows))


def majority_accuracy(rows: Sequence[Row]) -> float:
    """Share of rows whose most frequent answer is right; ties count by their share."""
    total = 0.0
    for row in rows:
        answers = [candidate.answer for candidate in row.candidates]
        most = max(map(answers.count, answers))
        leaders = {answer for answer in answers if answers.count(answer) == most}
        total += (row.answer in leaders) / len(leaders)
    return total / len(rows)


def first_pass_accuracy(rows: Sequence[Row]) -> float:
    """Share of rows on which the first candidate that passes its check is right (the last one where none passes)."""
    return sum(row.candidates[first_pass(row)].is_correct for row in rows) / len(rows)


def first_pass(row: Row) -> int:
    """Position of the first candidate that passes its check, of the last one where none does."""
    return next((position for position, passed in enumerate(row.passes) if passed), CANDIDATES - 1)

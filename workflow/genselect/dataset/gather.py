"""Read shards in order and note, for each problem, its statement, expected answers, distinct candidates and judgments.

Memory holds a 16-byte hash for each distinct candidate; the texts go to a spool file. What two runs of shards hold can be joined.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from xxhash import xxh3_128_digest

from genselect.dataset.prompt import Refusal, raw_judgment, regular_problem, split_batch, split_prompt
from genselect.dataset.shards import COLUMNS, Shard, read_batches, string_buffers
from genselect.dataset.spool import SpoolPart, SpoolWriter

__all__ = ["SAMPLES", "SAMPLE_CHARS", "Entry", "Gathered", "gather"]

#: Samples kept for a person to look at, for each reason of refusal, and how much of each.
SAMPLES, SAMPLE_CHARS = 5, 300
#: A reply ends with its judgment.
_JUDGMENT_BYTES = 64


@dataclass(slots=True)
class Entry:
    """What is known of one problem. Candidates are named by the hash of their text."""

    statement: bytes
    answers: dict[str, int]
    """Rows by expected answer; the first one counts."""
    pass_rate: str
    source: str
    candidates: dict[bytes, int] = field(default_factory=dict)
    """Spool entry of each, in order of first appearance."""
    selected: dict[bytes, int] = field(default_factory=dict)
    """Rows whose ``Judgment:`` chose it."""
    unreadable: int = 0
    """Rows whose judgment names no solution of theirs."""


@dataclass
class Gathered:
    """What a run of shards holds."""

    problems: dict[bytes, Entry] = field(default_factory=dict)
    spools: list[SpoolPart] = field(default_factory=list)
    rows_read: int = 0
    rows_kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    solutions: int = 0
    within_prompt: int = 0
    kept_by_shard: list[int] = field(default_factory=list)

    def refuse(self, reason: Refusal, shard: Shard, row: int, text: bytes) -> None:
        """Count a row that cannot be used, and keep the first few to look at."""
        self.refusals[reason.value] += 1
        samples = self.samples.setdefault(reason.value, [])
        if len(samples) < SAMPLES:
            # Four bytes a character at most; what the cut leaves of a last one is dropped.
            shown = text[: 4 * SAMPLE_CHARS].decode(errors="ignore")[:SAMPLE_CHARS]
            samples.append({"shard": shard.path.name, "row": row, "text": shown})

    def absorb(self, later: Gathered) -> None:
        """Add what the shards right after these hold, as if they had been read here."""
        base = sum(map(len, self.spools))
        self.spools += later.spools
        for key, entry in later.problems.items():
            known = self.problems.get(key)
            if known is None:
                entry.candidates = {digest: place + base for digest, place in entry.candidates.items()}
                self.problems[key] = entry
                continue
            for digest, place in entry.candidates.items():
                known.candidates.setdefault(digest, place + base)
            for answer, rows in entry.answers.items():
                known.answers[answer] = known.answers.get(answer, 0) + rows
            for digest, rows in entry.selected.items():
                known.selected[digest] = known.selected.get(digest, 0) + rows
            known.unreadable += entry.unreadable
        for name in ("rows_read", "rows_kept", "solutions", "within_prompt"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.dropped.update(later.dropped)
        self.refusals.update(later.refusals)
        self.kept_by_shard += later.kept_by_shard
        for reason, samples in later.samples.items():
            self.samples[reason] = (self.samples.get(reason, []) + samples)[:SAMPLES]


def gather(shards: list[Shard], spool_path: Path, problem_types: frozenset[str]) -> Gathered:
    """Read ``shards`` in order, setting candidate texts aside in ``spool_path``."""
    gathered = Gathered()
    with SpoolWriter(spool_path) as spool:
        for shard in shards:
            before = gathered.rows_kept
            for first, batch in read_batches(shard):
                rows = _rows_of_type(gathered, shard, first, batch, problem_types)
                _take_rows(gathered, spool, shard, first, batch, rows)
            gathered.kept_by_shard.append(gathered.rows_kept - before)
        gathered.spools.append(spool.part)
    return gathered


def _rows_of_type(
    gathered: Gathered, shard: Shard, first: int, batch: pa.RecordBatch, problem_types: frozenset[str]
) -> list[int]:
    """Positions in ``batch`` of the rows to parse: of a kept type, and without a null."""
    gathered.rows_read += batch.num_rows
    kinds = batch.column("problem_type").to_pylist()
    rows = [row for row, kind in enumerate(kinds) if kind in problem_types]
    if len(rows) < len(kinds):
        gathered.dropped.update(kind for kind in kinds if kind is not None and kind not in problem_types)
    nullable = [batch.column(name) for name in COLUMNS if batch.column(name).null_count]
    if not nullable:
        return rows
    bad = {row for column in nullable for row, null in enumerate(column.is_null().to_pylist()) if null}
    wanted = set(rows) | {row for row, kind in enumerate(kinds) if kind is None}
    for row in sorted(bad & wanted):
        gathered.refuse(Refusal.NULL_VALUE, shard, first + row, (batch.column("problem")[row].as_py() or "").encode())
    return [row for row in rows if row not in bad]


def _take_rows(
    gathered: Gathered, spool: SpoolWriter, shard: Shard, first: int, batch: pa.RecordBatch, rows: list[int]
) -> None:
    """Parse ``rows`` of ``batch`` and add what is new. Some tens of microseconds a row: this is the merge's inner loop."""
    if not rows:
        return
    data, offsets = string_buffers(batch.column("problem"))
    split = split_batch(data, offsets)
    prompts, at = data.data, offsets.tolist()
    replies, replies_at = string_buffers(batch.column("generated_solution"))
    judgments = _judgments(replies.data, replies_at.tolist())
    answers = batch.column("expected_answer").to_pylist()
    problems = gathered.problems
    for row in rows:
        head, begin, end = split.heads[row], split.first[row], split.first[row + 1]
        statement = regular_problem(bytes(prompts[at[row] : head]), end - begin) if head >= 0 else None
        texts: Sequence[bytes | memoryview]
        if statement is not None:
            texts = [
                prompts[start:stop] for start, stop in zip(split.starts[begin:end], split.ends[begin:end], strict=True)
            ]
        else:
            prompt = bytes(prompts[at[row] : at[row + 1]])
            parsed = split_prompt(prompt)
            if isinstance(parsed, Refusal):
                gathered.refuse(parsed, shard, first + row, prompt)
                continue
            statement, texts = parsed.problem, parsed.solutions
        answer = answers[row]
        if not answer.strip():
            gathered.refuse(Refusal.NO_ANSWER, shard, first + row, bytes(prompts[at[row] : at[row + 1]]))
            continue
        key = xxh3_128_digest(statement)
        entry = problems.get(key)
        if entry is None:
            pass_rate, source = (batch.column(name)[row].as_py() for name in ("pass_rate_72b_tir", "problem_source"))
            entry = problems[key] = Entry(statement, {}, pass_rate, source)
        entry.answers[answer] = entry.answers.get(answer, 0) + 1
        digests = [xxh3_128_digest(text) for text in texts]
        candidates = entry.candidates
        for digest, text in zip(digests, texts, strict=True):
            if digest not in candidates:
                candidates[digest] = spool.add(text)
        number = judgments[row]
        # The number is list.index of the text, so the solution at that position is the one that was meant.
        if number is None or number >= len(digests):
            entry.unreadable += 1
        else:
            entry.selected[digests[number]] = entry.selected.get(digests[number], 0) + 1
        gathered.rows_kept += 1
        gathered.solutions += len(digests)
        gathered.within_prompt += len(digests) - len(set(digests))


def _judgments(replies: memoryview, at: list[int]) -> list[int | None]:
    """The number each reply ends on. It nearly always stands in the last few bytes, so those are looked at first."""
    numbers = []
    for begin, end in itertools.pairwise(at):
        number = raw_judgment(bytes(replies[max(begin, end - _JUDGMENT_BYTES) : end]))
        numbers.append(raw_judgment(bytes(replies[begin:end])) if number is None else number)
    return numbers

"""What a line of each data file holds.

The shapes are those of the study's published files, so that its files and ours are interchangeable. Readers check every
line they take in and name file, line and way out when one does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from genselect.errors import GenselectError
from genselect.formats.jsonl import read_jsonl

Source = Literal["identical", "symbolic", "judge", "rule", "none"]
SOURCES: tuple[Source, ...] = ("identical", "symbolic", "judge", "rule", "none")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate solution of a problem."""

    text: str
    """The whole solution."""
    boxed: str | None
    """Content of its last complete box; null when it has none."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One line of ``merged.jsonl``."""

    id: str
    """``omr-`` and six digits, by first appearance of the problem in the shards."""
    problem: str
    """The statement."""
    answer: str
    """The expected answer."""
    pass_rate_72b_tir: str
    """k/32 as a decimal, or ``n/a``."""
    problem_source: str
    """Where the statement was found."""
    candidates: tuple[Candidate, ...]
    """Distinct by text, in order of first appearance."""

    def as_json(self) -> dict[str, Any]:
        """The line as it is written."""
        return {
            "id": self.id,
            "problem": self.problem,
            "answer": self.answer,
            "pass_rate_72b_tir": self.pass_rate_72b_tir,
            "problem_source": self.problem_source,
            "candidates": [{"text": candidate.text, "boxed": candidate.boxed} for candidate in self.candidates],
        }


@dataclass(frozen=True, slots=True)
class Label:
    """One line of ``labels.jsonl``: the verdict on one candidate."""

    id: str
    """The problem's id."""
    index: int
    """Position in that problem's candidates."""
    correct: bool
    """Its boxed answer equals the expected one. False when there is no verdict: see ``judged``."""
    judged: bool
    """False when there is no verdict."""
    reasoning: str
    """The judge's sentence, or why there is no verdict."""
    finish_reason: str
    """``stop``, or ``length`` when the reply was cut at both token caps."""
    source: Source
    """The stage that decided."""

    def as_json(self) -> dict[str, Any]:
        """The line as it is written."""
        return asdict(self)


def read_problems(path: Path | str) -> Iterator[Problem]:
    """The problems of a ``merged.jsonl``, one at a time.

    Raises:
        GenselectError: A line does not hold a problem.
    """
    for number, row in read_jsonl(path):
        where = f"{path}, line {number}"
        _check(
            row,
            {
                "id": str,
                "problem": str,
                "answer": str,
                "pass_rate_72b_tir": str,
                "problem_source": str,
                "candidates": list,
            },
            where,
        )
        candidates = []
        for position, entry in enumerate(row["candidates"]):
            if (
                not isinstance(entry, dict)
                or not isinstance(entry.get("text"), str)
                or not isinstance(entry.get("boxed"), str | None)
            ):
                raise GenselectError(
                    f"{where}: candidate {position} must hold text (a string) and boxed (a string or null)",
                    "Merge the shards again.",
                )
            candidates.append(Candidate(entry["text"], entry.get("boxed")))
        yield Problem(
            row["id"], row["problem"], row["answer"], row["pass_rate_72b_tir"], row["problem_source"], tuple(candidates)
        )


def read_labels(path: Path | str) -> Iterator[tuple[int, Label]]:
    """Line number and label of each line of a ``labels.jsonl``. ``source`` may be missing, as in the study's own files.

    Raises:
        GenselectError: A line does not hold a label.
    """
    kinds = {"id": str, "index": int, "correct": bool, "judged": bool, "reasoning": str, "finish_reason": str}
    for number, row in read_jsonl(path):
        where = f"{path}, line {number}"
        _check(row, kinds, where)
        source = row.get("source", "judge" if row["judged"] else "none")
        if source not in SOURCES:
            raise GenselectError(
                f"{where}: source is {source!r}, not one of {', '.join(SOURCES)}", "Label the candidates again."
            )
        yield number, Label(**{name: row[name] for name in kinds}, source=source)


def _check(row: dict[str, Any], kinds: dict[str, type], where: str) -> None:
    for name, kind in kinds.items():
        if name not in row:
            raise GenselectError(
                f"{where}: {name} is missing",
                f"A line holds {', '.join(kinds)}; make the file again with the step that wrote it.",
            )
        # bool is an int to Python, not to a reader of the file.
        if not isinstance(row[name], kind) or (kind is int and isinstance(row[name], bool)):
            raise GenselectError(
                f"{where}: {name} must be {_NAMES[kind]}, not {type(row[name]).__name__}",
                "Make the file again with the step that wrote it.",
            )


_NAMES = {str: "a string", int: "an integer", bool: "true or false", list: "a list"}

_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
_CACHED_CANDIDATE = pa.struct(
    [
        ("answer", pa.string()),
        ("reasoning", pa.string()),
        ("cost_usd", pa.float64()),
        ("timed_out", pa.bool_()),
        ("is_correct", pa.bool_()),
    ]
)
_JUDGE = pa.struct([("kind", pa.string()), ("model", pa.string()), ("fingerprint", pa.string())])

#: A row of ``train.parquet`` and ``val.parquet``: one problem.
ROW_SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("agent_name", pa.string()),
        ("ability", pa.string()),
        ("prompt", pa.list_(_MESSAGE)),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    ("question_id", pa.string()),
                    ("question", pa.string()),
                    ("benchmark", pa.string()),
                    ("benchmark_spec", pa.struct([("name", pa.string()), ("judge", _JUDGE)])),
                    ("max_explores", pa.int64()),
                    ("correct_of_eight", pa.int64()),
                    ("pass_rate_72b_tir", pa.string()),
                    ("cached_candidates", pa.list_(_CACHED_CANDIDATE)),
                ]
            ),
        ),
    ]
)

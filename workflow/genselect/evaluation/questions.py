"""The questions that evaluation asks: a population with the candidates that the environment reveals, in its order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from genselect.config import fingerprint
from genselect.errors import GenselectError
from genselect.formats import read_json, read_jsonl

Split = Literal["train", "held_out"]


@dataclass(frozen=True, slots=True)
class CandidateView:
    """What a vote may know of a candidate, and its label."""

    answer: str | None
    """Content of its box; None when it has none."""
    is_correct: bool
    """The judge's label. Votes never look at it; it only scores what they choose."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question of the population."""

    question_id: str
    expected: str
    """The expected answer."""
    candidates: tuple[CandidateView, ...]
    """In the order they are revealed."""
    problem_source: str | None = None
    """Where the statement was found; None when the file does not say."""

    @property
    def correct(self) -> int:
        """How many of the candidates are correct (``correct_of_eight`` of a built row)."""
        return sum(candidate.is_correct for candidate in self.candidates)


def read_questions(questions_path: Path | str, partition_path: Path | str, split: Split = "held_out") -> list[Question]:
    """The questions of one side of ``partition.json``, whole, in population order.

    The candidates are those of the built rows, in the same order: ``questions.jsonl`` and the Parquet rows are written from the
    same draw (:mod:`genselect.dataset.build`), so baselines see the eight that the policy is shown.

    Args:
        questions_path: A built ``questions.jsonl``.
        partition_path: The ``partition.json`` beside it.
        split: Which side.

    Raises:
        GenselectError: The two files do not belong together, or a line does not hold a question.
    """
    partition = read_json(partition_path)
    try:
        population, trained = list(partition["population_ids"]), set(partition["train_ids"])
    except (KeyError, TypeError):
        raise GenselectError(
            f"{partition_path}: population_ids and train_ids are missing", "Build the rows again."
        ) from None
    wanted = [name for name in population if (name in trained) == (split == "train")]
    found: dict[str, Question] = {}
    asked = set(wanted)
    for number, row in read_jsonl(questions_path):
        where = f"{questions_path}, line {number}"
        question = _question(row, row, row.get("answer"), where)
        if row.get("split") == split:
            if question.question_id in found:
                raise GenselectError(f"{where}: {question.question_id} stands there twice", "Build the rows again.")
            found[question.question_id] = question
        elif question.question_id in asked:
            raise GenselectError(
                f"{where}: {question.question_id} is {row.get('split')!r} there and {split!r} in {partition_path}",
                "The two files are of different builds; build the rows again.",
            )
    _same_ids(asked, found, str(questions_path), str(partition_path))
    return [found[name] for name in wanted]


def read_row_questions(rows_path: Path | str) -> list[Question]:
    """The questions of a built ``train.parquet`` or ``val.parquet``, in row order.

    Raises:
        GenselectError: The file is not one of built rows.
    """
    try:
        table = pq.read_table(rows_path, columns=["reward_model", "extra_info"])
    except (OSError, ValueError, KeyError) as error:
        raise GenselectError(f"{rows_path}: not built rows: {error}", "Build the rows, or check the path.") from error
    return [
        _question(
            row["extra_info"], row["extra_info"], row["reward_model"]["ground_truth"], f"{rows_path}, row {number}"
        )
        for number, row in enumerate(table.to_pylist())
    ]


def population_sha256(questions: Sequence[Question]) -> str:
    """One sha256 over ids, expected answers, candidates' answers and labels, in hex; the order of questions does not count.

    Labels belong to it: with other labels the same answers score differently.
    """
    return fingerprint(
        sorted(
            [question.question_id, question.expected, [[view.answer, view.is_correct] for view in question.candidates]]
            for question in questions
        )
    )


def _question(row: Mapping[str, Any], candidates: Mapping[str, Any], expected: Any, where: str) -> Question:
    try:
        views = tuple(_view(entry) for entry in candidates["cached_candidates"])
        name, source = row["question_id"], row.get("problem_source")
    except (KeyError, TypeError) as error:
        raise GenselectError(
            f"{where}: no question: {error} is missing or of another kind",
            "A line holds question_id, answer and cached_candidates (answer, is_correct); build the rows again.",
        ) from None
    if not isinstance(name, str) or not isinstance(expected, str) or not views:
        raise GenselectError(
            f"{where}: question_id and answer must be strings, and there must be a candidate", "Build the rows again."
        )
    return Question(name, expected, views, source)


def _view(entry: Mapping[str, Any]) -> CandidateView:
    answer, correct = entry["answer"], entry["is_correct"]
    if not isinstance(answer, str | None) or not isinstance(correct, bool):
        raise TypeError(f"answer {answer!r} or is_correct {correct!r}")
    return CandidateView(answer, correct)


def _same_ids(wanted: Iterable[str], found: Iterable[str], found_in: str, wanted_in: str) -> None:
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        example = (missing or extra)[0]
        raise GenselectError(
            f"{found_in}: {len(missing)} question(s) of {wanted_in} are missing and {len(extra)} stand there that it does "
            f"not name, such as {example}",
            "The two files are of different builds; build the rows again.",
        )

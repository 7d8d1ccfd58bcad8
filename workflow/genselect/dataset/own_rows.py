"""Read somebody's own problems and candidate solutions: JSON lines or Parquet, a row a problem or a row a candidate."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_128_digest

from genselect.errors import GenselectError
from genselect.formats import read_jsonl
from genselect.provenance.difference import did_you_mean

__all__ = ["COLUMNS", "OwnCandidate", "OwnProblem", "read_own_problems"]

#: In each row, and one of :data:`_FORMS`.
_NEEDED = ("problem", "answer")
#: A row a problem, with the list of its candidates; or a row a candidate.
_FORMS = ("candidates", "candidate")
_OPTIONAL = ("source", "pass_rate")
#: Every column that a file may have.
COLUMNS = (*_NEEDED, *_FORMS, *_OPTIONAL)

#: Not part of a statement or a text when it stands at the ends: what the parser of prompts takes off.
_WHITE = " \t\n\r\x0b\x0c"
#: Parquet rows decoded at a time.
_BATCH_ROWS = 64
_NAMES = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a string"} | {
    list: "a list",
    dict: "an object",
}


class OwnCandidate(NamedTuple):
    """One candidate solution."""

    text: str
    """Without ASCII white space at its ends."""
    place: str
    """Where it stands, for messages: ``mine.jsonl, line 4, column candidates, item 2 (from 0)``."""


@dataclass(frozen=True, slots=True)
class OwnProblem:
    """A problem with the candidates that stand together in the file: those of a row, or of rows that follow each other."""

    place: str
    """Where it begins, for messages: ``mine.jsonl, line 4``."""
    problem: str
    """The statement, without ASCII white space at its ends."""
    answer: str
    """The expected answer, without ASCII white space at its ends."""
    source: str | None
    pass_rate: str | None
    candidates: tuple[OwnCandidate, ...]


def read_own_problems(path: Path | str) -> Iterator[OwnProblem]:
    """The problems of ``path`` in their order, one at a time. Memory holds a hash and the answer of each statement.

    A statement may come again, further down, with more candidates.

    Raises:
        GenselectError: The file is neither ``.jsonl`` nor ``.parquet``, cannot be read, or is empty; a column is missing or not
            known; a value is empty or not of its type; a problem has no candidate, or comes again with another answer.
    """
    path = Path(path)
    answers: dict[bytes, tuple[str, str]] = {}
    empty = True
    for _, group in itertools.groupby(_pieces(path), key=lambda piece: piece.problem):
        pieces = list(group)
        for piece in pieces:
            known, place = answers.setdefault(xxh3_128_digest(piece.problem.encode()), (piece.answer, piece.place))
            if known != piece.answer:
                raise GenselectError(
                    f"{piece.place}, column answer: {piece.answer!r}, but the same problem has the answer {known!r} ({place})",
                    "A problem is its statement: give it one answer, or tell the two statements apart.",
                )
        first = pieces[0]
        candidates = tuple(candidate for piece in pieces for candidate in piece.candidates)
        yield OwnProblem(first.place, first.problem, first.answer, first.source, first.pass_rate, candidates)
        empty = False
    if empty:
        raise GenselectError(
            f"{path}: the file holds no row", f"Write a row a problem: {', '.join(_NEEDED)}, candidates."
        )


def _pieces(path: Path) -> Iterator[OwnProblem]:
    """What each row holds: a problem with all its candidates, or with one."""
    for place, row in _rows(path):
        problem, answer = (_text(row[name], f"{place}, column {name}") for name in _NEEDED)
        candidates = tuple(_candidates(row, place))
        yield OwnProblem(place, problem, answer, _source(row, place), _pass_rate(row, place), candidates)


# --- rows ---------------------------------------------------------------------------------------------------------------


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with its place, the columns checked."""
    if path.suffix == ".jsonl":
        return _json_rows(path)
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    raise GenselectError(
        f"{path}: neither a .jsonl nor a .parquet file",
        "Write JSON lines (one object a line) or Parquet, and name the file so; a .gz file has to be unpacked first.",
    )


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    checked: set[tuple[str, ...]] = set()
    form = None
    for number, row in read_jsonl(path):
        place, names = f"{path}, line {number}", tuple(row)
        if names not in checked:
            other = _check_columns(names, place)
            checked.add(names)
            if form not in (None, other):
                raise GenselectError(
                    f"{place}: column {other} is here, and the lines before it have the column {form}",
                    "Use one form in the whole file: a line a problem (candidates), or a line a candidate (candidate).",
                )
            form = other
        yield place, row


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    hint = "Check the path, and write the file again with a Parquet library."
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            _check_columns(file.schema_arrow.names, str(path))
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for index in range(batch.num_rows):
                    yield f"{path}, row {number} (from 0)", batch.slice(index, 1).to_pylist()[0]
                    number += 1
    except FileNotFoundError:
        raise GenselectError(f"{path}: there is no such file", "Check the path.") from None
    except UnicodeDecodeError as error:
        raise GenselectError(
            f"{path}, row {number} (from 0): a string is not UTF-8: {error.reason}", "Write the text as UTF-8."
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise GenselectError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}", hint) from error


def _check_columns(names: Collection[str], place: str) -> str:
    """``candidates`` or ``candidate``, whichever there is."""
    for name in names:
        if name not in COLUMNS:
            raise GenselectError(
                f"{place}: column {name} is not known",
                f"{did_you_mean(name, COLUMNS)} Rename it, or take it out: what is not known is not passed on.",
            )
    doubled = [name for name in COLUMNS if list(names).count(name) > 1]
    if doubled:
        raise GenselectError(f"{place}: there are two columns {doubled[0]}", "Take one of them out.")
    for name in _NEEDED:
        if name not in names:
            raise GenselectError(
                f"{place}: column {name} is missing", f"Each row holds {', '.join(_NEEDED)} and candidates."
            )
    forms = [name for name in _FORMS if name in names]
    if len(forms) != 1:
        raise GenselectError(
            f"{place}: columns candidates and candidate are both {'here' if forms else 'missing'}",
            "Give candidates (a list of strings, a row a problem) or candidate (a string, a row a candidate).",
        )
    return forms[0]


# --- values -------------------------------------------------------------------------------------------------------------


def _candidates(row: dict[str, Any], place: str) -> Iterator[OwnCandidate]:
    if "candidate" in row:
        where = f"{place}, column candidate"
        yield OwnCandidate(_text(row["candidate"], where), where)
        return
    values, where = row["candidates"], f"{place}, column candidates"
    if not isinstance(values, list):
        raise GenselectError(
            f"{where}: must be a list of strings, not {_kind(values)}",
            'Write ["first solution", "second solution"]; a file with a row a candidate calls its column candidate.',
        )
    if not values:
        raise GenselectError(f"{where}: the list is empty", "Leave the problem out, or give it candidates.")
    for index, value in enumerate(values):
        item = f"{where}, item {index} (from 0)"
        yield OwnCandidate(_text(value, item), item)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        hint = f'Write it in quotes: "{value}".' if number else "Fill it in, or leave the row out."
        raise GenselectError(f"{where}: must be a string, not {_kind(value)}", hint)
    if not value.strip():
        raise GenselectError(f"{where}: is empty", "Fill it in, or leave it out.")
    return value.strip(_WHITE)


def _source(row: dict[str, Any], place: str) -> str | None:
    value = row.get("source")
    return None if value is None else _text(value, f"{place}, column source")


def _pass_rate(row: dict[str, Any], place: str) -> str | None:
    """As it is written into the shard: a string as it stands, a number as a decimal."""
    value, where = row.get("pass_rate"), f"{place}, column pass_rate"
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value <= 1:
            raise GenselectError(f"{where}: must be from 0 to 1, not {value}", "Give the share of right solutions.")
        return str(value)
    return _text(value, where)


def _kind(value: Any) -> str:
    return _NAMES.get(type(value), type(value).__name__)

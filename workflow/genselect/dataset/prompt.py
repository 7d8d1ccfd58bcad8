"""Take a GenSelect prompt apart into its problem and its candidate solutions, or say why it cannot be done.

A prompt is: a head that says "followed by N solutions" and explains the format (with its own lines that begin ``Problem:``
and ``Solutions:``), ``YOUR TASK``, ``Problem: …``, ``Solutions:``, N times ``Solution i:`` and a text, and a tail that begins
at ``Evaluation Process:``. Decisions for the awkward cases are listed in ``docs/data-format.md``.

:func:`split_prompt` is the definition. :func:`split_batch` finds the solutions of many prompts at once, for the merge, which has
7 GB of them to go through: it knows the regular form only, and leaves every other prompt to :func:`split_prompt`.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BatchSplit",
    "ParsedPrompt",
    "RawPrompt",
    "Refusal",
    "parse_judgment",
    "parse_prompt",
    "raw_judgment",
    "regular_problem",
    "split_batch",
    "split_prompt",
]


class Refusal(enum.StrEnum):
    """Why a row cannot be used. The values are the keys under ``refusals`` in ``merge_stats.json``."""

    NULL_VALUE = "null_value"
    """A needed column holds no value."""
    NO_ANSWER = "no_answer"
    """The expected answer is empty."""
    NO_COUNT = "no_count"
    """The head does not say "followed by N solutions"."""
    NO_ANCHOR = "no_anchor"
    """There is no ``YOUR TASK``."""
    NO_PROBLEM = "no_problem"
    """No ``Problem:`` follows ``YOUR TASK``, or it is empty."""
    NO_SOLUTIONS = "no_solutions"
    """No ``Solutions:`` with a first ``Solution 0:`` follows the problem."""
    NO_TAIL = "no_tail"
    """No ``Evaluation Process:`` follows the solutions."""
    COUNT_DISAGREES = "count_disagrees"
    """No reading of the ``Solution i:`` lines gives the N solutions that the head announces."""
    NUMBERS_DISAGREE = "numbers_disagree"
    """There are N ``Solution i:`` lines, but a number is neither its position nor that of an earlier equal text."""
    AMBIGUOUS = "ambiguous"
    """More than one reading gives N solutions, because a solution itself holds ``Solution i:`` lines."""
    EMPTY_SOLUTION = "empty_solution"
    """A solution has no text."""


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    """What a prompt asks about."""

    problem: str
    """The statement, without white space at its ends."""
    solutions: tuple[str, ...]
    """The candidates' texts by position, without white space at their ends."""
    numbers: tuple[int, ...]
    """The number printed before each. Equal texts carry the number of the first of them."""


class RawPrompt(NamedTuple):
    """A :class:`ParsedPrompt` in UTF-8."""

    problem: bytes
    solutions: list[bytes]
    numbers: list[int]


_ANCHOR = b"YOUR TASK"
_PROBLEM = b"Problem:"
_SOLUTIONS = b"Solutions:"
_FIRST = b"\nSolution 0:"
_TAIL = b"\nEvaluation Process:"
_COUNT = re.compile(rb"followed by (\d{1,4}) solutions")
# A number is printed as Python prints an int, so "01" is text. "Solution 2:x" is text as well: a header is followed by white space.
_HEADER = re.compile(rb"^Solution (0|[1-9]\d{0,3}):(?=[ \t\r\n]|\Z)", re.MULTILINE)
_BOX = re.compile(rb"\\(?:boxed|fbox)(?![A-Za-z])")
# What ends in an empty line, give or take blanks.
_BLANK_LINE = re.compile(rb"(?:\A|\n)[ \t\r]*\n\Z")
_JUDGMENT = re.compile(rb"Judge?ment:\s*(\d{1,4})(?!\d)")

#: The tail is shorter than this in every known frame. In another it is found by :func:`split_prompt`.
_TAIL_BYTES = 4096
#: Bytes looked at for a blank line before a header.
_BLANK = 80

#: Steps that the search for a consistent reading may take. Prompts in the wild need a handful.
_MAX_STEPS = 20_000


def parse_prompt(text: str) -> ParsedPrompt | Refusal:
    """The problem and solutions of a GenSelect prompt, or the reason why it has none."""
    parsed = split_prompt(text.encode())
    if isinstance(parsed, Refusal):
        return parsed
    return ParsedPrompt(
        parsed.problem.decode(), tuple(solution.decode() for solution in parsed.solutions), tuple(parsed.numbers)
    )


def split_prompt(prompt: bytes) -> RawPrompt | Refusal:
    """:func:`parse_prompt` on UTF-8 bytes.

    White space (ASCII) at the ends of the problem and of each solution is not part of it. Line ends stay as written, unless
    the line of ``YOUR TASK`` ends in CRLF: then the whole prompt was converted, and is converted back.
    """
    anchor = prompt.find(_ANCHOR)
    if anchor < 0:
        return Refusal.NO_ANCHOR
    after = anchor + len(_ANCHOR)
    if prompt.startswith(b"\r\n", after):
        return split_prompt(prompt.replace(b"\r\n", b"\n"))
    announced = _COUNT.search(prompt, 0, anchor)
    if announced is None:
        return Refusal.NO_COUNT
    found = _find_problem(prompt, after)
    if isinstance(found, Refusal):
        return found
    problem, first = found
    # The tail names its process once, at its start; a solution that uses the words comes before it.
    tail = prompt.rfind(_TAIL, first)
    if tail < 0:
        return Refusal.NO_TAIL
    reading = _read_solutions(prompt[first + 1 : tail], int(announced[1]))
    if isinstance(reading, Refusal):
        return reading
    if not all(piece.text for piece in reading):
        return Refusal.EMPTY_SOLUTION
    return RawPrompt(problem, [piece.text for piece in reading], [piece.number for piece in reading])


def parse_judgment(generated_solution: str) -> int | None:
    """The number after the last ``Judgment:`` (or ``Judgement:``), or None. It is a printed number, see :class:`ParsedPrompt`."""
    return raw_judgment(generated_solution.encode())


def raw_judgment(generated_solution: bytes) -> int | None:
    """:func:`parse_judgment` on UTF-8 bytes."""
    end = len(generated_solution)
    while (start := generated_solution.rfind(b"Judg", 0, end)) >= 0:
        if match := _JUDGMENT.match(generated_solution, start):
            return int(match[1])
        end = start
    return None


class BatchSplit(NamedTuple):
    """Where the solutions of a batch of prompts are. Row ``r`` has those from ``first[r]`` up to ``first[r + 1]``."""

    heads: list[int]
    """By row: where the line break before the first header stands, or -1 when only :func:`split_prompt` can tell."""
    first: list[int]
    starts: list[int]
    """By solution: where its text begins, white space left out, and ends."""
    ends: list[int]


def split_batch(data: NDArray[np.uint8], offsets: NDArray[np.int32]) -> BatchSplit:
    """Find the solutions of prompts whose header-like lines before the tail are 0, 1, 2, … in order.

    With as many of them as the head announces (see :func:`regular_problem`) that is the one reading, and it is consistent,
    so :func:`split_prompt` would find the same.

    Args:
        data: Bytes of a string column.
        offsets: Where each row begins in ``data``, and where the last one ends: shape (rows + 1,).
    """
    tail = _tails(data, offsets)
    at = _solution_lines(data, int(offsets[0]), int(offsets[-1]))
    row = np.searchsorted(offsets, at, side="right") - 1
    at, row = at[at < tail[row]], row[at < tail[row]]
    tens, ones = data[at + 10], data[at + 11]
    short = (ones == ord(":")) & _WHITE[data[at + 12]]
    long = (tens != ord("0")) & _is_digit(ones) & (data[at + 12] == ord(":")) & _WHITE[data[at + 13]]
    number = np.where(short, tens - 48, 10 * (tens.astype(int) - 48) + ones - 48)
    count = np.bincount(row, minlength=len(tail))
    first = np.concatenate([[0], np.cumsum(count)])
    starts, ends = _strip(data, at + np.where(short, 12, 13), np.append(at[1:], 0), tail, row)
    regular = (short | long) & (number == np.arange(len(at)) - first[row]) & (starts < ends)

    heads = np.full(len(tail), -1)
    heads[count > 0] = at[first[:-1][count > 0]]
    heads[row[~regular]] = -1
    return BatchSplit(heads.tolist(), first.tolist(), starts.tolist(), ends.tolist())


def regular_problem(head: bytes, count: int) -> bytes | None:
    """The statement, given a prompt up to the line break before its first header, if it announces ``count`` solutions."""
    anchor = head.find(_ANCHOR)
    after = anchor + len(_ANCHOR)
    if anchor < 0 or head.startswith(b"\r\n", after):
        return None
    announced = _COUNT.search(head, 0, anchor)
    if announced is None or int(announced[1]) != count:
        return None
    return _statement(head[after:].strip())


_WHITE = np.zeros(256, bool)
_WHITE[list(b" \t\n\r\x0b\x0c")] = True


def _tails(data: NDArray[np.uint8], offsets: NDArray[np.int32]) -> NDArray[np.int64]:
    """By row, where the line break before its last ``Evaluation Process:`` stands, or -1. It is looked for near the end."""
    view, found = data.data, []
    for begin, end in itertools.pairwise(offsets.tolist()):
        near = max(begin, end - _TAIL_BYTES)
        place = bytes(view[near:end]).rfind(_TAIL)
        found.append(near + place if place >= 0 else -1)
    return np.array(found, dtype=np.int64)


def _solution_lines(data: NDArray[np.uint8], begin: int, end: int) -> NDArray[np.int64]:
    """Where the line breaks stand that ``Solution`` and a digit follow."""
    # The capital is rarer than the line break, so most words of eight bytes hold none: those are passed over together.
    # Room is left to look at what follows: a header so near to the end has no tail after it.
    capital = data[begin + 1 : max(begin + 1, end - len(_TAIL))] == ord("S")
    whole = len(capital) & ~7
    words = 8 * np.flatnonzero(capital[:whole].view(np.uint64))
    places = (words[:, None] + np.arange(8)).ravel()
    at = begin + np.concatenate([places[capital[places]], whole + np.flatnonzero(capital[whole:])])
    for place, letter in enumerate(b"\nSolution "):
        at = at[data[at + place] == letter]
    return at[_is_digit(data[at + 10])]


def _is_digit(values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return (values >= ord("0")) & (values <= ord("9"))


def _strip(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    next_at: NDArray[np.int64],
    tail: NDArray[np.int64],
    row: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and ends of the texts between headers, without the white space at their ends."""
    last = np.append(row[1:] != row[:-1], True)[: len(row)]
    ends = np.where(last, tail[row], next_at[: len(row)])
    while (white := (starts < ends) & _WHITE[data[starts]]).any():
        starts = starts + white
    while (white := (starts < ends) & _WHITE[data[ends - 1]]).any():
        ends = ends - white
    return starts, ends


def _find_problem(prompt: bytes, after: int) -> tuple[bytes, int] | Refusal:
    """The statement, and where the line break before ``Solution 0:`` stands."""
    first = prompt.find(_FIRST, after)
    while first >= 0:
        head = prompt[after:first].strip()
        if head.endswith(_SOLUTIONS):
            problem = _statement(head)
            return (problem, first) if problem else Refusal.NO_PROBLEM
        first = prompt.find(_FIRST, first + 1)
    return Refusal.NO_SOLUTIONS if _PROBLEM in prompt[after:] else Refusal.NO_PROBLEM


def _statement(head: bytes) -> bytes | None:
    """What stands between ``Problem:`` at the beginning and ``Solutions:`` on the last line."""
    if not head.startswith(_PROBLEM) or not head.endswith(b"\n" + _SOLUTIONS):
        return None
    return head[len(_PROBLEM) : -len(_SOLUTIONS)].strip() or None


class _Header(NamedTuple):
    """A line that could introduce a solution."""

    start: int
    text: int
    number: int


def _read_solutions(body: bytes, count: int) -> _Reading | Refusal:
    """The one reading of ``body``, from the first header to the tail, that gives ``count`` solutions.

    The printed number is ``list.index`` of the text: its position, or that of an earlier equal text. When there are more
    header-like lines than solutions, some belong to texts, and two facts tell readings apart. Upstream gave every text exactly
    one box: a reading that cuts a text in two leaves a piece without one, and a text with two boxes is two solutions joined.
    And the frame puts a blank line before each header.
    """
    headers = [_Header(match.start(), match.end(), int(match[1])) for match in _HEADER.finditer(body)]
    if len(headers) < count or count < 1:
        return Refusal.COUNT_DISAGREES
    try:
        readings = list(_readings(body, headers, count))
    except _TooManyReadings:
        return Refusal.AMBIGUOUS
    if len(headers) == count:
        return readings[0] if readings else Refusal.NUMBERS_DISAGREE
    readings = _prefer(readings, lambda piece: _boxes(piece) == 1)
    readings = _prefer(readings, lambda piece: piece.apart)
    if len(readings) > 1:
        return Refusal.AMBIGUOUS
    # The only reading joins two solutions when a text has two boxes: the head's count is wrong, not a header.
    if not readings or any(_boxes(piece) > 1 for piece in readings[0]):
        return Refusal.COUNT_DISAGREES
    return readings[0]


class _Piece(NamedTuple):
    """One solution of a reading."""

    text: bytes
    number: int
    apart: bool
    """A blank line stands before its header, or it is the first."""


_Reading = list[_Piece]


class _TooManyReadings(Exception):
    """The search was given up."""


def _readings(body: bytes, headers: list[_Header], count: int) -> Iterator[_Reading]:
    """Every choice of ``count`` headers, the first one among them, whose numbers are what ``list.index`` would print."""
    steps = 0

    def extend(chosen: _Reading, current: int) -> Iterator[_Reading]:
        # headers[current] opens position len(chosen); where its text ends is what is tried here.
        nonlocal steps
        header, position = headers[current], len(chosen)
        left = count - position - 1
        if header.number > position:
            return
        apart = not current or _BLANK_LINE.search(body, max(0, header.start - _BLANK), header.start) is not None
        # The last solution runs to the end of the body, the others to one of the following headers.
        ends: Sequence[int] = range(current + 1, len(headers) - left + 1) if left else [len(headers)]
        for following in ends:
            steps += 1
            if steps > _MAX_STEPS:
                raise _TooManyReadings
            stop = headers[following].start if following < len(headers) else len(body)
            text = body[header.text : stop].strip()
            if header.number != position and chosen[header.number][:2] != (text, header.number):
                continue
            reading = [*chosen, _Piece(text, header.number, apart)]
            if left:
                yield from extend(reading, following)
            else:
                yield reading

    yield from extend([], 0)


def _prefer(readings: list[_Reading], wanted: Callable[[_Piece], bool]) -> list[_Reading]:
    """The readings whose every piece is as ``wanted``; all of them when there is none."""
    return [reading for reading in readings if all(map(wanted, reading))] or readings


def _boxes(piece: _Piece) -> int:
    return len(_BOX.findall(piece.text))

"""Somebody's own problems and candidate solutions as shards in the GenSelect schema, which every later step reads.

A problem's candidates are written into prompts of the publisher's form, and each prompt is read back with the parser of the merge
before anything is written: what comes out of the merge is exactly what went in. See ``docs/own-data.md``.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_128_digest

from genselect.answers import extract_boxed
from genselect.config.models import Build
from genselect.dataset.merge import PROBLEM_TYPES
from genselect.dataset.miniature import render_prompt
from genselect.dataset.own_rows import OwnCandidate, OwnProblem, read_own_problems
from genselect.dataset.prompt import parse_prompt
from genselect.dataset.shards import SHARD_SCHEMA
from genselect.errors import GenselectError
from genselect.formats import atomic_path
from genselect.provenance import SealedFile, file_sha256, seal_path, write_seal

__all__ = ["MOST_PER_PROMPT", "NO_JUDGMENT", "make_own_shards"]

#: The publisher's prompts hold 2 to 16 solutions; the merge is quick up to this many.
MOST_PER_PROMPT = 100
#: ``generated_solution`` of every row. It ends on no number, so the merge counts the row's judgment as unreadable.
NO_JUDGMENT = "Nobody chose among these solutions."

_ROWS_A_GROUP = 256
# A line that could be taken for the header of a solution, and a box: what :mod:`genselect.dataset.prompt` goes by.
_HEADER = re.compile(r"^Solution \d+:.*$", re.MULTILINE)
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_SHOWN = 60

logger = logging.getLogger(__name__)


@dataclass
class _Known:
    """A problem met so far."""

    place: str
    candidates: set[bytes] = field(default_factory=set)
    """Hashes of its texts."""


@dataclass
class _Tally:
    """What a pass over the file met. The lists hold places."""

    problems: dict[bytes, _Known] = field(default_factory=dict)
    candidates: int = 0
    prompts: int = 0
    again: list[str] = field(default_factory=list)
    """Problems that come again further down."""
    without_box: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)


def make_own_shards(
    candidates: Path | str, output: Path | str, shards: int = 1, per_prompt: int = 16
) -> dict[str, int]:
    """Write the problems of ``candidates`` into the folder ``output``, each shard with a seal. Same input, same bytes.

    The file is read twice: first all of it is checked, then it is written. Problems keep their order, over all shards, so the
    merge numbers them as the file does.

    Args:
        candidates: JSON lines or Parquet; see :func:`~genselect.dataset.own_rows.read_own_problems`.
        output: A new folder, an empty one, or one that holds an earlier output of as many shards.
        shards: Parquet files.
        per_prompt: Candidates in a prompt, at most (1 to :data:`MOST_PER_PROMPT`); a problem with more takes several rows.

    Returns:
        Counts: ``problems``, ``candidates`` (distinct), ``prompts``, ``duplicates``, ``without_box``, ``too_few`` (problems with
        fewer candidates than a row has by default).

    Raises:
        GenselectError: A row does not fit, a text cannot be told from the prompt around it, or ``output`` holds other files.
    """
    started = datetime.datetime.now(datetime.UTC)
    path, output = Path(candidates), Path(output)
    if shards < 1:
        raise GenselectError(f"{shards} shards cannot be written", "Ask for one at least (--shards).")
    if not 1 <= per_prompt <= MOST_PER_PROMPT:
        raise GenselectError(
            f"{per_prompt} candidates in a prompt cannot be written", f"--per-prompt takes 1 to {MOST_PER_PROMPT}."
        )
    paths = [output / f"own-{index:05d}-of-{shards:05d}.parquet" for index in range(shards)]
    _check_folder(output, paths)
    tally = _Tally()
    for _ in _prompt_rows(path, per_prompt, tally):
        tally.prompts += 1
    if tally.prompts < shards:
        raise GenselectError(
            f"{path}: {tally.prompts} prompts do not fill {shards} shards", "Ask for fewer shards (--shards)."
        )
    sizes = _write(paths, _prompt_rows(path, per_prompt, _Tally()), tally.prompts)
    origin = SealedFile(str(path), file_sha256(path), path.stat().st_size)
    config = {"source": "own", "shards": shards, "per_prompt": per_prompt}
    for shard, rows in zip(paths, sizes, strict=True):
        write_seal(
            shard, kind="shard", counts={"rows": rows}, outputs=[shard], inputs=[origin], started=started, config=config
        )
    return _report(tally, path, output, shards)


def _check_folder(output: Path, paths: Sequence[Path]) -> None:
    if output.exists() and not output.is_dir():
        raise GenselectError(f"{output}: is a file, not a folder", "Name a new or an empty folder (--output-dir).")
    names = {path.name for path in paths} | {seal_path(path).name for path in paths}
    strangers = sorted(path.name for path in output.glob("*") if path.name not in names) if output.exists() else []
    if strangers:
        raise GenselectError(
            f"{output}: already holds other files ({', '.join(strangers[:3])}{', …' if strangers[3:] else ''})",
            "Name a new or an empty folder: the workflow takes in every shard that lies there. Or remove them first.",
        )


# --- prompts ------------------------------------------------------------------------------------------------------------


def _prompt_rows(path: Path, per_prompt: int, tally: _Tally) -> Iterator[dict[str, Any]]:
    """The rows of the shards, in the order of the file."""
    for problem in read_own_problems(path):
        fresh = _take(problem, tally)
        for first in range(0, len(fresh), per_prompt):
            for prompt in _prompts(problem, fresh[first : first + per_prompt]):
                yield _row(problem, prompt)


def _take(problem: OwnProblem, tally: _Tally) -> list[OwnCandidate]:
    """The candidates that are new; the merge would drop the others."""
    digest = xxh3_128_digest(problem.problem.encode())
    if digest in tally.problems:
        tally.again.append(problem.place)
    known = tally.problems.setdefault(digest, _Known(problem.place))
    fresh = []
    for candidate in problem.candidates:
        text = xxh3_128_digest(candidate.text.encode())
        if text in known.candidates:
            tally.duplicates.append(candidate.place)
            continue
        known.candidates.add(text)
        fresh.append(candidate)
        if not (extract_boxed(candidate.text) or "").strip():
            tally.without_box.append(candidate.place)
    tally.candidates += len(fresh)
    return fresh


def _prompts(problem: OwnProblem, candidates: Sequence[OwnCandidate]) -> Iterator[str]:
    """One prompt, or, where that has another reading, one for each candidate.

    Raises:
        GenselectError: A candidate has another reading even alone.
    """
    prompt = render_prompt(problem.problem, [candidate.text for candidate in candidates])
    if _reads_back(prompt, problem.problem, candidates):
        yield prompt
    elif len(candidates) > 1:
        for candidate in candidates:
            yield from _prompts(problem, [candidate])
    else:
        raise _in_the_way(problem, candidates[0])


def _reads_back(prompt: str, statement: str, candidates: Sequence[OwnCandidate]) -> bool:
    parsed = parse_prompt(prompt)
    texts = tuple(candidate.text for candidate in candidates)
    # A refusal is a string, and has no problem.
    return getattr(parsed, "problem", None) == statement and getattr(parsed, "solutions", None) == texts


def _in_the_way(problem: OwnProblem, candidate: OwnCandidate) -> GenselectError:
    """Why even a prompt of this one candidate is read otherwise."""
    plain = OwnCandidate("@", "")
    if not _reads_back(render_prompt(problem.problem, [plain.text]), problem.problem, [plain]):
        return GenselectError(
            f"{problem.place}, column problem: the statement cannot be told from the prompt around it: "
            "it holds a line Solutions: right before a line Solution 0:",
            "Reword one of the two lines, for example Solution 0. instead of Solution 0:",
        )
    line = _HEADER.search(candidate.text)
    boxes = len(_BOX.findall(candidate.text))
    shown = f"the line {line[0].strip()[:_SHOWN]!r}, which looks like the header of a solution, and " if line else ""
    return GenselectError(
        f"{candidate.place}: the text cannot be told from the prompt around it: it holds {shown}{boxes} boxes, "
        "so it could be several solutions",
        "Reword every such line (for example Solution 1. instead of Solution 1:), or leave one \\boxed in the text.",
    )


def _row(problem: OwnProblem, prompt: str) -> dict[str, Any]:
    return {
        "expected_answer": problem.answer,
        "problem_type": PROBLEM_TYPES[0],
        "problem_source": problem.source or "own",
        "generation_model": "unknown",
        "pass_rate_72b_tir": problem.pass_rate or "n/a",
        "problem": prompt,
        "generated_solution": NO_JUDGMENT,
        "inference_mode": "genselect",
        "used_in_kaggle": None,
    }


# --- files --------------------------------------------------------------------------------------------------------------


def _write(paths: Sequence[Path], rows: Iterator[dict[str, Any]], total: int) -> list[int]:
    """Write ``total`` rows, in order, in shares as equal as can be; all shards get their names, or none. Returns the shares."""
    shards = len(paths)
    sizes = [total * (index + 1) // shards - total * index // shards for index in range(shards)]
    with contextlib.ExitStack() as stack:
        temporaries = [stack.enter_context(atomic_path(path)) for path in paths]
        for temporary, size in zip(temporaries, sizes, strict=True):
            share = itertools.islice(rows, size)
            with pq.ParquetWriter(temporary, SHARD_SCHEMA, compression="snappy") as writer:
                while group := list(itertools.islice(share, _ROWS_A_GROUP)):
                    writer.write_table(pa.Table.from_pylist(group, schema=SHARD_SCHEMA))
        # A seal of an earlier run must not stand beside what replaces its file.
        for path in paths:
            seal_path(path).unlink(missing_ok=True)
    return sizes


def _report(tally: _Tally, path: Path, output: Path, shards: int) -> dict[str, int]:
    """Log what deserves a look, and return the counts."""
    eight = Build().candidates_per_row
    few = [known.place for known in tally.problems.values() if len(known.candidates) < eight]
    for places, what in (
        (tally.again, "problems come again further down; the merge puts their candidates together"),
        (tally.duplicates, "candidates repeat another one of their problem and are written once"),
        (tally.without_box, "candidates have no answer in \\boxed{}: they get no verdict and are drawn for no row"),
        (few, f"problems have fewer than {eight} distinct candidates: too few for a row (build.candidates_per_row)"),
    ):
        if places:
            logger.warning("%d %s; first: %s", len(places), what, places[0])
    logger.info(
        "%s: %d problems with %d candidates in %d prompts, %d shard(s), from %s",
        output, len(tally.problems), tally.candidates, tally.prompts, shards, path,
    )  # fmt: skip
    return {
        "problems": len(tally.problems),
        "candidates": tally.candidates,
        "prompts": tally.prompts,
        "duplicates": len(tally.duplicates),
        "without_box": len(tally.without_box),
        "too_few": len(few),
    }

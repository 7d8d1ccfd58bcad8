"""From raw shards to one line a problem: its statement, expected answer and distinct candidate solutions.

Rows repeat: a problem stands in some seventeen prompts, each showing a few of its candidates. The shards are read once, in
order. Memory holds a 16-byte hash for each distinct candidate; the texts wait in a file beside the output until all rows are
read. Contiguous groups of shards may be gathered by several processes: joining what they gathered, in order, gives exactly what
one process would have, so the bytes of the output do not depend on their number.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import itertools
import logging
import multiprocessing
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from genselect.answers import extract_boxed
from genselect.dataset.gather import SAMPLE_CHARS, SAMPLES, Entry, Gathered, gather
from genselect.dataset.shards import Shard, find_shards, open_shards
from genselect.dataset.spool import SpoolPart, SpoolReader
from genselect.errors import GenselectError
from genselect.formats import Candidate, Problem, atomic_path, write_json
from genselect.provenance import SealedFile, file_sha256, seal_path, write_seal

__all__ = ["PROBLEM_TYPES", "judgments_path", "merge_shards"]

#: The answer was extracted from the forum: the rows that the experiment keeps.
PROBLEM_TYPES = ("has_answer_extracted",)

#: Below this many rows a second process costs more than it saves.
_ROWS_WORTH_A_PROCESS = 20_000
_MOST_WORKERS = 4
_COPY_BYTES = 1 << 22
#: More refused than this share of the rows of a kept type is worth a warning.
_REFUSED_SHARE = 0.01

logger = logging.getLogger(__name__)


def judgments_path(output: Path | str) -> Path:
    """Where the side file of a ``merged.jsonl`` lies: ``merged.judgments.jsonl``."""
    output = Path(output)
    return output.with_name(f"{output.stem}.judgments.jsonl")


def merge_shards(
    shards: Iterable[Path | str],
    output: Path | str,
    stats: Path | str,
    judgments: Path | str | None = None,
    problem_types: Sequence[str] = PROBLEM_TYPES,
    id_prefix: str = "omr",
    workers: int | None = None,
) -> dict[str, Any]:
    """Merge ``shards`` into ``output``, one line a problem, with the side file ``judgments``, ``stats`` and a seal.

    Args:
        shards: Files or folders, read in this order; see :func:`~genselect.dataset.shards.find_shards`.
        output: ``merged.jsonl``; see :class:`~genselect.formats.Problem`.
        stats: ``merge_stats.json``.
        judgments: How often upstream chose each candidate; :func:`judgments_path` of ``output`` when not given.
        problem_types: Rows of these types are kept.
        id_prefix: Ids are this, a dash and six digits.
        workers: Processes that read shards, at most; by default as many as pay. It does not change the output.

    Returns:
        What is written to ``stats``.

    Raises:
        GenselectError: A shard does not fit, no row is kept, or the disk is full.
    """
    started = datetime.datetime.now(datetime.UTC)
    output, stats = Path(output), Path(stats)
    judgments = Path(judgments) if judgments else judgments_path(output)
    opened = open_shards(find_shards(shards))
    groups = _groups(opened, workers)
    logger.info("merging %d rows of %d shards", sum(shard.rows for shard in opened), len(opened))
    with atomic_path(output) as merged_file, atomic_path(judgments) as judgments_file:
        with (
            tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as name,
            _pool(len(groups)) as pool,
        ):
            folder = Path(name)
            gathered, digests = _gather_all(groups, pool, folder, frozenset(problem_types))
            _refuse_nothing(gathered, problem_types)
            written = _write_all(gathered, id_prefix, pool, len(groups), folder, (merged_file, judgments_file))
        # A seal of an earlier run must not stand beside what replaces its file.
        seal_path(output).unlink(missing_ok=True)
    values = _stats(gathered, written, opened, digests)
    write_json(stats, values)
    write_seal(
        output,
        kind="merged",
        counts={name: values[name] for name in ("rows_read", "rows_kept", "problems", "candidates")},
        outputs=[output, judgments, stats],
        inputs=[SealedFile(str(shard.path), digests[shard.path], shard.path.stat().st_size) for shard in opened],
        started=started,
        config={"problem_types": list(problem_types), "id_prefix": id_prefix},
    )
    _log_outcome(values, output)
    return values


def _groups(shards: list[Shard], workers: int | None) -> list[list[Shard]]:
    """``shards`` cut into runs of about equal rows, one for each process."""
    rows = sum(shard.rows for shard in shards)
    if workers is None:
        workers = min(_MOST_WORKERS, len(os.sched_getaffinity(0))) if rows >= _ROWS_WORTH_A_PROCESS else 1
    groups: list[list[Shard]] = [[] for _ in range(max(1, min(workers, len(shards))))]
    before = 0
    for shard in shards:
        middle = before + shard.rows / 2
        groups[min(len(groups) - 1, int(middle * len(groups) / rows))].append(shard)
        before += shard.rows
    return [group for group in groups if group]


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[concurrent.futures.Executor | None]:
    """Processes for the work, or None when this one does it all."""
    if workers == 1:
        yield None
        return
    # Fresh processes: a fork would copy pyarrow's threads in an unknown state.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield pool


def _gather_all(
    groups: list[list[Shard]], pool: concurrent.futures.Executor | None, folder: Path, problem_types: frozenset[str]
) -> tuple[Gathered, dict[Path, str]]:
    """What all groups hold, joined in order, and the sha256 of each shard."""
    paths = [shard.path for group in groups for shard in group]
    spools = [folder / f"spool-{number}" for number in range(len(groups))]
    if pool is None:
        return gather(groups[0], spools[0], problem_types), {path: file_sha256(path) for path in paths}
    futures = [pool.submit(gather, group, spool, problem_types) for group, spool in zip(groups, spools, strict=True)]
    digests = {path: file_sha256(path) for path in paths}
    gathered = futures[0].result()
    for future in futures[1:]:
        gathered.absorb(future.result())
    return gathered, digests


@dataclass
class _Written:
    """Counted while writing."""

    candidates: int = 0
    without_box: int = 0
    histogram: Counter[int] = field(default_factory=Counter)


def _write_all(
    gathered: Gathered,
    id_prefix: str,
    pool: concurrent.futures.Executor | None,
    workers: int,
    folder: Path,
    files: tuple[Path, Path],
) -> _Written:
    """Write ``files`` (merged and judgments): each worker a run of the problems, put together in order."""
    entries = list(gathered.problems.values())
    if pool is None:
        return _write_part(entries, 0, id_prefix, gathered.spools, files)
    bounds = [len(entries) * part // workers for part in range(workers + 1)]
    parts = [files, *((folder / f"merged-{part}", folder / f"judgments-{part}") for part in range(1, workers))]
    futures = [
        pool.submit(_write_part, entries[start:stop], start, id_prefix, gathered.spools, part)
        for (start, stop), part in zip(itertools.pairwise(bounds), parts, strict=True)
    ]
    written = futures[0].result()
    for future, part in zip(futures[1:], parts[1:], strict=True):
        later = future.result()
        written.candidates += later.candidates
        written.without_box += later.without_box
        written.histogram.update(later.histogram)
        for source, target in zip(part, files, strict=True):
            with source.open("rb") as reading, target.open("ab") as writing:
                shutil.copyfileobj(reading, writing, _COPY_BYTES)
    return written


def _write_part(
    entries: list[Entry], first: int, id_prefix: str, spools: list[SpoolPart], files: tuple[Path, Path]
) -> _Written:
    """Write the lines of ``entries``, the first of which has number ``first``."""
    written = _Written()
    with SpoolReader(spools) as spool, files[0].open("wb") as merged, files[1].open("wb") as chosen:
        for number, entry in enumerate(entries, start=first):
            name = f"{id_prefix}-{number:06d}"
            texts = [spool.read(place).decode() for place in entry.candidates.values()]
            candidates = tuple(Candidate(text, last_boxed(text)) for text in texts)
            answer = next(iter(entry.answers))
            problem = Problem(name, entry.statement.decode(), answer, entry.pass_rate, entry.source, candidates)
            merged.write(orjson.dumps(problem.as_json(), option=orjson.OPT_APPEND_NEWLINE))
            selected = {
                str(index): entry.selected[digest]
                for index, digest in enumerate(entry.candidates)
                if digest in entry.selected
            }
            line = {"id": name, "selected": selected, "unreadable": entry.unreadable}
            chosen.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            written.candidates += len(candidates)
            written.without_box += sum(candidate.boxed is None for candidate in candidates)
            written.histogram[len(candidates)] += 1
    return written


def last_boxed(text: str) -> str | None:
    """:func:`extract_boxed`, looking first at the end of ``text`` only.

    The box that starts last counts, so when the text from the last box command on holds a complete one, that is the answer.
    """
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        return None
    return extract_boxed(text[start:]) or extract_boxed(text)


def _refuse_nothing(gathered: Gathered, problem_types: Sequence[str]) -> None:
    if gathered.rows_kept:
        return
    dropped = ", ".join(f"{kind} {rows}" for kind, rows in sorted(gathered.dropped.items())) or "none"
    refused = ", ".join(f"{reason} {rows}" for reason, rows in sorted(gathered.refusals.items())) or "none"
    sample = next((f" First refused: {samples[0]}." for samples in gathered.samples.values() if samples), "")
    raise GenselectError(
        f"no row is left of {gathered.rows_read} read. Of other problem types: {dropped}. Refused: {refused}.{sample}",
        f"Rows of dataset.problem_types ({', '.join(problem_types)}) are kept when their prompt has the form in docs/data-format.md.",
    )


def _stats(gathered: Gathered, written: _Written, shards: list[Shard], digests: dict[Path, str]) -> dict[str, Any]:
    conflicting = [entry for entry in gathered.problems.values() if len(entry.answers) > 1]
    return {
        "rows_read": gathered.rows_read,
        "rows_kept": gathered.rows_kept,
        "rows_dropped_by_problem_type": dict(sorted(gathered.dropped.items())),
        "rows_refused": sum(gathered.refusals.values()),
        "refusals": dict(sorted(gathered.refusals.items())),
        "refusal_samples": dict(sorted(gathered.samples.items())),
        "problems": len(gathered.problems),
        "candidates": written.candidates,
        "candidates_without_box": written.without_box,
        "candidates_per_problem": {str(count): written.histogram[count] for count in sorted(written.histogram)},
        "solutions_read": gathered.solutions,
        "duplicates": {
            "within_prompt": gathered.within_prompt,
            "over_prompts": gathered.solutions - gathered.within_prompt - written.candidates,
        },
        "conflicts": {
            "problems": len(conflicting),
            "rows": sum(sum(entry.answers.values()) - next(iter(entry.answers.values())) for entry in conflicting),
            "samples": [
                {"problem": entry.statement.decode()[:SAMPLE_CHARS], "answers": entry.answers}
                for entry in conflicting[:SAMPLES]
            ],
        },
        "judgments": {
            "rows_that_select": sum(sum(entry.selected.values()) for entry in gathered.problems.values()),
            "rows_unreadable": sum(entry.unreadable for entry in gathered.problems.values()),
        },
        "shards": [
            {"name": shard.path.name, "rows": shard.rows, "rows_kept": kept, "sha256": digests[shard.path]}
            for shard, kept in zip(shards, gathered.kept_by_shard, strict=True)
        ],
    }


def _log_outcome(values: dict[str, Any], output: Path) -> None:
    if values["rows_refused"] > _REFUSED_SHARE * (values["rows_kept"] + values["rows_refused"]):
        reasons = ", ".join(f"{reason} {rows}" for reason, rows in values["refusals"].items())
        logger.warning(
            "%d rows were refused (%s): look at refusal_samples in the stats", values["rows_refused"], reasons
        )
    logger.info(
        "%s: %d problems, %d distinct candidates, from %d of %d rows",
        output, values["problems"], values["candidates"], values["rows_kept"], values["rows_read"],
    )  # fmt: skip

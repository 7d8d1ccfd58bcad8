"""From labelled candidates to rows: which problems become rows, the eight candidates of each, and the train / held-out line.

Two passes over ``merged.jsonl``: the first decides, and keeps statements and candidate numbers only; the second writes. So
memory holds the statements, never the candidates' texts.
"""

from __future__ import annotations

import datetime
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from genselect.config import Config, fingerprint
from genselect.dataset.labels import Labels, load_labels
from genselect.dataset.near_duplicates import find_duplicates
from genselect.errors import GenselectError
from genselect.formats import ROW_SCHEMA, Problem, atomic_path, read_problems, write_json, write_jsonl
from genselect.provenance import write_seal

#: What ``build_rows`` writes, in the order of the seal; the seal itself is ``stats.json.seal.json``.
OUTPUTS = ("questions.jsonl", "train.parquet", "val.parquet", "partition.json", "stats.json")
_ROWS_A_GROUP = 512


@dataclass(frozen=True, slots=True)
class Drawn:
    """A problem that becomes a row."""

    id: str
    statement: str
    indices: tuple[int, ...]
    """Its candidates, as positions in the merged problem, in the order the environment reveals them."""
    correct: int
    """How many of them are correct."""


@dataclass
class Selection:
    """What the first pass found."""

    drawn: list[Drawn] = field(default_factory=list)
    problems: int = 0
    with_enough: int = 0
    """Problems with enough judged candidates for a row."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Problems that become no row, by reason."""
    too_long: int = 0
    """Candidates set aside by ``filters.max_candidate_chars``."""


@dataclass(frozen=True)
class Partition:
    """The population and its train part."""

    population: tuple[Drawn, ...]
    train_size: int
    near_duplicates: dict[str, Any]
    """Counts for ``stats.json``."""


def build_rows(merged: Path, labels_path: Path, output_dir: Path, config: Config) -> dict[str, Any]:
    """Write the five files of :data:`OUTPUTS` and their seal into ``output_dir``; returns the statistics.

    Raises:
        GenselectError: Labels of another merge, duplicate or missing labels, or no row left.
    """
    started = datetime.datetime.now(datetime.UTC)
    labels = load_labels(merged, labels_path)
    selection = select_problems(merged, labels, config)
    partition = split_population(selection, config)
    stats = _statistics(selection, partition, labels, config)
    _write(merged, labels, partition, config, output_dir, stats)
    build_identity = {"build": config.build.identity(), "prompt": config.prompt.identity()}
    write_seal(
        output_dir / "stats.json",
        kind="rows",
        counts={name: stats[name] for name in ("problems_kept", "train_rows", "held_out_rows", "val_rows_online")},
        outputs=[output_dir / name for name in OUTPUTS],
        inputs=[merged, labels_path],
        started=started,
        fingerprints={"build": fingerprint(build_identity), **labels.fingerprints},
        config=build_identity,
    )
    return stats


def select_problems(merged: Path, labels: Labels, config: Config) -> Selection:
    """Draw the candidates of every problem that can become a row.

    Unjudged candidates are set aside first, then over-long ones; of the rest ``candidates_per_row`` are drawn without
    replacement, by a generator seeded with the build seed and the problem's id, so that one problem's draw does not depend
    on another's. A draw with too few or too many correct drops the problem: drawing again until it fits would change the
    distribution that the policy is asked about.
    """
    build = config.build
    pattern = re.compile(build.filters.answer_pattern) if build.filters.answer_pattern is not None else None
    found = Selection()
    ids: set[str] = set()
    for problem in read_problems(merged):
        found.problems += 1
        ids.add(problem.id)
        verdicts = labels.of(problem)
        judged = [index for index, verdict in enumerate(verdicts) if verdict is not None]
        usable = judged
        if build.filters.max_candidate_chars is not None:
            usable = [
                index for index in judged if len(problem.candidates[index].text) <= build.filters.max_candidate_chars
            ]
            found.too_long += len(judged) - len(usable)
        enough = len(usable) >= build.candidates_per_row
        found.with_enough += enough
        if not enough:
            found.dropped["too_few_candidates"] += 1
        elif pattern and not pattern.fullmatch(problem.answer.strip()):
            found.dropped["answer_pattern"] += 1
        else:
            indices = tuple(random.Random(f"{build.seed}:{problem.id}").sample(usable, build.candidates_per_row))
            correct = sum(verdicts[index] is True for index in indices)
            if correct < build.min_correct:
                found.dropped["too_few_correct"] += 1
            elif correct > build.max_correct:
                found.dropped["too_many_correct"] += 1
            else:
                found.drawn.append(Drawn(problem.id, problem.problem, indices, correct))
    labels.check_no_others(ids)
    found.drawn.sort(key=lambda row: row.id)
    return found


def split_population(selection: Selection, config: Config) -> Partition:
    """Draw the train / held-out line so that no statement stands, nearly, on both sides.

    The first ``train_fraction`` of the population in id order is trained on. Held-out problems that nearly repeat a training
    problem leave the population; that moves the line, so it is drawn again until nothing straddles it. What leaves stays
    away, so this ends.
    """
    rows = selection.drawn
    groups = find_duplicates([row.statement for row in rows], config.build.near_duplicates)
    kept = list(range(len(rows)))
    while True:
        train_size = int(config.build.train_fraction * len(kept))
        trained = {groups.group[position] for position in kept[:train_size]}
        clean = [
            position for rank, position in enumerate(kept) if rank < train_size or groups.group[position] not in trained
        ]
        if len(clean) == len(kept):
            break
        kept = clean
    if train_size == 0 or train_size == len(kept):
        raise _nothing_left(selection, len(kept), train_size, config)
    counts = {"pairs": groups.pairs, "problems_involved": groups.duplicated, "held_out_dropped": len(rows) - len(kept)}
    return Partition(
        tuple(rows[position] for position in kept), train_size, {**config.build.near_duplicates.identity(), **counts}
    )


def _nothing_left(selection: Selection, population: int, train_size: int, config: Config) -> GenselectError:
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(selection.dropped.items())) or "none"
    return GenselectError(
        f"no rows to train on or to hold out: of {selection.problems} merged problems {population} are left, "
        f"{train_size} of them to train on; dropped: {reasons}",
        f"A row needs {config.build.candidates_per_row} judged candidates, {config.build.min_correct} to {config.build.max_correct} of "
        "them correct: loosen build.candidates_per_row, build.min_correct, build.max_correct or build.filters, or merge more shards.",
    )


def _statistics(selection: Selection, partition: Partition, labels: Labels, config: Config) -> dict[str, Any]:
    build, judge = config.build, config.judge
    counts = Counter(row.correct for row in partition.population)
    held_out = len(partition.population) - partition.train_size
    return {
        "problems_merged": selection.problems,
        "problems_with_eight_candidates": selection.with_enough,
        "problems_kept": len(partition.population),
        "problems_dropped": {
            **dict(sorted(selection.dropped.items())),
            "near_duplicate": partition.near_duplicates["held_out_dropped"],
        },
        "train_rows": partition.train_size,
        "held_out_rows": held_out,
        "val_rows_online": min(build.val_rows_online, held_out),
        "candidates_per_row": build.candidates_per_row,
        "correct_of_eight": {str(count): counts[count] for count in range(build.min_correct, build.max_correct + 1)},
        "candidates_judged": labels.judged,
        "candidates_correct": labels.correct,
        "candidates_unjudged_dropped": labels.unjudged,
        "candidates_too_long_set_aside": selection.too_long,
        "candidates_by_source": labels.by_source,
        "upstream_agreement": labels.upstream_agreement(),
        "labelling": labels.labelling_counts,
        "duplicates": labels.merge_duplicates,
        "near_duplicates": partition.near_duplicates,
        "seed": build.seed,
        "cost_usd_per_candidate": build.cost_usd_per_candidate,
        "judge": {
            "kind": judge.kind,
            "model": judge.model if judge.kind != "rule" else None,
            "revision": judge.revision if judge.kind != "rule" else None,
            "address": judge.endpoints or None,
            "enable_thinking": judge.sampling.enable_thinking,
            "sampling": judge.sampling.identity(),
            "fingerprint": labels.fingerprints.get("judge"),
        },
    }


def _write(
    merged: Path, labels: Labels, partition: Partition, config: Config, output_dir: Path, stats: dict[str, Any]
) -> None:
    output_dir.mkdir(parents=True, exist_ok=True)
    ids = [row.id for row in partition.population]
    online = config.build.val_rows_online
    with _RowFile(output_dir / "train.parquet") as train, _RowFile(output_dir / "val.parquet") as val:

        def questions() -> Iterator[dict[str, Any]]:
            for rank, (drawn, problem) in enumerate(_drawn_problems(merged, partition)):
                split = "train" if rank < partition.train_size else "held_out"
                question = make_question(problem, drawn, cached_candidates(problem, drawn, labels, config), split)
                row = row_of_question(question, config, labels.fingerprints.get("judge"))
                if rank < partition.train_size:
                    train.add(row)
                elif rank < partition.train_size + online:
                    val.add(row)
                yield question

        write_jsonl(output_dir / "questions.jsonl", questions())
    write_json(output_dir / "partition.json", {"population_ids": ids, "train_ids": ids[: partition.train_size]})
    write_json(output_dir / "stats.json", stats)


def _drawn_problems(merged: Path, partition: Partition) -> Iterator[tuple[Drawn, Problem]]:
    """The population with its merged problems, in id order (the order of the merge, which numbers as it goes)."""
    wanted = {row.id: row for row in partition.population}
    for problem in read_problems(merged):
        if problem.id in wanted:
            yield wanted[problem.id], problem


def cached_candidates(problem: Problem, drawn: Drawn, labels: Labels, config: Config) -> list[dict[str, Any]]:
    """The drawn candidates as rows and questions hold them, in the order the environment reveals them."""
    verdicts = labels.of(problem)
    return [
        {
            "answer": problem.candidates[index].boxed,
            "reasoning": problem.candidates[index].text,
            "cost_usd": config.build.cost_usd_per_candidate,
            "timed_out": False,
            "is_correct": verdicts[index] is True,
        }
        for index in drawn.indices
    ]


def row_of_question(question: Mapping[str, Any], config: Config, judge_fingerprint: str | None) -> dict[str, Any]:
    """The row of one line of ``questions.jsonl``, in the shape of :data:`genselect.formats.ROW_SCHEMA`.

    Args:
        question: The line.
        config: Its ``build``, ``prompt`` and ``judge`` are read.
        judge_fingerprint: Of the judge of the labels.
    """
    build = config.build
    judge = {"kind": config.judge.kind, "model": config.judge.model, "fingerprint": judge_fingerprint}
    if config.judge.kind == "rule":
        judge["model"] = None
    return {
        "data_source": build.data_source,
        "agent_name": build.agent_name,
        "ability": "orchestration",
        "prompt": [
            {"role": "system", "content": config.prompt.system},
            {"role": "user", "content": config.prompt.user.format(problem=question["question"])},
        ],
        "reward_model": {
            "style": "rule" if config.judge.kind == "rule" else "judge",
            "ground_truth": question["answer"],
        },
        "extra_info": {
            "question_id": question["question_id"],
            "question": question["question"],
            "benchmark": build.benchmark,
            "benchmark_spec": {"name": build.benchmark, "judge": judge},
            "max_explores": build.max_explores,
            "correct_of_eight": question["correct_of_eight"],
            "pass_rate_72b_tir": question["pass_rate_72b_tir"],
            "cached_candidates": question["cached_candidates"],
        },
    }


def make_question(
    problem: Problem, drawn: Drawn, candidates: Sequence[Mapping[str, Any]], split: str
) -> dict[str, Any]:
    """The line of ``questions.jsonl``: the whole population with its candidates, which evaluation reads."""
    return {
        "question_id": problem.id,
        "question": problem.problem,
        "answer": problem.answer,
        "split": split,
        "problem_source": problem.problem_source,
        "pass_rate_72b_tir": problem.pass_rate_72b_tir,
        "correct_of_eight": drawn.correct,
        "candidate_indices": list(drawn.indices),
        "cached_candidates": list(candidates),
    }


class _RowFile:
    """Rows into one Parquet file, a row group at a time, that appears whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._atomic = atomic_path(path)
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> _RowFile:
        self._writer = pq.ParquetWriter(self._atomic.__enter__(), ROW_SCHEMA, compression="zstd")
        return self

    def add(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) == _ROWS_A_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=ROW_SCHEMA))
            self._rows = []

    def __exit__(self, *failure: Any) -> None:
        try:
            if failure[0] is None:
                self._flush()
        finally:
            self._writer.close()
        self._atomic.__exit__(*failure)

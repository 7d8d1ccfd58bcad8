"""Fixed rows for the overfitting control, chosen by how a policy's samples split on them.

Two selections, as in the study. The *band* set (64 rows) takes rows whose samples split evenly enough to learn from, as many
of each pass count. The *split* set (32 rows) takes, of a band set, the rows that two further draws also split. Both copy rows
unchanged from a built ``train.parquet``.

Records are read by column, from ``records/step_<n>.parquet`` of a run or of the untrained policy's rollout.
"""

from __future__ import annotations

import csv
import datetime
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from genselect.config import fingerprint
from genselect.errors import GenselectError
from genselect.formats import atomic_path, write_json
from genselect.provenance import write_seal

#: Columns of a record file that a selection reads.
RECORD_COLUMNS = ("question_id", "sample", "step", "attempt", "verdict", "response_tokens", "length_capped")

_BAND_COLUMNS = ("question_id", "pass_count", "mean_response_tokens")
_SPLIT_COLUMNS = ("question_id", "pass_count", "first_pass_count", "second_pass_count", "mean_response_tokens")


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """What rows are wanted.

    Raises:
        GenselectError: No such rows can exist.
    """

    bands: tuple[int, ...] = (2, 3, 4, 5)
    """Pass counts to take rows of."""
    per_band: int = 16
    """Rows of each."""
    samples: int = 8
    """Samples in a question's draw; draws with another number are set aside."""
    max_length_capped: int = 1
    """Length-capped samples that a draw may have. Not asked of the split set."""
    max_mean_tokens: float = 12_000.0
    """Mean response tokens must be under this. Not asked of the split set."""
    seed: int = 1
    """Draws the rows of each band."""

    def __post_init__(self) -> None:
        if self.samples < 2 or self.per_band < 1:
            raise GenselectError(
                f"samples is {self.samples} and per_band is {self.per_band}",
                "At least 2 samples, at least 1 row a band.",
            )
        if (
            not self.bands
            or len(set(self.bands)) < len(self.bands)
            or not set(self.bands) <= set(range(self.samples + 1))
        ):
            raise GenselectError(
                f"bands are {list(self.bands)}",
                f"Name distinct pass counts from 0 to {self.samples}, the samples of a draw.",
            )


@dataclass(frozen=True, slots=True)
class Draw:
    """How one question's samples came out at one step."""

    passed: int
    length_capped: int
    mean_response_tokens: float


@dataclass(frozen=True)
class Draws:
    """The first whole draw of each question, and what was set aside."""

    by_question: Mapping[str, Draw]
    incomplete: int
    """Questions of which no draw is whole."""


def select_bands(
    rows: Path, records: Sequence[Path], output_dir: Path, settings: SelectionSettings
) -> list[dict[str, Any]]:
    """Write the band set into ``output_dir``: train.parquet, val.parquet (the same rows), selection.csv and its seal.

    Args:
        rows: A built ``train.parquet``.
        records: Record files of one policy's draws. A question drawn several times counts with its first whole draw, by step
            and attempt.
        output_dir: Folder, made if absent.
        settings: What to choose.

    Returns:
        The lines of ``selection.csv``: question_id, pass_count, mean_response_tokens.

    Raises:
        GenselectError: A file cannot be used, or a band cannot be filled.
    """
    started = datetime.datetime.now(datetime.UTC)
    table = _read_rows(rows)
    order = _question_ids(table, rows)
    draws = read_draws(records, settings.samples)
    _check_overlap(order, draws, rows, records)
    funnel: Counter[str] = Counter({"drawn": 0})
    available: dict[int, list[str]] = {band: [] for band in settings.bands}
    for question in order:
        if (draw := draws.by_question.get(question)) is None:
            continue
        funnel["drawn"] += 1
        if draw.passed not in available:
            funnel["outside of the bands"] += 1
        elif draw.length_capped > settings.max_length_capped:
            funnel[f"in a band with over {settings.max_length_capped} length-capped"] += 1
        elif draw.mean_response_tokens >= settings.max_mean_tokens:
            funnel[f"in a band with a mean response of {settings.max_mean_tokens:g} tokens or more"] += 1
        else:
            available[draw.passed].append(question)
    funnel["without a whole draw"] = draws.incomplete
    chosen = _choose(available, settings, funnel, "Name records of more steps, lower --per-band, or loosen the limits.")
    lines = [
        {
            "question_id": question,
            "pass_count": draws.by_question[question].passed,
            "mean_response_tokens": draws.by_question[question].mean_response_tokens,
        }
        for question in order
        if question in chosen
    ]
    _write(output_dir, table, order, lines, _BAND_COLUMNS, [rows, *records], settings, started, partition=False)
    return lines


def select_split_in_both(
    rows: Path,
    selection: Path,
    first: Sequence[Path],
    second: Sequence[Path],
    output_dir: Path,
    settings: SelectionSettings,
) -> list[dict[str, Any]]:
    """Write the split set: rows of a band set whose samples split between 1 and n − 1 in both records.

    As :func:`select_bands`, and ``partition.json``, in which all chosen rows are trained on and none is held out.

    Args:
        rows: The band set's ``train.parquet``.
        selection: Its ``selection.csv``, which knows each row's band.
        first: Record files of one draw.
        second: Record files of another.
        output_dir: Folder, made if absent.
        settings: ``bands``, ``per_band``, ``samples`` and ``seed`` are used; a band is one of the original selection.

    Returns:
        The lines of ``selection.csv``: question_id, pass_count (of the band set), first_pass_count, second_pass_count,
        mean_response_tokens (over both draws).

    Raises:
        GenselectError: A file cannot be used, or a band cannot be filled.
    """
    started = datetime.datetime.now(datetime.UTC)
    table = _read_rows(rows)
    order = _question_ids(table, rows)
    bands = _read_bands(selection, order)
    draws = [read_draws(files, settings.samples) for files in (first, second)]
    for found, files in zip(draws, (first, second), strict=True):
        _check_overlap(order, found, rows, files)
    funnel: Counter[str] = Counter({"drawn in both": 0})
    available: dict[int, list[str]] = {band: [] for band in settings.bands}
    for question in order:
        pair = [found.by_question.get(question) for found in draws]
        if None in pair:
            funnel["not whole in both records"] += 1
            continue
        funnel["drawn in both"] += 1
        if not all(draw is not None and 0 < draw.passed < settings.samples for draw in pair):
            funnel["all right or all wrong in one"] += 1
        elif bands[question] not in available:
            funnel["outside of the bands"] += 1
        else:
            available[bands[question]].append(question)
    chosen = _choose(available, settings, funnel, "Lower --per-band, or name records of another pair of draws.")
    one, two = (found.by_question for found in draws)
    lines = [
        {
            "question_id": question,
            "pass_count": bands[question],
            "first_pass_count": one[question].passed,
            "second_pass_count": two[question].passed,
            "mean_response_tokens": (one[question].mean_response_tokens + two[question].mean_response_tokens) / 2,
        }
        for question in order
        if question in chosen
    ]
    inputs = [rows, selection, *first, *second]
    _write(output_dir, table, order, lines, _SPLIT_COLUMNS, inputs, settings, started, partition=True)
    return lines


def read_draws(records: Sequence[Path], samples: int) -> Draws:
    """The first whole draw of each question, by step and attempt: exactly samples 0 to ``samples`` − 1.

    Raises:
        GenselectError: A file is missing or is no record file, or a sample is there twice.
    """
    found: dict[tuple[str, int, int], dict[int, dict[str, Any]]] = defaultdict(dict)
    for path in records:
        for row in _read_parquet(path, list(RECORD_COLUMNS)).to_pylist():
            group = found[row["question_id"], row["step"], row["attempt"]]
            if row["sample"] in group:
                raise GenselectError(
                    f"{path}: {row['question_id']}, sample {row['sample']} of step {row['step']}, attempt {row['attempt']} is "
                    "there twice",
                    "Name each record file once.",
                )
            group[row["sample"]] = row
    draws: dict[str, Draw] = {}
    for question, step, attempt in sorted(found):
        group = found[question, step, attempt]
        if question in draws or set(group) != set(range(samples)):
            continue
        draws[question] = Draw(
            passed=sum(row["verdict"] for row in group.values()),
            length_capped=sum(row["length_capped"] for row in group.values()),
            mean_response_tokens=sum(row["response_tokens"] for row in group.values()) / samples,
        )
    return Draws(draws, len({question for question, _, _ in found} - draws.keys()))


def _choose(
    available: Mapping[int, Collection[str]], settings: SelectionSettings, funnel: Mapping[str, int], hint: str
) -> set[str]:
    counts = ", ".join(f"band {band}: {len(questions)}" for band, questions in available.items())
    if any(len(questions) < settings.per_band for questions in available.values()):
        reasons = ", ".join(f"{count} {reason}" for reason, count in funnel.items())
        raise GenselectError(
            f"{settings.per_band} rows a band are wanted, and there are {counts} (questions: {reasons})", hint
        )
    chosen: set[str] = set()
    for band, questions in available.items():
        # A generator of its own: one band's draw does not depend on the others.
        chosen.update(random.Random(f"{settings.seed}:{band}").sample(sorted(questions), settings.per_band))
    return chosen


def _write(
    output_dir: Path,
    table: pa.Table,
    order: Sequence[str],
    lines: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    inputs: Sequence[Path],
    settings: SelectionSettings,
    started: datetime.datetime,
    *,
    partition: bool,
) -> None:
    if (output_dir / "train.parquet").resolve() == inputs[0].resolve():
        raise GenselectError(
            f"{output_dir}: the rows to choose from lie there and would be overwritten", "Name another --output-dir."
        )
    chosen = [str(line["question_id"]) for line in lines]
    kept = table.filter(pa.array([question in set(chosen) for question in order], pa.bool_())).combine_chunks()
    outputs = [output_dir / "train.parquet", output_dir / "val.parquet"]
    for path in outputs:
        with atomic_path(path) as temporary:
            pq.write_table(kept, temporary, compression="zstd")
    if partition:
        outputs.append(output_dir / "partition.json")
        write_json(outputs[-1], {"population_ids": chosen, "train_ids": chosen})
    outputs.append(output_dir / "selection.csv")
    with atomic_path(outputs[-1]) as temporary, temporary.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    config = {**asdict(settings), "bands": list(settings.bands)}
    write_seal(
        output_dir / "selection.csv",
        kind="overfit_selection",
        counts={
            "rows": len(chosen),
            "bands": {str(band): n for band, n in sorted(Counter(line["pass_count"] for line in lines).items())},
        },
        outputs=outputs,
        inputs=inputs,
        started=started,
        fingerprints={"selection": fingerprint(config)},
        config=config,
    )


def _read_rows(path: Path) -> pa.Table:
    table = _read_parquet(path, None)
    if "extra_info" not in table.column_names:
        raise GenselectError(f"{path}: it has no extra_info, so it holds no built rows", "Name a built train.parquet.")
    return table


def _question_ids(table: pa.Table, path: Path) -> list[str]:
    ids = [extra["question_id"] for extra in table.select(["extra_info"]).column(0).to_pylist()]
    if repeated := [question for question, count in Counter(ids).items() if count > 1]:
        raise GenselectError(f"{path}: {repeated[0]} has several rows", "Build the rows again; a question is one row.")
    return ids


def _read_bands(path: Path, order: Iterable[str]) -> dict[str, int]:
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            bands = {line["question_id"]: int(line["pass_count"]) for line in csv.DictReader(handle)}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise GenselectError(
            f"{path}: not a selection with question_id and pass_count: {error!r}",
            "Name the selection.csv that was written with the rows (--selection).",
        ) from None
    if missing := [question for question in order if question not in bands]:
        raise GenselectError(
            f"{path}: {missing[0]} is among the rows and not here", "Name the selection.csv written with these rows."
        )
    return bands


def _check_overlap(order: Iterable[str], draws: Draws, rows: Path, records: Sequence[Path]) -> None:
    if not set(order) & draws.by_question.keys():
        raise GenselectError(
            f"no row of {rows} has a whole draw in {', '.join(map(str, records)) or 'the records (none named)'} "
            f"({len(draws.by_question)} questions with one, {draws.incomplete} without)",
            "Name records of a run on these rows, and --samples as the run drew them.",
        )


def _read_parquet(path: Path, columns: list[str] | None) -> pa.Table:
    try:
        file = pq.ParquetFile(path)
        if missing := [name for name in columns or [] if name not in file.schema_arrow.names]:
            raise GenselectError(
                f"{path}: columns are missing: {', '.join(missing)}", "Name a run's records/step_<n>.parquet."
            )
        return file.read(columns=columns)
    except FileNotFoundError:
        raise GenselectError(
            f"{path}: there is no such file", "Run the step that makes it, or check the path."
        ) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise GenselectError(
            f"{path}: not a readable Parquet file: {error}", "Check the path, or make it again."
        ) from None

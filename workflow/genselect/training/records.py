"""Trajectory records: one Parquet row a trajectory, one file a step.

``records/step_<n>.parquet`` holds what a person or a later rule asks about a trajectory. The per-token arrays go to its
sibling ``records/tokens_step_<n>.parquet``, keyed alike, so that publishing can leave them out. Rows are sorted by question,
sample and attempt, so one step always gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from genselect.episode import EndReason, Score
from genselect.errors import GenselectError
from genselect.formats import atomic_path

#: One trajectory, by question, sample and attempt.
Key = tuple[str, int, int]

_KEY_FIELDS = [("question_id", pa.string()), ("sample", pa.int32()), ("attempt", pa.int32())]

#: A row of ``step_<n>.parquet``. ``score`` and ``first_value`` follow from other columns and are there for readers.
RECORD_SCHEMA = pa.schema(
    [
        *_KEY_FIELDS,
        ("step", pa.int32()),
        ("explores", pa.int32()),
        ("revealed", pa.int32()),
        ("submitted", pa.string()),
        ("verdict", pa.bool_()),
        ("verdict_source", pa.string()),
        ("well_formed", pa.bool_()),
        ("end", pa.string()),
        ("score", pa.float64()),
        ("score_verdict", pa.float64()),
        ("score_format", pa.float64()),
        ("score_cost", pa.float64()),
        ("shaping", pa.float64()),
        ("prompt_tokens", pa.int32()),
        ("response_tokens", pa.int32()),
        ("turns", pa.int32()),
        ("length_capped", pa.bool_()),
        ("decision_tokens", pa.list_(pa.int32())),
        ("decision_k", pa.list_(pa.int32())),
        ("decision_phi", pa.list_(pa.float64())),
        ("decision_logits", pa.list_(pa.float64())),
        ("decision_values", pa.list_(pa.float64())),
        ("first_value", pa.float64()),
        ("text", pa.string()),
    ]
)

_TOKEN_COLUMNS = {
    "response_ids": np.int32,
    "response_mask": np.int8,
    "rollout_log_probs": np.float32,
    "old_log_probs": np.float32,
    "advantages": np.float32,
    "returns": np.float32,
    "values": np.float32,
}

#: A row of ``tokens_step_<n>.parquet``. An array that the algorithm does not make (values under GRPO) is null.
TOKEN_SCHEMA = pa.schema(
    [*_KEY_FIELDS, *((name, pa.list_(pa.from_numpy_dtype(kind))) for name, kind in _TOKEN_COLUMNS.items())]
)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode as it was played, judged and valued.

    The ``decision_*`` tuples run over the decision points at which the policy wrote at least one token, in order; the first
    is the end of the prompt. Those of models that the run does not have are empty.

    Raises:
        ValueError: The fields contradict each other.
    """

    question_id: str
    sample: int
    """0 to n - 1 within the question's draw."""
    step: int
    """Training step whose draw it belongs to."""
    attempt: int
    """Which start of the run drew it: a step that was drawn again after a resume keeps both draws."""
    explores: int
    """Calls of explore, those that found no candidate left included."""
    revealed: int
    """Candidates revealed, which is what costs."""
    submitted: str | None
    """The submitted answer; None without a submission."""
    verdict: bool
    """Whether it is right; False without a submission."""
    verdict_source: str
    """Who decided: a candidate's label reused, a stage of the cascade, or ``none``."""
    well_formed: bool
    """Whether it ended in a submission."""
    end: str
    """One of :class:`genselect.episode.EndReason`."""
    score_verdict: float
    score_format: float
    score_cost: float
    """Minus the cost of the explores; 0 or negative."""
    shaping: float
    """Sum of the potential shaping over the episode; 0 when it is off."""
    prompt_tokens: int
    response_tokens: int
    """Policy and tool tokens after the prompt, as trained on."""
    turns: int
    length_capped: bool
    """Whether the token limit cut it."""
    decision_tokens: tuple[int, ...]
    """Index within the response of the first token written from each decision point."""
    decision_k: tuple[int, ...]
    """Candidates revealed at each."""
    decision_phi: tuple[float, ...] = ()
    """Φ at each."""
    decision_logits: tuple[float, ...] = ()
    """The submit predictor's logit at each, before the step's update."""
    decision_values: tuple[float, ...] = ()
    """The critic's value at each, before the step's update."""
    text: str = ""
    """The response, decoded with special tokens."""

    def __post_init__(self) -> None:
        if fault := self._fault():
            raise ValueError(f"trajectory {self.question_id}, sample {self.sample}, step {self.step}: {fault}")

    @property
    def key(self) -> Key:
        """What tells it from the others of its step."""
        return self.question_id, self.sample, self.attempt

    @property
    def score(self) -> float:
        """The sum of its pieces, added as :class:`genselect.episode.Score` adds them."""
        return Score(self.score_verdict, self.score_format, self.score_cost).total

    @property
    def first_value(self) -> float | None:
        """The critic's value at the first response token; None without a critic."""
        return self.decision_values[0] if self.decision_values else None

    def _fault(self) -> str | None:
        if self.end not in set(EndReason):
            return f"end is {self.end!r}, not one of {', '.join(EndReason)}"
        if self.well_formed != (self.end == EndReason.SUBMIT) or self.well_formed != (self.submitted is not None):
            return f"end {self.end}, well_formed {self.well_formed} and submitted {self.submitted!r} do not go together"
        if self.verdict and not self.well_formed:
            return "a verdict of right without a submission"
        if self.revealed > self.explores:
            return f"{self.revealed} candidates revealed by {self.explores} explores"
        points = len(self.decision_tokens)
        for name in ("decision_k", "decision_phi", "decision_logits", "decision_values"):
            length = len(getattr(self, name))
            if length != points and (length or name == "decision_k"):
                return f"{name} has {length} entries for {points} decision points"
        if any(not 0 <= token < self.response_tokens for token in self.decision_tokens):
            return f"a decision point outside of the {self.response_tokens} response tokens"
        return None


@dataclass(frozen=True, slots=True)
class TokenArrays:
    """The per-token arrays of one trajectory, each of shape (response_tokens,); None for one that the run does not make.

    Raises:
        ValueError: The lengths differ.
    """

    question_id: str
    sample: int
    attempt: int
    response_ids: NDArray[np.int32]
    response_mask: NDArray[np.int8]
    """1 for the policy's tokens, 0 for tool responses."""
    rollout_log_probs: NDArray[np.float32] | None = None
    """As the rollout engine sampled them, in nats."""
    old_log_probs: NDArray[np.float32] | None = None
    """As the actor gave them before the update, in nats."""
    advantages: NDArray[np.float32] | None = None
    returns: NDArray[np.float32] | None = None
    values: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        lengths = {name: len(array) for name in _TOKEN_COLUMNS if (array := getattr(self, name)) is not None}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"tokens of {self.question_id}, sample {self.sample}: lengths differ: {lengths}")

    @property
    def key(self) -> Key:
        """The trajectory's."""
        return self.question_id, self.sample, self.attempt


def records_path(folder: Path | str, step: int) -> Path:
    """Where a step's trajectories lie."""
    return Path(folder) / f"step_{step}.parquet"


def tokens_path(folder: Path | str, step: int) -> Path:
    """Where a step's per-token arrays lie."""
    return Path(folder) / f"tokens_step_{step}.parquet"


def write_step(
    folder: Path | str, step: int, trajectories: Iterable[Trajectory], tokens: Iterable[TokenArrays] | None = None
) -> Path:
    """Write one step's records, whole or not at all; returns the file of the trajectories.

    Rows that other attempts left in the step's files stay; rows of the attempts written now are replaced. The per-token file
    is written first, so that a file of trajectories always finds its arrays.

    Args:
        folder: The run's ``records/``.
        step: The step; every trajectory must name it.
        trajectories: At least one.
        tokens: Arrays of exactly these trajectories, or None to write none.

    Raises:
        GenselectError: An existing file of the step cannot be read.
        ValueError: Nothing to write, another step's trajectory, a trajectory twice, or arrays of other trajectories.
    """
    rows = list(trajectories)
    if not rows:
        raise ValueError(f"step {step} has no trajectory to record")
    if strays := sorted({row.step for row in rows} - {step}):
        raise ValueError(f"trajectories of step {strays[0]} in the records of step {step}")
    keys = _distinct([row.key for row in rows], f"records of step {step}")
    attempts = {row.attempt for row in rows}
    if tokens is not None:
        arrays = list(tokens)
        if set(_distinct([row.key for row in arrays], f"tokens of step {step}")) != set(keys):
            raise ValueError(f"step {step}: the per-token arrays are not those of its trajectories")
        new = pa.Table.from_pylist([_token_row(row) for row in arrays], schema=TOKEN_SCHEMA)
        _write_merged(tokens_path(folder, step), new, attempts, TOKEN_SCHEMA)
    new = pa.Table.from_pylist([_record_row(row) for row in rows], schema=RECORD_SCHEMA)
    path = records_path(folder, step)
    _write_merged(path, new, attempts, RECORD_SCHEMA)
    return path


def read_records(path: Path | str, *, attempt: int | None = None) -> list[Trajectory]:
    """The trajectories of a ``step_<n>.parquet``, those of one attempt if one is named, in the file's order.

    Raises:
        GenselectError: The file is missing, is not a record file, or a row contradicts itself.
    """
    names = [field.name for field in fields(Trajectory)]
    found = []
    for number, row in enumerate(_read(Path(path), RECORD_SCHEMA).to_pylist()):
        values: dict[str, Any] = {
            name: tuple(row[name]) if name.startswith("decision_") else row[name] for name in names
        }
        try:
            trajectory = Trajectory(**values)
        except ValueError as error:
            raise GenselectError(f"{path}, row {number}: {error}", "The file was changed; restore it.") from None
        if attempt is None or trajectory.attempt == attempt:
            found.append(trajectory)
    return found


def read_tokens(path: Path | str) -> dict[Key, TokenArrays]:
    """The per-token arrays of a ``tokens_step_<n>.parquet``, by question, sample and attempt.

    Raises:
        GenselectError: The file is missing or is not such a file.
    """
    table = _read(Path(path), TOKEN_SCHEMA).combine_chunks()
    # Sliced out of the columns' own buffers: as Python lists, a step of the study would be 40 million numbers.
    columns = {name: _slices(table[name]) for name in _TOKEN_COLUMNS}
    keys = zip(*(table[name].to_pylist() for name, _ in _KEY_FIELDS), strict=True)
    return {
        key: TokenArrays(*key, **{name: slices[row] for name, slices in columns.items()})
        for row, key in enumerate(keys)
    }


def recorded_steps(folder: Path | str) -> list[int]:
    """Steps with a file of trajectories, ascending."""
    matches = (re.fullmatch(r"step_(\d+)\.parquet", path.name) for path in Path(folder).glob("step_*.parquet"))
    return sorted(int(match[1]) for match in matches if match)


def episode_metrics(trajectories: Sequence[Trajectory], candidates: int) -> dict[str, float]:
    """Figures of one step's draw, by the names that the guards and the progress line read.

    Args:
        trajectories: At least one.
        candidates: Candidates a row has.

    Raises:
        ValueError: No trajectory.
    """
    if not trajectories:
        raise ValueError("a step without a trajectory has no episode metrics")
    count = len(trajectories)
    return {
        "episode/verdict": sum(row.verdict for row in trajectories) / count,
        "episode/score": sum(row.score for row in trajectories) / count,
        "episode/no_submission_share": sum(not row.well_formed for row in trajectories) / count,
        "episode/zero_explore_share": sum(row.explores == 0 for row in trajectories) / count,
        "episode/zero_explore_submissions": float(sum(row.explores == 0 and row.well_formed for row in trajectories)),
        "episode/mean_explores": sum(row.explores for row in trajectories) / count,
        "episode/revealed_share": sum(row.revealed for row in trajectories) / (count * candidates),
        "episode/length_capped_share": sum(row.length_capped for row in trajectories) / count,
    }


def _record_row(row: Trajectory) -> dict[str, Any]:
    return {name: getattr(row, name) for name in RECORD_SCHEMA.names}


def _token_row(row: TokenArrays) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(row, name) for name, _ in _KEY_FIELDS}
    for name, kind in _TOKEN_COLUMNS.items():
        array = getattr(row, name)
        values[name] = None if array is None else np.asarray(array, dtype=kind)
    return values


def _slices(column: pa.ChunkedArray) -> list[Any]:
    """Each row's list as a numpy array, None where it is null."""
    found: list[Any] = []
    for chunk in column.chunks:
        numbers, offsets, valid = chunk.values.to_numpy(), chunk.offsets.to_numpy(), chunk.is_valid().to_pylist()
        found += [numbers[offsets[row] : offsets[row + 1]] if valid[row] else None for row in range(len(chunk))]
    return found


def _distinct(keys: Sequence[Key], where: str) -> Sequence[Key]:
    seen: set[Key] = set()
    for key in keys:
        if key in seen:
            raise ValueError(f"{where}: {key[0]}, sample {key[1]}, attempt {key[2]} is there twice")
        seen.add(key)
    return keys


def _write_merged(path: Path, new: pa.Table, attempts: set[int], schema: pa.Schema) -> None:
    if path.exists():
        old = _read(path, schema)
        kept = [attempt not in attempts for attempt in old["attempt"].to_pylist()]
        new = pa.concat_tables([old.filter(pa.array(kept, pa.bool_())), new])
    # One chunk whatever was merged, so that the bytes depend on the rows alone.
    new = new.sort_by([(name, "ascending") for name, _ in _KEY_FIELDS]).combine_chunks()
    with atomic_path(path) as temporary:
        pq.write_table(new, temporary, compression="zstd")


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise GenselectError(f"{path}: there is no such file", "Check the run's records folder and the step.") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise GenselectError(
            f"{path}: not a readable Parquet file: {error}", "Restore it, or let the run redo the step."
        ) from None
    if missing := [name for name in schema.names if name not in table.column_names]:
        raise GenselectError(
            f"{path}: columns are missing: {', '.join(missing)}",
            "It is not a record file of this version; name a run's records/step_<n>.parquet.",
        )
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise GenselectError(
            f"{path}: a column has another type than the schema: {error}", "It was written by another version."
        ) from None

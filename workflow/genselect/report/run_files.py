"""What the report shows of one training run, out of its run directory (``docs/run-directory.md``).

A run may be going on while it is read: a last line of metrics that is still being written is passed over, and only steps with a
line of metrics, which is written after a step's other files, count.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from genselect.errors import GenselectError
from genselect.formats import parse_line, read_json
from genselect.training.records import recorded_steps, records_path


class HeldOut(NamedTuple):
    """One validation."""

    verdict: float
    """Share of the held-out questions answered rightly."""
    rows: int | None
    """Questions; None where the file does not say."""


@dataclass(frozen=True)
class RunFiles:
    """One run's files, read."""

    name: str
    settings: dict[str, Any]
    """The resolved settings that change the result: ``identity.run`` of the manifest. Guards are not among them."""
    attempts: list[dict[str, Any]]
    """Entries of the manifest, in order."""
    metrics: list[dict[str, Any]]
    """Lines of the training steps, by step; undefined figures are None or absent."""
    validation: dict[int, HeldOut]
    """By step, ascending; step 0 is the policy before training."""
    health: dict[str, Any] | None = None
    """``health.json``."""
    proofs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """Each with ``name``, ``passed``, ``numbers``, ``message``; by step, ascending."""
    potential: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Calibration reports: ``predictor`` and ``critic``, those that the run has; by step, ascending."""
    explores: dict[int, dict[int, int]] = field(default_factory=dict)
    """Trajectories by number of explores, at each step, ascending; of a step drawn twice, its newest draw."""
    done: dict[str, Any] | None = None
    """``done.json``; None while the run is not finished."""

    @property
    def steps(self) -> list[int]:
        """The training steps, ascending."""
        return [line["step"] for line in self.metrics]

    def series(self, metric: str) -> NDArray[np.float64]:
        """A metric at each of :attr:`steps`, shape (steps,); nan where it is not defined."""
        return np.array([_number(line.get(metric)) for line in self.metrics], dtype=np.float64)

    def resumes(self) -> dict[int, int]:
        """The first step of each attempt that went on behind an earlier one's steps: attempt by step."""
        pairs = zip(self.metrics, self.metrics[1:], strict=False)
        return {line["step"]: line["attempt"] for before, line in pairs if line.get("attempt") != before.get("attempt")}


def read_run_files(folder: Path) -> RunFiles:
    """Read one run directory.

    Args:
        folder: ``results/runs/<run>``.

    Raises:
        GenselectError: ``manifest.json`` or ``metrics.jsonl`` is missing, or a file is damaged.
    """
    manifest = _manifest(folder / "manifest.json")
    lines = _lines(folder / "metrics.jsonl")
    # A start that was made again from nothing writes the validation before training again: the later line counts.
    metrics = {line["step"]: line for line in lines if any(name.startswith("episode/") for name in line)}
    return RunFiles(
        name=manifest.get("run") or folder.name,
        settings=manifest["identity"].get("run") or {},
        attempts=manifest.get("attempts") or [],
        metrics=[metrics[step] for step in sorted(metrics)],
        validation=_validation(lines),
        health=_optional(folder / "health.json"),
        proofs=_by_step(folder / "proofs", metrics, list),
        potential=_by_step(folder / "potential", metrics, dict),
        explores={
            step: _explores(records_path(folder / "records", step))
            for step in recorded_steps(folder / "records")
            if step in metrics
        },
        done=_optional(folder / "done.json"),
    )


def _manifest(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise GenselectError(
            f"{path}: there is no such file, so this is no run directory",
            "Name a folder in results/runs, or train the run first (snakemake train).",
        )
    values = read_json(path)
    if not isinstance(values, dict) or not isinstance(values.get("identity"), dict):
        raise GenselectError(
            f"{path}: not the manifest of a run", "Restore the file, or delete the run directory and train again."
        )
    return values


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise GenselectError(
            f"{path}: there is no such file, so the run has not finished a step",
            "Wait for its first step, or look at the newest log in the run's attempts folder.",
        )
    *whole, last = path.read_bytes().split(b"\n")
    lines = [parse_line(raw, path, number) for number, raw in enumerate(whole, start=1) if raw.strip()]
    if last.strip():  # without its line end: still being written, unless it is whole
        with contextlib.suppress(GenselectError):
            lines.append(parse_line(last, path, len(whole) + 1))
    for number, line in enumerate(lines, start=1):
        if type(line.get("step")) is not int:
            raise GenselectError(
                f"{path}: entry {number} has no step",
                "Mend or delete that line; without a step nobody can tell where it belongs.",
            )
    return lines


def _validation(lines: Iterable[dict[str, Any]]) -> dict[int, HeldOut]:
    found = {}
    for line in lines:
        verdict, rows = _number(line.get("val/verdict")), _number(line.get("val/rows"))
        if math.isfinite(verdict):
            found[line["step"]] = HeldOut(verdict, int(rows) if math.isfinite(rows) and rows > 0 else None)
    return dict(sorted(found.items()))


def _by_step(folder: Path, steps: Iterable[int], kind: type) -> dict[int, Any]:
    """The content of ``step_<n>.json`` for each of ``steps`` that has one."""
    found = {}
    for path in folder.glob("step_*.json"):
        match = re.fullmatch(r"step_(\d+)\.json", path.name)
        if match is None or (step := int(match[1])) not in steps:
            continue
        found[step] = read_json(path)
        if not isinstance(found[step], kind):
            raise GenselectError(
                f"{path}: a {'list' if kind is list else 'JSON object'} was expected",
                "Restore the file, or delete it: the report then leaves this step out.",
            )
    return dict(sorted(found.items()))


def _explores(path: Path) -> dict[int, int]:
    try:
        # Nothing else is read: with the texts, a step of the full study is tens of megabytes.
        table = pq.read_table(path, columns=["attempt", "explores"])
        attempts, explores = (table[name].to_numpy() for name in ("attempt", "explores"))
    except (OSError, KeyError, pa.ArrowException) as error:
        raise GenselectError(
            f"{path}: not a readable record of a step: {error}",
            "Restore it, or delete it: the report then leaves this step out.",
        ) from None
    newest = explores[attempts == attempts.max()] if len(attempts) else explores
    return dict(sorted(Counter(int(count) for count in newest).items()))


def _optional(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    values = read_json(path)
    if not isinstance(values, dict):
        raise GenselectError(f"{path}: a JSON object was expected", "Restore the file, or delete it.")
    return values


def _number(value: Any) -> float:
    """A number as such; nan for anything else, a null included."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan

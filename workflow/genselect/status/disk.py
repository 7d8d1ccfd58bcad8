"""Sizes: what lies there, and what a running run will have added at its end."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from genselect.config.training import Run
from genselect.plan.saves import kept_saves
from genselect.status.model import Disk, Part, RunNow, State
from genselect.status.reading import count_files, folders, size

#: Folders of the results, and how their parts are named; what is not listed is one part by its own name.
_SPLIT = ("data", "models", "rollouts", "evaluation")
_RUNS = "runs"


def disk(root: Path, runs: Sequence[RunNow], configured: Mapping[str, Run]) -> Disk:
    """Sizes of everything below ``root``.

    Args:
        root: The results folder.
        runs: As they stand.
        configured: Resolved, by name; a run that is not in it has no expected size.
    """
    parts = [Part(f"{name}/{item}", size(root / name / item)) for name in _SPLIT for item in folders(root / name)]
    save_bytes = {run.run: _save_bytes(root / _RUNS / run.run, run) for run in runs}
    known = [found for found in save_bytes.values() if found is not None]
    usual = int(statistics.median(known)) if known else None
    for run in runs:
        if (root / _RUNS / run.run).is_dir():
            own = save_bytes[run.run]
            parts.append(_run_part(root, run, configured.get(run.run), usual if own is None else own))
    others = sorted(entry for entry in _entries(root) if entry.name not in (*_SPLIT, _RUNS))
    parts += [Part(entry.name, size(entry)) for entry in others]
    used = sum(part.bytes for part in parts)
    growth = sum(max(0, part.expected - part.bytes) for part in parts if part.expected is not None)
    return Disk(parts, used, used + growth, shutil.disk_usage(root).free)


def _run_part(root: Path, run: RunNow, settings: Run | None, save_bytes: int | None) -> Part:
    folder = root / _RUNS / run.run
    checkpoints, records = size(folder / "checkpoints"), size(folder / "records")
    rest = size(folder) - checkpoints - records
    expected = None
    steps_done = count_files(folder / "records", "step_*.parquet")
    if run.state is State.RUNNING and settings is not None and steps_done and save_bytes is not None:
        own_steps = settings.schedule.steps - (settings.start.step or 0)
        saves = run.saves
        present = {*saves.anchors, *saves.incomplete, *saves.broken, *saves.pinned, saves.last_complete}
        sizes = sum(size(folder / "checkpoints" / f"global_step_{step}") for step in present if step is not None)
        # What was set aside is nobody's save, and stays as it is.
        aside = max(0, checkpoints - sizes)
        growing = (records + rest) * own_steps // steps_done
        expected = len(kept_saves(settings, saves.pinned)) * save_bytes + aside + growing
    return Part(f"{_RUNS}/{run.run}", checkpoints + records + rest, checkpoints, records, rest, expected)


def _save_bytes(folder: Path, run: RunNow) -> int | None:
    """Bytes of the run's last complete save."""
    if run.saves.last_complete is None:
        return None
    return size(folder / "checkpoints" / f"global_step_{run.saves.last_complete}")


def _entries(root: Path) -> list[Path]:
    try:
        return list(root.iterdir())
    except OSError:
        return []

"""What the front page says of each run: where it comes from, its attempts, what its guards said, where it is tracked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genselect.config.training import Run
from genselect.formats import parse_line, read_json
from genselect.provenance.difference import from_json

#: A run differs from what it extends in this many keys on the page; differences.json has them all.
_CHANGES = 12
_TRACKERS = {"wandb": "W&B", "trackio": "Trackio", "tensorboard": "TensorBoard"}


@dataclass(frozen=True)
class RunLine:
    """One run."""

    name: str
    kind: str
    seed: int
    progress: str
    """Such as ``20 of 20 steps``."""
    start: str
    data: str
    base: str | None
    """The run that it extends."""
    changes: tuple[str, ...]
    """How it differs from that one."""
    attempts: tuple[Mapping[str, Any], ...]
    """Entries of the manifest."""
    held_out: str | None
    """The validation's verdict, first and last."""
    health: str
    tracker: str | None
    """Where it is tracked: an address, or an id."""


def run_lines(runs: Mapping[str, Run], results: Path, name: str) -> list[RunLine]:
    """Every configured run, in the configuration's order."""
    path = results / "data" / name / "differences.json"
    differences = {
        run: (base, changes) for run, base, changes in map(from_json, read_json(path) if path.exists() else [])
    }
    return [_run_line(run, settings, results, differences.get(run)) for run, settings in runs.items()]


def _run_line(name: str, run: Run, results: Path, difference: tuple[str, list[Any]] | None) -> RunLine:
    folder = results / "runs" / name
    manifest = read_json(folder / "manifest.json") if (folder / "manifest.json").exists() else {}
    lines = _metrics(folder / "metrics.jsonl")
    steps = {line["step"] for line in lines if any(key.startswith("episode/") for key in line)}
    verdicts = [(line["step"], line["val/verdict"]) for line in lines if line.get("val/verdict") is not None]
    done = (folder / "done.json").exists()
    base, changes = difference or (None, [])
    shown = [str(change) for change in changes[:_CHANGES]]
    shown += [f"and {len(changes) - _CHANGES} more"] if len(changes) > _CHANGES else []
    return RunLine(
        name=name,
        kind=run.kind.replace("_", " "),
        seed=run.seed,
        progress=f"{len(steps)} of {run.schedule.steps} steps" + ("" if done else ", not finished"),
        start=f"step {run.start.step} of {run.start.run}" if run.start.run else "the initial adapters",
        data="all rows" if run.data == "all" else f"the overfit set {run.data}",
        base=base,
        changes=tuple(shown),
        attempts=tuple(manifest.get("attempts") or ()),
        held_out=(
            ", ".join(f"{verdict:.3f} at step {step}" for step, verdict in dict.fromkeys((verdicts[0], verdicts[-1])))
            if verdicts
            else None
        ),
        health=_health(folder / "health.json"),
        tracker=_tracker(results / "tracking" / name / "run.json"),
    )


def _metrics(path: Path) -> list[dict[str, Any]]:
    """Its whole lines: a run that is going on may be writing the last one."""
    if not path.exists():
        return []
    whole = path.read_bytes().split(b"\n")[:-1]
    return [parse_line(line, path, number) for number, line in enumerate(whole, start=1) if line.strip()]


def _health(path: Path) -> str:
    if not path.exists():
        return "not judged"
    health = read_json(path)
    spoke = [entry for entry in health.get("steps", []) if entry.get("guards")]
    if not spoke:
        return "healthy in every step"
    last = spoke[-1]
    return (
        f"worst {health.get('worst_level')}; they spoke in {len(spoke)} step(s), last at step {last['step']} "
        f"({last['level']}: {', '.join(last['guards'])})"
    )


def _tracker(path: Path) -> str | None:
    if not path.exists():
        return None
    told = read_json(path)
    where = f"[{told.get('id')}]({told['url']})" if told.get("url") else f"`{told.get('id')}`, kept offline"
    return f"{_TRACKERS.get(told.get('kind'), told.get('kind'))} {where}"

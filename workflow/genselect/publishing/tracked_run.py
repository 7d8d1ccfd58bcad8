"""One training run as a tracker gets it: a history out of all its attempts, what it was, what came of it.

A run is one run of the tracker, however often it was stopped and started. Its history is ``metrics.jsonl``, where a later attempt's steps
stand in place of those that it redid. Read from the results folder; needs no torch and no tracker.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from genselect.config import Config
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.formats import parse_line, read_json
from genselect.plan.evaluation import evaluation_plan
from genselect.plan.runs import differences
from genselect.provenance.saves import Saves
from genselect.training.records import Trajectory, read_records, recorded_steps, records_path

logger = logging.getLogger("genselect")

#: Columns of the table of trajectories, each as in ``records/step_<n>.parquet``.
TRAJECTORY_COLUMNS = ("step", "attempt", "question_id", "sample", "verdict", "score", "explores", "revealed", "submitted", "end",
                      "response_tokens", "text")  # fmt: skip
#: Columns of the table of comparisons: a row a hypothesis that this run's policy is part of.
COMPARISON_COLUMNS = ("arm", "against", "word", "sentence", "arm_accuracy", "against_accuracy", "difference", "interval_low",
                      "interval_high", "p_adjusted", "questions", "exploratory")  # fmt: skip

#: Characters that W&B takes in a run's id, and no others.
_NO_ID = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Table:
    """A table as trackers show it."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """Text, numbers, truth values and None."""


@dataclass(frozen=True)
class Point:
    """What one step logged."""

    step: int
    attempt: int
    values: dict[str, float]
    """Finite figures by name, those of a validation at this step among them."""


@dataclass(frozen=True)
class TrackedRun:
    """Everything that a tracker is told about a run."""

    name: str
    id: str
    """The same for the same run for ever: of its name and fingerprint."""
    kind: str
    experiment: str
    """``dataset.name``: what groups the runs of one experiment."""
    history: tuple[Point, ...]
    """By step, each once."""
    missing: tuple[int, ...]
    """Steps between the first and the last that left no metrics."""
    config: dict[str, Any]
    """The resolved settings, the fingerprint, the lineage, the attempts, the commit."""
    summary: dict[str, Any]
    """``done.json``, the guards' worst level, and the word on each comparison."""
    tables: dict[str, Table]
    tags: tuple[str, ...]
    notes: str
    """In sentences: the lineage and what differs, the attempts, and what was left out."""
    created: str = ""
    """When the run began, ISO 8601."""
    commit: str | None = None
    """Of the code that began it."""
    content_sha256: str = field(init=False, default="")
    """Of all of the above: the same run gives the same sum."""

    def __post_init__(self) -> None:
        values = {name: value for name, value in asdict(self).items() if name != "content_sha256"}
        object.__setattr__(self, "content_sha256", _sha256(values))

    @property
    def last_step(self) -> int | None:
        """None without a step."""
        return self.history[-1].step if self.history else None

    def history_sha256(self, last_step: int | None) -> str:
        """Of the history up to ``last_step``, that step with it."""
        upto = [asdict(point) for point in self.history if last_step is not None and point.step <= last_step]
        return _sha256(upto)


def read_tracked_run(
    config: Config, runs: Mapping[str, Run], name: str, results: Path, *, settled: bool = False
) -> TrackedRun:
    """Read a run, while it trains or afterwards.

    Args:
        config: The configuration.
        runs: Resolved.
        name: The run's.
        results: The results folder.
        settled: Leave out steps that a next attempt may redo: those beyond the last complete save of a run that is not over.

    Raises:
        GenselectError: The run has not begun, or its metrics contradict each other.
    """
    folder = results / "runs" / name
    if not (folder / "manifest.json").is_file():
        raise GenselectError(
            f"{folder}: holds no manifest.json, so the run has not begun",
            f"Train it first: snakemake {folder}/done.json",
        )
    manifest = read_json(folder / "manifest.json")
    done = read_json(folder / "done.json") if (folder / "done.json").is_file() else None
    history = merged_history(folder / "metrics.jsonl")
    if settled:
        last = _settled_step(folder, manifest, done is not None)
        history = [point for point in history if last is None or point.step <= last]
    steps = {point.step for point in history}
    missing = sorted(set(range(min(steps), max(steps) + 1)) - steps) if steps else []
    if missing:
        logger.warning("%s: no metrics of steps %s; the history has a gap there", name, ", ".join(map(str, missing)))
    conclusions = _conclusions(config, runs, name, results)
    lineage = _lineage(config, runs, name)
    withheld = config.build.benchmark.lower() in {gated.lower() for gated in config.publish.gated_benchmarks}
    count = 0 if withheld else config.publish.tracking.trajectories
    rows = _trajectories(folder / "records", steps, count, manifest["fingerprint"])
    tables = {
        "trajectories": Table(TRAJECTORY_COLUMNS, tuple(tuple(getattr(row, name) for name in TRAJECTORY_COLUMNS) for row in rows)),
        "comparison": Table(COMPARISON_COLUMNS, tuple(tuple(row[name] for name in COMPARISON_COLUMNS) for row in conclusions)),
    }  # fmt: skip
    attempts = [_attempt(entry) for entry in manifest["attempts"]]
    identity = dict(manifest["identity"])
    return TrackedRun(
        name=name,
        id=run_id(name, manifest["fingerprint"]),
        kind=runs[name].kind,
        experiment=config.dataset.name,
        history=tuple(history),
        missing=tuple(missing),
        config={
            **identity.pop("run", {}),
            "identity": identity,
            "fingerprint": manifest["fingerprint"],
            "git_commit": manifest["provenance"].get("git_commit"),
            "git_dirty_sha256": manifest["provenance"].get("git_dirty_sha256"),
            "lineage": lineage,
            "attempts": attempts,
            "missing_steps": missing,
        },
        summary=_summary(folder, done, conclusions),
        tables={name: table for name, table in tables.items() if table.rows},
        tags=_tags(config, runs, name, lineage),
        notes=_notes(lineage, attempts, missing, config.build.benchmark if withheld else None),
        created=manifest["created"],
        commit=manifest["provenance"].get("git_commit"),
    )


def run_id(name: str, fingerprint: str) -> str:
    """The id of a run, of at most 53 characters, each a letter, a digit, ``_`` or ``-``."""
    return f"{_NO_ID.sub('-', name)[:40]}-{fingerprint[:12]}"


def merged_history(path: Path) -> list[Point]:
    """One history out of all attempts: a new attempt's first step takes the place of that step and of all beyond it.

    ``metrics.jsonl`` is trimmed when an attempt begins, so mostly nothing is left to replace; the validation before the first step is
    there twice when a run was stopped before its first save. A last line without its end is still being written, and is left out unless
    it is whole.

    Raises:
        GenselectError: A line is damaged, or lines contradict each other: a step twice in one attempt, or steps or attempts that go back.
    """
    if not path.is_file():
        return []
    *whole, last = path.read_bytes().split(b"\n")
    lines = [(number, parse_line(raw, path, number)) for number, raw in enumerate(whole, start=1) if raw.strip()]
    if last.strip():
        try:
            lines.append((len(whole) + 1, orjson.loads(last)))
        except orjson.JSONDecodeError:
            logger.info("%s: its last line is not yet whole", path)
    kept: list[Point] = []
    for number, line in lines:
        step, attempt = line.get("step"), line.get("attempt")
        if type(step) is not int or type(attempt) is not int:
            raise GenselectError(
                f"{path}, line {number}: step and attempt must both be there, as integers",
                "Mend or delete that line; without them nobody can tell where it belongs.",
            )
        point = Point(step, attempt, _figures(line))
        if kept and attempt < kept[-1].attempt:
            raise GenselectError(
                f"{path}, line {number}: attempt {attempt} after attempt {kept[-1].attempt}",
                "Lines were moved; put them back in the order in which they were written.",
            )
        if kept and attempt == kept[-1].attempt and step <= kept[-1].step:
            raise GenselectError(
                f"{path}, line {number}: step {step} after step {kept[-1].step}, both of attempt {attempt}",
                "An attempt writes each step once, in order; delete the line that does not belong there.",
            )
        kept = [earlier for earlier in kept if earlier.step < step or earlier.attempt == attempt]
        kept.append(point)
    return kept


def _figures(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line, by name; undefined ones (null) have none."""
    return {
        name: value
        for name, value in line.items()
        if name not in ("step", "attempt") and isinstance(value, int | float) and not isinstance(value, bool)
    }


def _settled_step(folder: Path, manifest: Mapping[str, Any], done: bool) -> int | None:
    """The last step that stays whatever happens next; None when all do. Where a guard stopped the run, the end is what one looks for."""
    attempts = manifest["attempts"]
    if done or (attempts and attempts[-1]["reason"] == "guard"):
        return None
    save = Saves(folder / "checkpoints").last_complete_save()
    return save.step if save else -1


def _trajectories(records: Path, steps: set[int], count: int, seed: str) -> list[Trajectory]:
    """Up to ``count`` trajectories of the first, the middle and the last recorded step, chosen by the run's fingerprint."""
    recorded = [step for step in recorded_steps(records) if step in steps]
    if not recorded or count == 0:
        return []
    chosen = sorted({recorded[0], recorded[len(recorded) // 2], recorded[-1]})
    # What does not divide goes to the last steps: they tell what was learnt.
    shares = [(count + place) // len(chosen) for place in range(len(chosen))]
    found: list[Trajectory] = []
    for step, share in zip(chosen, shares, strict=True):
        rows = read_records(records_path(records, step))
        newest = max((row.attempt for row in rows), default=0)
        rows = sorted((row for row in rows if row.attempt == newest), key=lambda row: row.key)
        picked = random.Random(f"{seed}/{step}").sample(rows, min(share, len(rows)))
        found += sorted(picked, key=lambda row: row.key)
    return found


def _conclusions(config: Config, runs: Mapping[str, Run], name: str, results: Path) -> list[dict[str, Any]]:
    """What the comparison says of this run's policies; nothing before there is one."""
    path = results / "evaluation" / config.dataset.name / "comparison.json"
    if not path.is_file():
        return []
    plan = evaluation_plan(config, runs)
    mine = {arm for arm, members in plan.trained.items() if any(plan.played[member].run == name for member in members)}
    return [
        {
            **{key: entry[key] for key in COMPARISON_COLUMNS if key in entry},
            "word": entry["verdict"]["word"],
            "sentence": entry["verdict"]["sentence"],
            "interval_low": entry["interval"][0],
            "interval_high": entry["interval"][1],
        }
        for entry in read_json(path)["hypotheses"]
        if entry["arm"] in mine or entry["against"] in mine
    ]


def _lineage(config: Config, runs: Mapping[str, Run], name: str) -> dict[str, Any]:
    run, base = runs[name], config.runs[name].extends
    changes = differences(config, dict(runs)).get(name, [])
    start = None if run.start.run is None else {"run": run.start.run, "step": run.start.step}
    return {"extends": base, "differs": [str(change) for change in changes], "start": start}


def _tags(config: Config, runs: Mapping[str, Run], name: str, lineage: Mapping[str, Any]) -> tuple[str, ...]:
    tags = [runs[name].kind, f"seed:{runs[name].seed}"]
    tags += [f"extends:{lineage['extends']}"] if lineage["extends"] else []
    tags += [f"start:{lineage['start']['run']}@{lineage['start']['step']}"] if lineage["start"] else []
    # W&B refuses longer ones.
    return tuple(tag[:64] for tag in [config.dataset.name, *tags])


def _notes(
    lineage: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]], missing: Sequence[int], withheld: str | None
) -> str:
    start = lineage["start"]
    lines = [f"Started from step {start['step']} of {start['run']}." if start else "Started from the initial adapters."]
    if lineage["extends"]:
        changes = "; ".join(lineage["differs"]) or "nothing"
        lines.append(f"Extends {lineage['extends']}; differs in: {changes}.")
    lines += [_attempt_note(entry) for entry in attempts]
    if missing:
        lines.append(f"No metrics of steps {', '.join(map(str, missing))}.")
    if withheld:
        lines.append(f"No trajectories: texts of {withheld} may not be published (publish.gated_benchmarks).")
    return "\n".join(lines)


def _attempt(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What of an attempt is told: nothing of the machine."""
    return {
        name: entry.get(name)
        for name in ("attempt", "start", "end", "reason", "resumed_from", "last_step", "git_commit")
    }


def _attempt_note(entry: Mapping[str, Any]) -> str:
    began = "anew" if entry["resumed_from"] is None else f"from the save of step {entry['resumed_from']}"
    return f"Attempt {entry['attempt']}: {began}, {entry['reason'] or 'no end'}" + (
        f" after step {entry['last_step']}." if entry["last_step"] is not None else "."
    )


def _summary(folder: Path, done: Mapping[str, Any] | None, conclusions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    health = read_json(folder / "health.json") if (folder / "health.json").is_file() else {}
    found: dict[str, Any] = {"finished": done is not None, "health": health.get("worst_level")}
    if done is not None:
        # Its last metrics are in the history.
        found["done"] = {name: value for name, value in done.items() if name != "last_metrics"}
    for entry in conclusions:
        found[f"comparison/{entry['arm']} above {entry['against']}"] = (
            f"{entry['word']} ({100 * entry['difference']:+.1f} points)"
        )
    return found


def _sha256(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)).hexdigest()

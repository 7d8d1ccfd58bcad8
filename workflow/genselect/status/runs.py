"""The training runs: from their run directories alone (``docs/run-directory.md``)."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import orjson
import psutil

from genselect.config.training import Run
from genselect.plan.selection import ALL
from genselect.provenance.run_directory import LOCK, MANIFEST, STOP_FILE
from genselect.provenance.saves import PINS, Saves
from genselect.status.experiment import Experiment
from genselect.status.model import Figures, HealthNow, HeldOut, LastAttempt, Lock, RunNow, SavesNow, State
from genselect.status.reading import QUIET_S, Reader, integer, log_end, mapping, number, text
from genselect.training.guards import Level

#: Seconds a step are the mean of this many.
_RECENT = 10
#: A run is silent only after this many of its own steps.
_QUIET_STEPS = 5

_ENDED = {
    "done": State.STOPPED,  # the last save stands and done.json does not: the next start writes it
    "stopped": State.STOPPED,
    "time_limit": State.STOPPED,
    "signal": State.STOPPED,
    "guard": State.GUARD,
    "failed": State.FAILED,
    "killed": State.KILLED,
}


def run_now(name: str, run: Run | None, experiment: Experiment, reader: Reader) -> RunNow:
    """How one run stands.

    Args:
        name: Its folder's.
        run: Resolved; None when no configuration names it.
        experiment: Whose it is.
        reader: Of this run alone: what it cannot read is the run's problem.
    """
    folder = experiment.root / "runs" / name
    manifest = _manifest(folder, reader)
    settings = mapping(mapping(manifest.get("identity")).get("run"))
    schedule = mapping(settings.get("schedule"))
    entries = manifest.get("attempts")
    attempts = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    lines = reader.lines(folder / "metrics.jsonl")
    done = reader.mapping(folder / "done.json")
    saves = _saves(folder, schedule, run, reader)
    last = _last_attempt(attempts)
    lock = _lock(folder, last, attempts)
    step_s = _step_seconds(lines)
    logs = sorted((folder / "attempts").glob("*.log")) if folder.is_dir() else []
    seen_s = reader.age(folder / "metrics.jsonl", *logs)
    waits_for = _waits_for(run, experiment) if run else []
    end = log_end(reader, experiment.logs / "train_run" / f"{name}.log")
    state = _state(done is not None, last, lock, seen_s, step_s)
    if state is None:
        state = State.WAITING if waits_for else State.FAILED if end and end.failed else State.ABSENT
    steps = integer(schedule.get("steps")) or (run.schedule.steps if run else None)
    step = _step(lines, last, saves)
    figures = next((line for line in reversed(lines) if "episode/verdict" in line), None)
    held_out = next((line for line in reversed(lines) if "val/verdict" in line), None)
    running = state is State.RUNNING
    return RunNow(
        run=name,
        kind=text(settings.get("kind")) or (run.kind if run else None),
        state=state,
        configured=run is not None,
        step=step,
        steps=steps,
        attempts=len(attempts),
        last_attempt=last,
        figures=_figures(figures) if figures else None,
        held_out=_held_out(held_out) if held_out else None,
        health=_health(reader.mapping(folder / "health.json")),
        step_s=step_s,
        eta_s=_eta(step, steps, step_s, reader.age(folder / "metrics.jsonl")) if running else None,
        seen_s=None if state in (State.DONE, State.WAITING, State.ABSENT) else seen_s,
        saves=saves,
        lock=lock,
        stop_requested=running and (folder / STOP_FILE).exists(),
        failure=end.text if end and end.failed and state is State.FAILED else None,
        waits_for=waits_for if state in (State.WAITING, State.ABSENT) else [],
        problems=reader.problems,
    )


def _manifest(folder: Path, reader: Reader) -> dict[str, Any]:
    path = folder / MANIFEST
    found = reader.mapping(path)
    if found is None and not path.exists() and any((folder / name).exists() for name in ("metrics.jsonl", "records")):
        reader.problems.append(
            f"unreadable: {reader.relative(path)}: it is missing, so nobody can tell whose run this is"
        )
    return found or {}


def _waits_for(run: Run, experiment: Experiment) -> list[str]:
    """As ``rules/train.smk`` has it."""
    missing = experiment.run_missing(run.start.run)
    if run.kind == "formal":
        missing += experiment.gates_missing() + experiment.preregistration_missing()
    missing += experiment.model_missing() + experiment.rows_missing(run.data)
    return missing if run.data == ALL else missing + experiment.rows_missing(None)


def _state(
    done: bool, last: LastAttempt | None, lock: Lock | None, seen_s: float | None, step_s: float | None
) -> State | None:
    """How it stands by its own folder; None when no attempt was made."""
    if done:
        return State.DONE
    if lock is not None and lock.held:
        return State.RUNNING
    if last is None:
        return None
    if last.reason is not None:
        return _ENDED.get(last.reason, State.STOPPED)
    if lock is not None and lock.held is False:
        return State.KILLED
    quiet = max(QUIET_S, _QUIET_STEPS * (step_s or 0.0))
    return State.RUNNING if seen_s is not None and seen_s <= quiet else State.SILENT


def _last_attempt(attempts: list[dict[str, Any]]) -> LastAttempt | None:
    if not attempts:
        return None
    entry = max(attempts, key=lambda entry: integer(entry.get("attempt")) or 0)
    return LastAttempt(
        attempt=integer(entry.get("attempt")) or len(attempts),
        reason=text(entry.get("reason")),
        start=text(entry.get("start")),
        end=text(entry.get("end")),
        resumed_from=integer(entry.get("resumed_from")),
        host=text(entry.get("host")),
    )


def _lock(folder: Path, last: LastAttempt | None, attempts: list[dict[str, Any]]) -> Lock | None:
    """Who held the lock last, and, on that machine, whether it still does. The lock itself is left alone: taking it, even
    for a moment, could make a starting attempt fail."""
    path = folder / LOCK
    try:
        values = mapping(orjson.loads(path.read_bytes()))
    except (OSError, orjson.JSONDecodeError):
        values = {}
    if not values and last is not None and last.reason is None:  # copied without hidden files
        values = max(attempts, key=lambda entry: integer(entry.get("attempt")) or 0)
        values = {"host": values.get("host"), "pid": values.get("pid"), "since": values.get("start")}
    host, pid, since = text(values.get("host")), integer(values.get("pid")), text(values.get("since"))
    if host is None or pid is None:
        return None
    return Lock(host, pid, since, _holds(pid, path) if host == platform.node() else None)


def _holds(pid: int, path: Path) -> bool:
    """Whether the process has this very file open; a number that was given to another process does not."""
    if not path.exists():
        return False
    try:
        files = Path(f"/proc/{pid}/fd")
        if files.is_dir():
            return any(_same(entry, path) for entry in files.iterdir())
    except OSError:  # another user's: that it lives must do
        pass
    return psutil.pid_exists(pid)


def _same(entry: Path, path: Path) -> bool:
    try:
        return entry.samefile(path)
    except OSError:
        return False


def _saves(folder: Path, schedule: dict[str, Any], run: Run | None, reader: Reader) -> SavesNow:
    try:
        found = Saves(folder / "checkpoints").all()
    except OSError:  # rotation took one between two looks
        try:
            found = Saves(folder / "checkpoints").all()
        except OSError as error:
            reader.unreadable(folder / "checkpoints", str(error))
            return SavesNow()
    every = integer(schedule.get("anchor_every")) if schedule else run.schedule.anchor_every if run else None
    complete = [save.step for save in found if save.state == "complete"]
    return SavesNow(
        last_complete=complete[-1] if complete else None,
        anchors=[step for step in complete if every and step % every == 0],
        incomplete=[save.step for save in found if save.state == "incomplete"],
        broken=[save.step for save in found if save.state == "broken"],
        pinned=[save.step for save in found if (save.path / PINS).is_dir()],
    )


def _step(lines: list[dict[str, Any]], last: LastAttempt | None, saves: SavesNow) -> int:
    if lines:
        return int(lines[-1]["step"])
    known = [saves.last_complete, last.resumed_from if last else None]
    return max((step for step in known if step is not None), default=0)


def _figures(line: dict[str, Any]) -> Figures:
    kl = number(line.get("actor/ppo_kl_max"))
    return Figures(
        step=line["step"],
        verdict=number(line.get("episode/verdict")),
        explores=number(line.get("episode/mean_explores")),
        score=number(line.get("episode/score")),
        kl=kl if kl is not None else number(line.get("actor/ppo_kl")),
    )


def _held_out(line: dict[str, Any]) -> HeldOut:
    rows = number(line.get("val/rows"))
    return HeldOut(line["step"], number(line.get("val/verdict")), None if rows is None else int(rows))


def _health(values: dict[str, Any] | None) -> HealthNow | None:
    if values is None:
        return None
    findings = values.get("findings")
    entries = [entry for entry in findings if isinstance(entry, dict)] if isinstance(findings, list) else []
    ranks = {level.value: level.rank for level in Level}
    worst = max(entries, key=lambda entry: ranks.get(str(entry.get("level")), 0), default=None)
    message = text(worst.get("message")) if worst else None
    level = text(values.get("level")) or "?"
    return HealthNow(
        step=integer(values.get("step")),
        level=level,
        worst_level=text(values.get("worst_level")) or level,
        guard=text(worst.get("guard")) if worst else None,
        finding=message.partition(". ")[0].rstrip(".") if message else None,
        last_healthy_anchor=integer(values.get("last_healthy_anchor")),
    )


def _step_seconds(lines: list[dict[str, Any]]) -> float | None:
    """verl's clock of a step leaves the validation out, and whoever waits does not."""
    seconds = [
        step + (number(line.get("timing_s/testing")) or 0.0)
        for line in lines
        if (step := number(line.get("timing_s/step"))) is not None
    ]
    recent = seconds[-_RECENT:]
    return sum(recent) / len(recent) if recent else None


def _eta(step: int, steps: int | None, step_s: float | None, since_step_s: float | None) -> float | None:
    """Seconds to the end; the step that is under way counts for what is left of it."""
    if steps is None or step_s is None:
        return None
    under_way = min(since_step_s or 0.0, step_s)
    return max(0.0, (steps - step) * step_s - under_way)

"""A :class:`Status` for a terminal: tables that fit its width, words for every state, colour only on top of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from genselect.status.model import Disk, RunNow, Stage, State, Status

#: From this width on a run's progress and figures share a line.
WIDE = 118
_STYLES = {
    State.DONE: "green",
    State.PASSED: "green",
    State.RUNNING: "bold cyan",
    State.SILENT: "yellow",
    State.STOPPED: "yellow",
    State.WAIVED: "yellow",
    State.KILLED: "red",
    State.GUARD: "bold red",
    State.FAILED: "bold red",
    State.WAITING: "dim",
    State.ABSENT: "dim",
}
#: Their reasons are sentences, and stand below the tables.
_EXPLAINED = (State.FAILED, State.WAIVED)
_LEVELS = {"note": "cyan", "alarm": "yellow", "stop": "bold red"}
_NOTHING = "-"


def render(status: Status, console: Console) -> None:
    """Print it, top to bottom: totals, stages, runs, what there is to say about them, disk. No cursor is moved."""
    console.print(_safe(f"{status.results}  {status.generated[:19].replace('T', ' ')} UTC"), style="bold")
    console.print(_safe(totals_line(status)))
    if not status.stages and not status.runs:
        console.print("nothing here yet")
    if status.stages:
        console.print()
        console.print(_stages(status.stages))
    if status.runs:
        console.print()
        console.print(_runs(status.runs, console.width))
    for title, notes in (("notes", _notes(status)), ("unreadable", _problems(status))):
        if notes:
            console.print()
            console.print(title, style="bold")
            for note in notes:
                console.print(Padding(_safe(note), (0, 0, 0, 2)))
    console.print()
    console.print(_disk(status.disk))


def totals_line(status: Status) -> str:
    """The whole in one line."""
    totals, disk = status.totals, status.disk
    said = [f"stages {totals.stages_done} of {totals.stages}"]
    if totals.gates:
        waived = f" ({totals.gates_waived} waived)" if totals.gates_waived else ""
        said.append(f"gates {totals.gates_passed + totals.gates_waived} of {totals.gates}{waived}")
    if totals.runs:
        said.append("runs " + ", ".join(f"{count} {state}" for state, count in totals.runs.items()))
    if totals.eta_s is not None:
        said.append(f"what runs ends in {duration(totals.eta_s)}")
    more = f" of {in_bytes(disk.expected)} at the end" if disk.expected > disk.used else ""
    return "; ".join([*said, f"disk {in_bytes(disk.used)}{more}, {in_bytes(disk.free)} free"])


def duration(seconds: float | None) -> str:
    """``45 s``, ``12 min``, ``3.5 h``, ``2.1 d``: two figures, in the unit that fits."""
    if seconds is None or not math.isfinite(seconds):
        return _NOTHING
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h"), (math.inf, 86400, "d")):
        if seconds < limit:
            amount = seconds / unit
            return f"{amount:.1f} {name}" if unit >= 3600 and amount < 10 else f"{amount:.0f} {name}"
    raise AssertionError("infinity is a limit")


def in_bytes(count: int | None) -> str:
    """``312 B``, ``4.5 MB``, ``1.2 TB``; powers of 1000, as disks are sold and quotas told."""
    if count is None:
        return _NOTHING
    amount, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if amount < 999.5 or unit == "PB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.5 else f"{amount:.1f} {unit}"


def _table(*columns: tuple[str, bool]) -> Table:
    """Of (title, numeric) columns; a narrow terminal folds words and never cuts one off."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, numeric in columns:
        table.add_column(title, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric)
    return table


def _stages(stages: Sequence[Stage]) -> Table:
    several = len({stage.dataset for stage in stages if stage.dataset}) > 1
    # Most of the time no stage is under way, and counts need the room.
    moving = any(stage.eta_s is not None or stage.seen_s is not None for stage in stages)
    clocks = (("ETA", True), ("seen", True)) if moving else ()
    table = _table(("stage", False), ("state", False), ("done", True), *clocks, ("", False))
    for stage in stages:
        name = f"  {stage.item}" if stage.stage == "labels" and stage.item else _name(stage)
        note = f"waits for {', '.join(stage.waits_for)}" if stage.waits_for else stage.note
        note = "see notes" if note and stage.state in _EXPLAINED else note
        if stage.judge_calls:
            note = ", ".join(part for part in (f"{stage.judge_calls} judge calls", note) if part)
        table.add_row(
            _safe(f"{stage.dataset} {name}" if several else name),
            Text(stage.state, style=_STYLES[stage.state]),
            _of(stage.done, stage.total),
            *((duration(stage.eta_s), duration(stage.seen_s)) if moving else ()),
            _safe(note),
        )
    return table


_PROGRESS = (("kind", False), ("state", False), ("step", True), ("ETA", True), ("seen", True), ("tries", True))
_FIGURES = (("verdict", True), ("held-out", True), ("explores", True), ("score", True), ("kl", True), ("s/step", True))


def _runs(runs: Sequence[RunNow], width: int) -> Table:
    """One table; where it is narrow, a run's figures are a line of their own under the progress."""
    save = (("save", True), ("health", False))
    if width >= WIDE:
        table = _table(("run", False), *_PROGRESS, *save, *_FIGURES)
        for run in runs:
            table.add_row(_safe(run.run), *_progress(run), *_kept(run), *_figures(run))
        return table
    both = Table(box=None, pad_edge=False, show_header=False, padding=0)
    upper, lower = _table(("run", False), *_PROGRESS, *save), _table(("run", False), *_FIGURES)
    for run in runs:
        upper.add_row(_safe(run.run), *_progress(run), *_kept(run))
        if run.figures or run.held_out:
            lower.add_row(_safe(run.run), *_figures(run))
    both.add_row(upper)
    if lower.row_count:
        both.add_row("")
        both.add_row(lower)
    return both


def _progress(run: RunNow) -> list[Any]:
    kind = (run.kind or "?").replace("_", " ")
    step = _NOTHING if run.state in (State.WAITING, State.ABSENT) and not run.step else _of(run.step, run.steps)
    state = Text(run.state, style=_STYLES[run.state])
    return [_safe(kind), state, step, duration(run.eta_s), duration(run.seen_s), str(run.attempts or _NOTHING)]


def _kept(run: RunNow) -> list[Any]:
    save = _NOTHING if run.saves.last_complete is None else str(run.saves.last_complete)
    if run.health is None:
        return [save, _NOTHING]
    level = run.health.level
    if run.health.worst_level != level:
        level += f" (was {run.health.worst_level})"
    return [save, Text(level, style=_LEVELS.get(run.health.level, ""))]


def _figures(run: RunNow) -> list[str]:
    figures, held_out = run.figures, run.held_out
    verdict = _number(held_out.verdict, 3) if held_out else _NOTHING
    return [
        _number(figures.verdict, 3) if figures else _NOTHING,
        f"{verdict} @{held_out.step}" if held_out else _NOTHING,
        _number(figures.explores, 2) if figures else _NOTHING,
        _number(figures.score, 3) if figures else _NOTHING,
        _number(figures.kl, 4) if figures else _NOTHING,
        _number(run.step_s, 1),
    ]


def _notes(status: Status) -> list[str]:
    explained = [stage for stage in status.stages if stage.state in _EXPLAINED and stage.note]
    said = [f"{_name(stage)}: {stage.state}: {stage.note}" for stage in explained]
    return said + [f"{run.run}: {note}" for run in status.runs for note in _said_of(run)]


def _name(stage: Stage) -> str:
    return f"{stage.stage} {stage.item}" if stage.item else stage.stage


def _said_of(run: RunNow) -> list[str]:
    notes, last, lock = [], run.last_attempt, run.lock
    go_on = "the same command goes on" + (
        f" behind step {run.saves.last_complete}" if run.saves.last_complete is not None else ""
    )
    if run.waits_for:
        notes.append(f"waits for {', '.join(run.waits_for)}")
    if run.state is State.GUARD:
        anchor = run.health.last_healthy_anchor if run.health else None
        notes.append(f"stopped by a guard; last healthy anchor: {'none' if anchor is None else f'step {anchor}'}")
    elif run.state is State.KILLED:
        notes.append(f"attempt {last.attempt if last else '?'} was killed: its process is gone; {go_on}")
    elif run.state is State.STOPPED:
        notes.append(f"attempt {last.attempt if last else '?'} ended ({last.reason if last else '?'}); {go_on}")
    elif run.state in (State.RUNNING, State.SILENT) and lock is not None and lock.held is None:
        notes.append(
            f"locked by pid {lock.pid} on host {lock.host} since {lock.since}; whether it lives shows there only"
        )
    elif run.state is State.RUNNING and run.attempts > 1 and last is not None:
        behind = "from the start" if last.resumed_from is None else f"from the save of step {last.resumed_from}"
        notes.append(f"attempt {last.attempt}, {behind}")
    if run.failure:
        notes.append(f"failed: {run.failure}")
    if run.stop_requested:
        notes.append("a stop is requested: it saves and ends at the next step")
    if run.health and run.health.finding:
        notes.append(f"{run.health.level} at step {run.health.step}: {run.health.finding} ({run.health.guard})")
    for what, steps in (("anchors", run.saves.anchors), ("broken saves", run.saves.broken)):
        if steps:
            notes.append(f"{what}: {', '.join(map(str, steps))}")
    if run.saves.incomplete:
        kind = "being written" if run.state is State.RUNNING else "half-written"
        notes.append(f"saves {kind}: {', '.join(map(str, run.saves.incomplete))}")
    if not run.configured:
        notes.append("no configuration here names it")
    return notes


def _problems(status: Status) -> list[str]:
    said = [*status.problems]
    said += [problem for stage in status.stages for problem in stage.problems]
    said += [problem for run in status.runs for problem in run.problems]
    return [problem.removeprefix("unreadable: ") for problem in dict.fromkeys(said)]


def _disk(disk: Disk) -> Table:
    table = _table(
        ("disk", False), ("used", True), ("saves", True), ("records", True), ("rest", True), ("at the end", True)
    )
    for part in disk.parts:
        table.add_row(
            _safe(part.part),
            *map(in_bytes, (part.bytes, part.checkpoints, part.records, part.rest)),
            in_bytes(part.expected),
        )
    end = in_bytes(disk.expected if disk.expected > disk.used else None)
    table.add_row("total", in_bytes(disk.used), "", "", "", end, style="bold")
    return table


def _of(done: int | None, total: int | None) -> str:
    if done is None:
        return _NOTHING
    return f"{done}" if total is None else f"{done}/{total}"


def _number(value: float | None, digits: int) -> str:
    return _NOTHING if value is None else f"{value:.{digits}f}"


def _safe(text: str) -> Text:
    """Text of a file as text: no markup, no control characters, one line."""
    return Text("".join(letter if letter.isprintable() else " " for letter in text))

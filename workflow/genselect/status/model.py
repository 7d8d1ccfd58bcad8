"""What a status says. ``docs/status.md`` lists the same keys for readers of the JSON."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any

#: Raised by one when a key changes its meaning or goes.
SCHEMA_VERSION = 1


class State(enum.StrEnum):
    """How something stands, as far as files tell."""

    DONE = "done"
    RUNNING = "running"
    SILENT = "silent"
    """It began, wrote no end, and has written nothing for long; whether its process lives cannot be seen from here."""
    STOPPED = "stopped"
    """Ended on request, at its time limit or by SIGTERM; the same command goes on."""
    KILLED = "killed"
    """Its process is gone without a word."""
    GUARD = "guard"
    """Stopped by a guard."""
    FAILED = "failed"
    PASSED = "passed"
    """Of a gate."""
    WAIVED = "waived"
    """A gate that fails and may."""
    WAITING = "waiting"
    """Something that it needs is not there."""
    ABSENT = "absent"
    """It could begin, and nothing of it is there."""


@dataclass(frozen=True)
class Stage:
    """A step of the chain, or one item of it (a labelling job, a rollout, a set, a gate)."""

    dataset: str
    stage: str
    item: str | None
    state: State
    done: int | None = None
    """Shards, pairs or parts that are done."""
    total: int | None = None
    """Of so many; None when nobody knows."""
    unit: str | None = None
    judge_calls: int | None = None
    eta_s: float | None = None
    seen_s: float | None = None
    """Seconds since it wrote something; None when it is over or has not begun."""
    note: str = ""
    waits_for: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Figures:
    """The last training step's."""

    step: int
    verdict: float | None
    explores: float | None
    """Mean calls of explore an episode."""
    score: float | None
    kl: float | None
    """Of the mini-batch with the largest magnitude, nats a token."""


@dataclass(frozen=True)
class HeldOut:
    """The last validation's."""

    step: int
    verdict: float | None
    rows: int | None


@dataclass(frozen=True)
class HealthNow:
    """From ``health.json``."""

    step: int | None
    level: str
    worst_level: str
    """Of all steps so far."""
    guard: str | None
    finding: str | None
    """The worst finding's first sentence."""
    last_healthy_anchor: int | None


@dataclass(frozen=True)
class LastAttempt:
    """The newest entry of the manifest."""

    attempt: int
    reason: str | None
    start: str | None
    end: str | None
    resumed_from: int | None
    host: str | None


@dataclass(frozen=True)
class Lock:
    """What ``.lock`` says; it stays behind when the attempt has ended."""

    host: str | None
    pid: int | None
    since: str | None
    held: bool | None
    """Whether that process holds it; None on any machine but its own, where nobody can tell."""


@dataclass(frozen=True)
class SavesNow:
    """Steps of the folders under ``checkpoints/``."""

    last_complete: int | None = None
    """The next attempt goes on from there."""
    anchors: list[int] = field(default_factory=list)
    incomplete: list[int] = field(default_factory=list)
    """In the making, or cut short."""
    broken: list[int] = field(default_factory=list)
    pinned: list[int] = field(default_factory=list)
    """Another run started from them."""


@dataclass(frozen=True)
class RunNow:
    """One training run."""

    run: str
    kind: str | None
    state: State
    configured: bool
    """Whether the resolved configuration names it."""
    step: int
    steps: int | None
    attempts: int = 0
    last_attempt: LastAttempt | None = None
    figures: Figures | None = None
    held_out: HeldOut | None = None
    health: HealthNow | None = None
    step_s: float | None = None
    """Seconds a step, validation included; mean of the last ten."""
    eta_s: float | None = None
    seen_s: float | None = None
    """Seconds since metrics or the attempt's log changed."""
    saves: SavesNow = field(default_factory=SavesNow)
    lock: Lock | None = None
    stop_requested: bool = False
    failure: str | None = None
    """What the program said last, when that was an error."""
    waits_for: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """Sizes of the files of one part of the folder, in bytes."""

    part: str
    bytes: int
    checkpoints: int | None = None
    records: int | None = None
    rest: int | None = None
    expected: int | None = None
    """At the end of a run that is running; None when it is not, or too early to say."""


@dataclass(frozen=True)
class Disk:
    """Sizes in bytes."""

    parts: list[Part]
    used: int
    expected: int
    """``used``, with every running run at its end."""
    free: int
    """On the file system that the folder lies on."""


@dataclass(frozen=True)
class Totals:
    """The figures of the totals line."""

    stages_done: int
    stages: int
    gates_passed: int
    gates_waived: int
    gates: int
    runs: dict[str, int]
    """Runs by state."""
    eta_s: float | None
    """The longest of what is running."""


@dataclass(frozen=True)
class Status:
    """A results folder at one moment."""

    results: str
    generated: str
    """UTC, ISO 8601."""
    stages: list[Stage]
    runs: list[RunNow]
    disk: Disk
    totals: Totals
    problems: list[str]
    """About the folder as a whole; those of stages and runs are with them."""
    schema_version: int = SCHEMA_VERSION

    def as_json(self) -> dict[str, Any]:
        """Plain values, for ``--json``."""
        return asdict(self)

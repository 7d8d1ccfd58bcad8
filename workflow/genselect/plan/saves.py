"""Which saves of a run stand at its end: for the anchors that may be evaluated, and for the disk that they take."""

from __future__ import annotations

from collections.abc import Iterable

from genselect.config.training import Run


def kept_saves(run: Run, also: Iterable[int] = ()) -> list[int]:
    """Steps whose saves stand at the end of a run: the anchors, the latest, and ``also`` (starts of other runs).

    A run that starts from another one's save holds a copy of it, and none before. What a guard marks broken is not foreseen. The
    deleting itself is :meth:`genselect.provenance.saves.Saves.rotate`.
    """
    schedule, start = run.schedule, run.start.step
    multiples = range(schedule.save_every, schedule.steps + 1, schedule.save_every)
    saved = sorted(
        {step for step in multiples if step > (start or 0)} | {schedule.steps} | ({start} if start else set())
    )
    every = schedule.anchor_every
    anchors = [step for step in saved if every is not None and step % every == 0]
    return sorted({*anchors, *saved[-schedule.keep_latest :], *also})

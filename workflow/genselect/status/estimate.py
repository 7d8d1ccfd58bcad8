"""What a plan will cost, before it is started: card hours of each job, disk of each run, their totals.

Hours are the time limit that a job asks for (*at most*) and, where steps or the same job have been timed in this results folder or the
configuration says ``step_s``, what they took (*expected*). Disk is saves kept × bytes of a save: of one that is there, else counted
from the weights that are trained.
"""

from __future__ import annotations

import csv
import json
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from genselect.config import Config
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.memory import Architecture, save_bytes
from genselect.memory.architecture import architecture_of
from genselect.plan.saves import kept_saves
from genselect.status.reading import size

_GIB = 2**30


@dataclass(frozen=True)
class Job:
    """One job of the plan."""

    rule: str
    item: str
    """Its wildcards, such as the run's name; empty without any."""
    cards: int
    limit_min: float | None
    """Its time limit in minutes."""


@dataclass(frozen=True)
class Cost:
    """What one job costs."""

    job: Job
    expected_h: float | None
    """Hours; None when nobody has timed it."""
    disk: int | None
    """Bytes that it will leave, beyond what is there; None when that is not known, 0 for jobs that leave little."""
    parts: str = ""
    """How its cards are shared out, where they do not all do the same."""

    @property
    def limit_h(self) -> float | None:
        """Hours, at most."""
        return None if self.job.limit_min is None else self.job.limit_min / 60


def estimate(
    jobs: Iterable[Job],
    runs: Mapping[str, Run],
    results: Path,
    benchmarks: Path,
    architecture: Architecture | None = None,
) -> list[Cost]:
    """The costs of ``jobs``, most card hours first.

    Args:
        jobs: Of the plan.
        runs: Resolved.
        results: The results folder; it need not exist.
        benchmarks: Where Snakemake notes how long jobs took.
        architecture: The model's, for saves before there is one; None when it is not known.
    """
    measured = _save_bytes(results)

    def save(run: Run) -> int | None:
        return measured if measured is not None or architecture is None else foreseen_save_bytes(architecture, run)

    found = [_cost(job, runs, results, benchmarks, save) for job in jobs]
    return sorted(found, key=lambda cost: (-(cost.limit_h or 0.0) * cost.job.cards, cost.job.rule, cost.job.item))


def known_architecture(config: Config) -> Architecture | None:
    """The model's, if its files are there or it is known by name."""
    try:
        return architecture_of(config)
    except GenselectError:
        return None


def foreseen_save_bytes(architecture: Architecture, run: Run) -> int:
    """Bytes of a save of all models that the run trains."""
    rank = run.optimiser.lora_rank
    values = (run.algorithm == "ppo") + run.predictor.enabled
    return save_bytes(architecture, "policy", rank) + values * save_bytes(architecture, "value", rank)


def check_disk(costs: Sequence[Cost], results: Path) -> None:
    """Refuse a plan whose saves the disk cannot hold.

    Raises:
        GenselectError: What is known to be left is more than what is free.
    """
    needed = sum(cost.disk or 0 for cost in costs)
    free = shutil.disk_usage(_existing(results)).free
    if needed > free:
        largest = max(costs, key=lambda cost: cost.disk or 0)
        raise GenselectError(
            f"{results}: the plan leaves {_in_gib(needed)} of saves, and {_in_gib(free)} are free; most of it: {largest.job.item} "
            f"{_in_gib(largest.disk or 0)}",
            "Free space, put `results` on another disk, or keep fewer saves: runs.<name>.schedule.anchor_every and keep_latest.",
        )


def text(costs: Sequence[Cost]) -> str:
    """The costs as a table, with totals; jobs without cards that leave little on disk are only counted."""
    shown = [cost for cost in costs if cost.job.cards or cost.disk != 0]
    wide = max([20, *(len(_name(cost)) for cost in shown)])
    lines = [
        "",
        f"{'job':<{wide}} {'cards':>5} {'hours, expected':>16} {'at most':>9} {'card hours, at most':>20} {'disk':>10}",
    ]
    for cost in shown:
        at_most = None if cost.limit_h is None else cost.limit_h * cost.job.cards
        hours = f"{_hours(cost.expected_h):>16} {_hours(cost.limit_h):>9} {_hours(at_most):>20}"
        lines.append(f"{_name(cost):<{wide}} {cost.job.cards:>5} {hours} {_disk(cost.disk):>10}")
    limits = [cost.limit_h * cost.job.cards for cost in costs if cost.limit_h is not None]
    unknown = sum(1 for cost in shown if cost.expected_h is None)
    disk = sum(cost.disk or 0 for cost in costs)
    blind = sum(1 for cost in costs if cost.disk is None)
    lines.append(f"{len(costs)} jobs; {len(costs) - len(shown)} of them take no card and little disk")
    timed = [cost for cost in shown if cost.expected_h is not None]
    expected = _hours(sum((cost.expected_h or 0.0) * cost.job.cards for cost in timed) if timed else None)
    lines.append(
        f"card hours: {_hours(sum(limits))} at most; expected: {expected}"
        + (f", without {unknown} job(s) that nobody has timed yet" if timed and unknown else "")
    )
    lines.append(
        f"disk: {_in_gib(disk)} of saves"
        + (f" without {blind} run(s) of which no save is there to measure" if blind else "")
    )
    return "\n".join(lines)


def _name(cost: Cost) -> str:
    return f"{cost.job.rule} {cost.job.item}{f' ({cost.parts})' if cost.parts else ''}".strip()


def _parts(run: Run) -> str:
    """``2 nodes``, or ``4 train, 3 roll out, 1 judge``."""
    if run.nodes > 1:
        return f"{run.nodes} nodes"
    layout = run.layout
    shares = {"train": run.train_cards, "roll out": layout.rollout, "judge": layout.judge}
    if not layout.rollout and not layout.judge:
        return ""
    return ", ".join(f"{count} {what}" for what, count in shares.items() if count)


def _cost(
    job: Job, runs: Mapping[str, Run], results: Path, benchmarks: Path, save: Callable[[Run], int | None]
) -> Cost:
    run = runs.get(job.item) if job.rule == "train_run" else None
    if run is None:
        return Cost(
            job, _clocked(benchmarks / job.rule / f"{job.item}.tsv" if job.item else benchmarks / f"{job.rule}.tsv"), 0
        )
    left = run.schedule.steps - (run.start.step or 0)
    step_s = run.step_s or _step_seconds(results, runs, run)
    folder = results / "runs" / job.item
    there = size(folder / "checkpoints") if folder.is_dir() else 0
    size_of_one = save(run)
    disk = None if size_of_one is None else max(0, len(kept_saves(run)) * size_of_one - there)
    return Cost(job, None if step_s is None else left * step_s / 3600, disk, _parts(run) if job.cards else "")


def _step_seconds(results: Path, runs: Mapping[str, Run], wanted: Run) -> float | None:
    """The median step of a run of the same size, else None: another number of episodes or tokens takes another time."""
    for name, run in runs.items():
        same = all(_shape(run)[key] == value for key, value in _shape(wanted).items())
        path = results / "runs" / name / "metrics.jsonl"
        if same and path.exists():
            seconds = [
                line["timing_s/step"]
                for line in (
                    json.loads(raw) for raw in path.read_text(encoding="utf-8").splitlines() if raw.endswith("}")
                )
                if isinstance(line.get("timing_s/step"), int | float)
            ]
            if seconds:
                return statistics.median(seconds)
    return None


def _shape(run: Run) -> dict[str, object]:
    """What the time of a step hangs on most."""
    return {"problems": run.schedule.problems, "samples": run.schedule.samples, "epochs": run.schedule.epochs,
            "response": run.tokens.response, "packing": run.tokens.packing, "cards": run.cards, "layout": run.layout,
            "algorithm": run.algorithm}  # fmt: skip


def _save_bytes(results: Path) -> int | None:
    """Bytes of a complete save of any run of this folder, the median; None when there is none."""
    saves = [path.parent for path in (results / "runs").glob("*/checkpoints/global_step_*/complete.json")]
    return int(statistics.median(size(save) for save in saves)) if saves else None


def _clocked(path: Path) -> float | None:
    """Hours that Snakemake noted for the same job before; None when it has not run."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as handle:
        seconds = [float(line["s"]) for line in csv.DictReader(handle, delimiter="\t")]
    return statistics.median(seconds) / 3600 if seconds else None


def _existing(path: Path) -> Path:
    """The nearest folder above that is there."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _hours(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.1f}" if value >= 0.1 or value == 0 else f"{value:.3f}"


def _disk(value: int | None) -> str:
    return "unknown" if value is None else "" if value == 0 else _in_gib(value)


def _in_gib(value: int) -> str:
    return f"{value / _GIB:,.1f} GiB"

"""The memory check: made-up rows that fill the token budgets, every stage's time and peaks, and the first real step beside them.

A run with ``synthetic_steps`` plays its first episodes, lets the rollout engine sleep as in every step, and then sends made-up
rows through the forwards and updates before the real ones go. The advantages are zero, so the policy stays as it is (its gradient
is zero, and an untrained adapter's product is zero whatever decays); the value models learn a little nonsense, and the
optimisers have counted the steps. Such a run is a gate and is not continued from.

On cards the peaks are the allocator's and the card's own; on a CPU they are the process's resident memory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genselect.formats import write_json
from genselect.training.calibration import json_safe

REPORT = "memory_check.json"
_GIB = 1024**3
_FREED = 0.1


@dataclass(frozen=True)
class Budget:
    """What one model's forward and backward may hold, on each card."""

    tokens: int | None
    """Tokens of a micro-batch; None where micro-batches have a fixed number of rows."""
    rows: int
    """Rows of a fixed micro-batch."""
    longest: int
    """Tokens of the longest row: prompt and response."""


def row_lengths(budget: Budget) -> list[int]:
    """Lengths of the rows that fill one micro-batch of ``budget`` on one card.

    A budget of tokens is filled by rows of the longest length and one with what is left. The lengths differ by at least a token
    where they can: verl 0.9.1 fails to split a batch whose rows are all equally long.
    """
    if budget.tokens is None:
        return [max(2, budget.longest - row) for row in range(budget.rows)]
    whole, rest = divmod(budget.tokens, budget.longest)
    if whole == 0:
        # verl puts a row that is longer than the budget into a micro-batch of its own.
        return [budget.longest]
    lengths = [max(2, budget.longest - row) for row in range(whole)]
    return [*lengths, rest] if rest >= 2 else lengths


@dataclass
class MemoryCheck:
    """What has been measured so far."""

    device: str
    world_size: int
    budgets: Mapping[str, Budget]
    """By model: ``actor``, ``critic``, ``predictor``."""
    production: Mapping[str, int]
    """``problems``, ``samples``, ``prompt_tokens``, ``response_tokens``."""
    ppo_epochs: int
    predicted: Mapping[str, float] | None = None
    """GiB that were foreseen for the process that computes, by stage; None where nobody foresaw anything."""
    steps: list[dict[str, Any]] = field(default_factory=list)

    def begin_step(self) -> None:
        """Another synthetic step."""
        self.steps.append({"step": len(self.steps) + 1, "stages": []})

    def stage(self, name: str, lengths: Sequence[int], seconds: float, peaks: Mapping[str, Any]) -> None:
        """A stage of the step that was begun last. ``lengths`` are the rows' of all cards."""
        self.steps[-1]["stages"].append(
            {"stage": name, "rows": len(lengths), "tokens": sum(lengths), "seconds": seconds, "peaks": dict(peaks)}
        )

    def report(self, real_step: Mapping[str, Any]) -> dict[str, Any]:
        """The whole report."""
        production = dict(self.production)
        production["trajectories"] = production["problems"] * production["samples"]
        longest = production["prompt_tokens"] + production["response_tokens"]
        production["tokens_at_most"] = production["trajectories"] * longest
        measured = {
            name: max(
                _largest(stage["peaks"]) for step in self.steps for stage in step["stages"] if stage["stage"] == name
            )
            for name in dict.fromkeys(stage["stage"] for step in self.steps for stage in step["stages"])
        }
        measured["real_step"] = _largest(real_step.get("peaks", {}))
        return {
            "device": self.device,
            "world_size": self.world_size,
            "unit": "GiB",
            "steps": self.steps,
            "real_step": dict(real_step),
            "token_budgets": {
                name: {"tokens": budget.tokens, "rows": budget.rows, "longest_row": budget.longest}
                for name, budget in self.budgets.items()
            },
            "production_batch": production,
            "ppo_epochs": self.ppo_epochs,
            "measured": measured,
            "predicted": dict(self.predicted) if self.predicted is not None else None,
        }

    def write(self, folder: Path, real_step: Mapping[str, Any]) -> Path:
        """Write ``memory_check.json``."""
        path = folder / REPORT
        write_json(path, json_safe(self.report(real_step)))
        return path


def _largest(peaks: Mapping[str, Any]) -> float:
    return max((rank["peak"] for ranks in peaks.values() for rank in ranks), default=0.0)


def check_report(report: Mapping[str, Any], synthetic_steps: int, free: float = _FREED) -> list[dict[str, Any]]:
    """A gate's look at the report.

    Args:
        report: ``memory_check.json``.
        synthetic_steps: As many were asked for.
        free: Share of a card's memory that must have stayed free at the worst moment. Not asked of a CPU.

    Returns:
        Checks with ``check``, ``passed`` and ``message``.
    """
    done = len(report["steps"])
    measured = report["measured"]
    worst = max(measured, key=lambda name: measured[name])
    checks = [
        {
            "check": "memory check: every synthetic step and the real one ran",
            "passed": done == synthetic_steps and bool(report["real_step"]),
            "message": f"{done} of {synthetic_steps} synthetic steps; largest peak {measured[worst]:.2f} GiB, in {worst}",
        }
    ]
    least = [
        (rank["free"] / rank["total"], rank["rank"], stage)
        for stage, peaks in _all_peaks(report)
        for ranks in peaks.values()
        for rank in ranks
        if rank.get("total")
    ]
    if least and report["device"] != "cpu":
        share, rank, stage = min(least)
        checks.append(
            {
                "check": f"memory check: {free:.0%} of every card stays free",
                "passed": share >= free,
                "message": f"least free: {share:.1%} of card {rank} after {stage}; lower the budget of that stage (runs.<name>.tokens) "
                "or the engine's share (verl: actor_rollout_ref.rollout.gpu_memory_utilization)",
            }
        )
    return checks


def _all_peaks(report: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    stages = [(stage["stage"], stage["peaks"]) for step in report["steps"] for stage in step["stages"]]
    return [*stages, ("the real step", report["real_step"].get("peaks", {}))]


# In the workers' processes


def reset_peaks(worker: Any) -> None:
    """Forget this process's peaks. Called in a worker."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        # Linux: 5 resets VmHWM. Elsewhere the peak is the process's since its start.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def read_peaks(worker: Any) -> dict[str, Any]:
    """This process's peaks since :func:`reset_peaks`, in GiB. Called in a worker."""
    import psutil
    import torch

    rank = int(getattr(worker, "rank", 0) or 0)
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return {
            "rank": rank,
            "peak": torch.cuda.max_memory_reserved() / _GIB,
            "allocated": torch.cuda.max_memory_allocated() / _GIB,
            # At the worst moment: what is free now, and what the allocator has given back since.
            "free": (free + torch.cuda.memory_reserved() - torch.cuda.max_memory_reserved()) / _GIB,
            "total": total / _GIB,
        }
    memory = psutil.virtual_memory()
    return {"rank": rank, "peak": _peak_rss() / _GIB, "free": memory.available / _GIB, "total": memory.total / _GIB}


def _peak_rss() -> int:
    """Bytes."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Probe:
    """Asks groups of workers for their peaks.

    Args:
        groups: Workers (Ray actors), by what they hold.
        first: Number of a group's first card where that is not the first of all. A rollout engine's worker does not know it.
    """

    def __init__(self, groups: Mapping[str, Sequence[Any]], first: Mapping[str, int] | None = None) -> None:
        self._groups = groups
        self._first = dict(first or {})
        self._began = time.monotonic()

    def begin(self) -> None:
        """Start afresh."""
        self._everywhere(reset_peaks)
        self._began = time.monotonic()

    def end(self) -> tuple[float, dict[str, Any]]:
        """Seconds since :meth:`begin`, and every rank's peaks by group."""
        seconds = time.monotonic() - self._began
        peaks = self._everywhere(read_peaks)
        for name, first in self._first.items():
            for card, rank in enumerate(peaks.get(name, [])):
                rank["rank"] = first + card
        return seconds, peaks

    def _everywhere(self, function: Any) -> dict[str, Any]:
        import ray

        return {
            name: ray.get([worker.__ray_call__.remote(function) for worker in workers])
            for name, workers in self._groups.items()
        }

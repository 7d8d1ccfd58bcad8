"""The tables of docs/study.md that the workflow computes: each run of a study as the plan resolves it, and what sets it apart."""

from __future__ import annotations

from pathlib import Path

from genselect.config import load_config
from genselect.config.training import Run
from genselect.plan.runs import differences, resolved_runs


def study_tables(path: Path) -> str:
    """Two Markdown tables: what each run is, and its difference from the run that it extends.

    Args:
        path: The study's configuration.

    Raises:
        GenselectError: It does not resolve, or a run differs in more or less than its ``expect_difference``.
    """
    config = load_config(path)
    runs = resolved_runs(config)
    changes = differences(config, runs)
    lines = ["| run | kind | rows | starts from | steps | problems × samples |", "|---|---|---|---|---|---|"]
    for name, run in runs.items():
        lines.append(f"| `{name}` | {run.kind} | {run.data} | {_start(run)} | {_steps(run)} | {_batch(run)} |")
    lines += ["", "| run | against | differs in |", "|---|---|---|"]
    for name, found in changes.items():
        said = "<br>".join(f"`{change}`".replace("|", "\\|") for change in found) or "nothing"
        lines.append(f"| `{name}` | `{config.runs[name].extends}` | {said} |")
    return "\n".join(lines)


def _start(run: Run) -> str:
    if run.start.run is None:
        return "the initial adapters"
    return f"`{run.start.run}`, step {run.start.step}{', with its place in the data' if run.start.data_state else ''}"


def _steps(run: Run) -> str:
    first, last = (run.start.step or 0) + 1, run.schedule.steps
    return str(last) if first == last else f"{first} to {last}"


def _batch(run: Run) -> str:
    return f"{run.schedule.problems} × {run.schedule.samples}"

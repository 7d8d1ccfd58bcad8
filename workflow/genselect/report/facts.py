"""What the page says in words and tables, read from the results folder."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from genselect.config import Config
from genselect.config.training import Run
from genselect.formats import read_json
from genselect.plan import report as picturebook
from genselect.plan.runs import gates
from genselect.provenance import read_seal
from genselect.provenance.difference import from_json
from genselect.report.run_files import RunFiles, read_run_files
from genselect.status.render import duration

#: Steps at a run's end whose figures are averaged: one step's verdict wobbles by several points.
LAST = 3


def collect_facts(config: Config, runs: Mapping[str, Run], results: Path) -> dict[str, Any]:
    """Everything that the page's template names.

    Args:
        config: The configuration.
        runs: Resolved.
        results: The results folder; every input of the rule ``write_page`` is there.

    Raises:
        GenselectError: A file of it is missing or cannot be read.
    """
    name = config.dataset.name
    data, evaluation = results / "data" / name, results / "evaluation" / name
    comparison = read_json(evaluation / "comparison.json") if (evaluation / "comparison.json").exists() else None
    finished = {run: read_run_files(results / "runs" / run) for run in runs}
    return {
        "name": name,
        "generated": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "comparison": comparison,
        "stats": read_json(data / "stats.json"),
        "runs": [_run_row(files, runs[run]) for run, files in finished.items()],
        "curves": [(run, runs[run].kind) for run in picturebook.reported_runs(runs)],
        "gates": [_gate_row(read_json(results / "gates" / f"{gate}.json")) for gate in gates(runs)],
        "differences": _differences(data / "differences.json"),
        "pictures": picturebook,
        "times": _times(results / "benchmarks" / name),
        "provenance": _provenance(data, evaluation, results / "runs", finished),
        "settings": yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100),
    }


def _differences(path: Path) -> list[dict[str, Any]]:
    """How each run differs from what it extends; none for results from before there was such a file."""
    found = [from_json(entry) for entry in read_json(path)] if path.exists() else []
    return [{"run": run, "base": base, "changes": [str(change) for change in changes]} for run, base, changes in found]


def _run_row(files: RunFiles, run: Run) -> dict[str, Any]:
    """One line of the table of runs."""
    verdicts = [float(line["episode/verdict"]) for line in files.metrics if line.get("episode/verdict") is not None]
    explored = [
        float(line["episode/mean_explores"]) for line in files.metrics if line.get("episode/mean_explores") is not None
    ]
    held_out = [files.validation[step] for step in sorted(files.validation)]
    spoke = [entry for entry in (files.health or {}).get("steps", []) if entry["level"] != "healthy"]
    return {
        "name": files.name,
        "kind": run.kind,
        "seed": run.seed,
        "steps": len(files.metrics),
        "planned": run.schedule.steps,
        "attempts": [
            f"attempt {entry.get('attempt')}: {entry.get('reason') or 'no end'}"
            + (f", from step {entry['resumed_from']}" if entry.get("resumed_from") is not None else "")
            for entry in files.attempts
        ],
        "verdict": (verdicts[0], _mean(verdicts[-LAST:])) if verdicts else None,
        "held_out": [value for value, _ in held_out],
        "explores": (explored[0], _mean(explored[-LAST:])) if explored else None,
        "worst": (files.health or {}).get("worst_level", "not judged"),
        "spoke": len(spoke),
        "findings": [f"step {entry['step']}, {entry['level']}: {', '.join(entry['guards'])}" for entry in spoke],
        "seconds": duration(_wall_seconds(files)),
    }


def _wall_seconds(files: RunFiles) -> float | None:
    """Of all attempts that wrote their end."""
    total = 0.0
    for entry in files.attempts:
        if entry.get("start") and entry.get("end"):
            start, end = (datetime.datetime.fromisoformat(entry[side]) for side in ("start", "end"))
            total += (end - start).total_seconds()
    return total or None


def _gate_row(verdict: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": verdict["gate"],
        "kind": verdict["kind"],
        "passed": verdict["passed"],
        "waived": verdict.get("waived"),
        "checks": verdict["checks"],
        "failed": verdict["failed"],
    }


def _times(folder: Path) -> list[dict[str, Any]]:
    """Seconds and peak memory of each job that Snakemake clocked, longest first."""
    rows = []
    for path in sorted(folder.rglob("*.tsv")):
        with path.open(encoding="utf-8", newline="") as handle:
            for line in csv.DictReader(handle, delimiter="\t"):
                rows.append(
                    {
                        "job": path.relative_to(folder).with_suffix("").as_posix(),
                        "seconds": float(line["s"]),
                        "time": duration(float(line["s"])),
                        # psutil saw nothing of a job shorter than its first look.
                        "memory": None if line["max_rss"] in ("-", "NA", "") else float(line["max_rss"]),
                    }
                )
    return sorted(rows, key=lambda row: -row["seconds"])


def _provenance(data: Path, evaluation: Path, runs_root: Path, runs: Mapping[str, RunFiles]) -> list[dict[str, Any]]:
    """Who made what, from the seals and the runs' attempts; equal circumstances are one line."""
    found: list[tuple[str, Mapping[str, Any], str]] = []
    for path in (data / "merged.jsonl", data / "labels.jsonl", data / "stats.json", evaluation / "preregistration.json",
                 evaluation / "comparison.json"):  # fmt: skip
        seal = read_seal(path)
        if seal is not None:
            found.append((path.name, seal.provenance, seal.finished))
    for name, files in runs.items():
        ended = str(files.attempts[-1].get("end") or "") if files.attempts else ""
        found.append((f"run {name}", read_json(runs_root / name / "manifest.json").get("provenance") or {}, ended))
    return [
        {
            "what": what,
            "when": when[:16].replace("T", " "),
            "commit": str(values.get("git_commit") or "no git")[:12],
            "dirty": values.get("git_dirty_sha256") is not None,
            "lock": str(values.get("lock_sha256") or "none")[:12],
            "host": values.get("host"),
            "cards": [
                card.get("name", "?") if isinstance(card, Mapping) else str(card) for card in values.get("gpus") or []
            ],
            "packages": values.get("packages") or {},
        }
        for what, values, when in found
    ]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)

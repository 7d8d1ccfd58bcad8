"""What a person reads when a run starts, ends or fails: what is going on, where to look, what to type next."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from genselect.config import Config
from genselect.publishing.publication import FRONT_PAGE, TARGETS

_LINE = "-" * 78


def start(config: Config, resolved: str, logs: str) -> str:
    """At the start of a run."""
    dataset = config.dataset
    source = {
        "hub": f"{dataset.repo_id} at {dataset.revision}",
        "local": str(dataset.local_dir),
        "generated": f"{dataset.generated.problems} generated problems",
    }[dataset.source]
    judge = (
        "symbolic reader (no model)" if config.judge.kind == "rule" else f"{config.judge.model} ({config.judge.kind})"
    )
    return _boxed(
        f"genselect: {dataset.name}",
        f"shards: {source}",
        f"judge: {judge}, {config.judge.shards} labelling job(s)",
        f"settings, defaults included: {resolved}",
        f"logs: {logs}/",
    )


def success(
    config: Config, data: str, logs: str, evaluation: str, page: str, publication: str, started: datetime.datetime
) -> str:
    """When everything asked for stands."""
    return _boxed(
        f"genselect: {config.dataset.name} is complete after {_elapsed(started)}",
        f"rows: {data}/train.parquet and val.parquet; the whole population: {data}/questions.jsonl",
        f"what was kept, and why the rest was not: {data}/stats.json",
        *(f"run {name}: {config.results}/runs/{name}/ (metrics.jsonl, records/, health.json)" for name in config.runs),
        *_verdict(Path(evaluation) / "comparison.json", started),
        *([f"the report, to open in a browser: {page}"] if Path(page).exists() else []),
        *_publication(Path(publication)),
        f"logs: {logs}/",
        "next: docs/data-format.md and docs/run-directory.md say how to read them; the same command again runs only what has changed",
    )


def _verdict(comparison: Path, started: datetime.datetime) -> list[str]:
    """Where the comparison is; when this run made it, what it says."""
    if not comparison.exists():
        return []
    lines = [f"the final word: {comparison.with_suffix('.md')}"]
    if comparison.stat().st_mtime >= started.timestamp():
        for entry in json.loads(comparison.read_text(encoding="utf-8"))["hypotheses"]:
            mark = " (exploratory)" if entry["exploratory"] else ""
            lines.append(f"  {entry['name']}?{mark} {entry['verdict']['sentence']}")
    return lines


def _publication(folder: Path) -> list[str]:
    """The staged trees, once they are there."""
    trees = [str(folder / target) for target in TARGETS if (folder / target / FRONT_PAGE).exists()]
    return [f"staged for others: {' and '.join(trees)} ({FRONT_PAGE} is the front page)"] if trees else []


def failure(logs: str, started: datetime.datetime) -> str:
    """When a job failed or the run was stopped."""
    return _boxed(
        f"genselect: stopped after {_elapsed(started)}; everything finished so far is kept",
        f"why: the last lines above, and the log of the rule that failed under {logs}/",
        "next: mend it and type the same command with --rerun-incomplete; labelling goes on from its journal",
        "      after a kill or a power cut, first the same command with --unlock",
    )


def _boxed(*lines: str) -> str:
    return "\n".join(["", _LINE, *lines, _LINE])


def _elapsed(started: datetime.datetime) -> str:
    seconds = int((datetime.datetime.now() - started).total_seconds())
    if seconds < 120:
        return f"{seconds} s"
    return (
        f"{seconds // 60} min {seconds % 60} s" if seconds < 7200 else f"{seconds // 3600} h {seconds % 3600 // 60} min"
    )

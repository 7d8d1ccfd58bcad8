"""Small merges and configurations that the judge's tests share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from fake_judge import PROMPT

from genselect.config import Config, check_config

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "workflow" / "scripts"


def write_merged(path: Path, problems: list[tuple[str, list[str | None]]]) -> Path:
    """A ``merged.jsonl`` of (expected answer, boxed answers) pairs."""
    with path.open("w") as handle:
        for number, (answer, boxed) in enumerate(problems):
            row = {
                "id": f"omr-{number:06d}",
                "problem": f"Problem {number}: what is it?",
                "answer": answer,
                "pass_rate_72b_tir": "n/a",
                "problem_source": "test",
                "candidates": [{"text": f"text {index}", "boxed": value} for index, value in enumerate(boxed)],
            }
            handle.write(json.dumps(row) + "\n")
    return path


def different_answers(problems: int, each: int = 3) -> list[tuple[str, list[str | None]]]:
    """Problems whose answers all differ, from each other and from the expected one; each one stands twice."""
    made: list[tuple[str, list[str | None]]] = []
    for number in range(problems):
        answers: list[str | None] = [f"a_{{{number}}}+{index}" for index in range(each)]
        made.append((f"g_{number}", answers + answers[:1]))
    return made


def settings(folder: Path, urls: list[str], **judge: Any) -> dict[str, Any]:
    """A configuration, as YAML would give it, that asks ``urls`` at once about all but identical answers."""
    prompt = folder / "prompt.txt"
    prompt.write_text(PROMPT)
    client = {
        "concurrency": 8,
        "request_timeout_s": 2.0,
        "max_attempts": 4,
        "backoff_s": 0.02,
        "backoff_max_s": 0.1,
        "breaker_failures": 12,
    }
    values = {
        "kind": "endpoints",
        "model": "judge",
        "revision": None,
        "endpoints": urls,
        "prompt": {"path": str(prompt)},
        "cascade": {"symbolic": False},
        "sampling": {"first_max_tokens": 64, "second_max_tokens": 256},
        **judge,
        "client": {**client, **judge.get("client", {})},
    }
    return {"dataset": {"name": "test", "source": "local", "local_dir": str(folder)}, "judge": values}


def config(folder: Path, urls: list[str], **judge: Any) -> Config:
    return check_config(settings(folder, urls, **judge), "test")


def write_config(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(values))
    return path


def label_command(merged: Path, config: Path, journal: Path, output: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, str(SCRIPTS / "label_candidates.py"), "--merged", str(merged), "--config", str(config)),
        *("--journal", str(journal), "--output", str(output), *more),
    ]


def start(command: list[str], **options: Any) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)


def labels(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["id"], row["index"]): row for row in rows}


def seal_counts(path: Path) -> dict[str, Any]:
    return json.loads(path.with_name(path.name + ".seal.json").read_text())["counts"]

"""Gates: whether a finished run shows what it was made to show. A formal run waits for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.formats import read_json, write_json
from genselect.training.assertions import evaluate_assertions
from genselect.training.memory_check import REPORT, check_report


def check_gate(name: str, run: Run, directory: Path, output: Path, waived: Mapping[str, str]) -> dict[str, Any]:
    """Judge the finished run ``name`` and write the verdict with its numbers to ``output``.

    Looked at: the proofs of every step, the run's one-line assertions over its last step's metrics; for an ``overfit`` run, the
    rise of the training verdict from the steps that the policy played before its first update to the last three; and the memory
    check, where one was asked for.

    Raises:
        GenselectError: The gate fails and is not waived. Nothing is written then, so the plan stops there.
    """
    metrics = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in metrics if "episode/verdict" in line]
    if not steps:
        raise GenselectError(f"{directory}: no step in metrics.jsonl", "The run has not trained; start it again.")
    proofs = [proof for path in sorted((directory / "proofs").glob("step_*.json")) for proof in read_json(path)]
    checks = [
        {"check": f"proof {proof['name']}", "passed": proof["passed"], "message": proof["message"]} for proof in proofs
    ]
    for result in evaluate_assertions(run.assertions, steps[-1]):
        checks.append({"check": result.expression, "passed": result.passed, "message": result.message})
    if run.kind == "overfit":
        checks.append(_rise(steps, run.schedule.critic_warmup, run.min_gain))
    if run.synthetic_steps:
        checks += check_report(_memory_report(directory), run.synthetic_steps)
    failed = [check for check in checks if not check["passed"]]
    verdict = {
        "gate": name,
        "kind": run.kind,
        "passed": not failed,
        "waived": waived.get(name),
        "steps": steps[-1]["step"],
        "failed": failed,
        "checks": checks,
        "last_metrics": steps[-1],
    }
    if failed and name not in waived:
        lines = "\n".join(f"  - {check['check']}: {check['message']}" for check in failed)
        raise GenselectError(
            f"gate {name} fails:\n{lines}",
            f"Mend what it shows (docs/guards.md has each proof); or, if it may fail, say why in waived_gates: {{{name}: reason}}.",
        )
    write_json(output, verdict)
    return verdict


def _memory_report(directory: Path) -> dict[str, Any]:
    if not (directory / REPORT).exists():
        raise GenselectError(
            f"{directory}: no {REPORT}, and the run asks for synthetic_steps",
            "It was trained before they were asked for: delete the directory, and let the run start again.",
        )
    report: dict[str, Any] = read_json(directory / REPORT)
    return report


def _rise(steps: list[dict[str, Any]], warmup: int, wanted: float) -> dict[str, Any]:
    # One step's verdict wobbles by several points; the mean of several does less. Until the critic has warmed up, steps are played by
    # one and the same policy.
    head = [float(line["episode/verdict"]) for line in steps[: max(1, warmup)]]
    tail = [float(line["episode/verdict"]) for line in steps[-3:]]
    first, last = sum(head) / len(head), sum(tail) / len(tail)
    return {
        "check": "the training verdict rises",
        "passed": last - first >= wanted,
        "message": f"from {first:.3f} over the first {len(head)} to {last:.3f} over the last {len(tail)} step(s): {last - first:+.3f}, "
        f"wanted {wanted:+.3f}",
    }

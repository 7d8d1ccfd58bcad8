#!/usr/bin/env python3
"""Each proof and each guard: quiet over a healthy run, and caught on a planted fault, in numbers.

    docs/benchmarks/planted_faults.py --run results/runs/formal --model results/models/mini [--output planted_faults.md]

Faults are computed from the run's own records and the base model wherever that can be done, with verl's own policy loss. Exits
with 1 when a fault is not caught, when the healthy run has an alarm or a stop, or when a proof or a guard has no fault here.
"""

import argparse
import datetime
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from planted_guards import Guards
from planted_proofs import Proofs
from planted_run import MEMORY, Row, Run

from genselect.training import guards, proofs
from genselect.training.guards import DEFAULT_RULES, NON_FINITE, Level


def without_a_fault(given: Proofs, watching: Guards) -> list[str]:
    """Proofs and guards in the code that nothing is planted for here, or that are here and gone there."""
    functions = {
        name
        for name, function in inspect.getmembers(proofs, inspect.isfunction)
        if function.__module__ == proofs.__name__ and function.__annotations__.get("return") in ("Proof", proofs.Proof)
    }
    names = {rule.name for rule in DEFAULT_RULES} | {NON_FINITE}
    return sorted((functions ^ given.all().keys()) | (names ^ watching.all().keys()))


def healthy_troubles(run: Run) -> tuple[list[str], dict[str, int]]:
    """What the run must not show, from its own files and judged again; and its notes by guard."""
    troubles = []
    notes: dict[str, int] = {}
    if Level(run.health["worst_level"]).rank >= Level.ALARM.rank:
        troubles.append(f"health.json: worst level {run.health['worst_level']}")
    for step in run.steps:
        troubles += [f"step {step.number}: {proof['message']}" for proof in step.proofs if not proof["passed"]]
    for at, metrics in enumerate(run.history):
        for finding in guards.evaluate(run.history[:at], metrics, run.guards, step=at + 1).findings:
            if finding.level.rank >= Level.ALARM.rank:
                troubles.append(f"step {run.steps[at].number}: {finding.level} {finding.guard}: {finding.message}")
            else:
                notes[finding.guard] = notes.get(finding.guard, 0) + 1
    return list(dict.fromkeys(troubles)), notes


def page(run: Run, given: Proofs, rows: list[Row], notes: dict[str, int], troubles: Sequence[str]) -> str:
    shown = sum(len(step.proofs) for step in run.steps)
    judged = len(run.steps) * (len(run.guards.rules) + 1)
    said = ", ".join(f"`{name}` {count}" for name, count in sorted(notes.items())) or "none"
    lines = [
        "# Planted faults",
        "",
        f"Made by `docs/benchmarks/planted_faults.py` on {datetime.date.today()} from the miniature's run `{run.folder.name}`: "
        f"{len(run.steps)} steps, {sum(len(step.trajectories) for step in run.steps):,} episodes. {shown} proofs were given "
        f"over it and {judged} judgements made by guards. Notes, by guard and step: {said}. "
        + ("No proof failed, and there was no alarm and no stop." if not troubles else "**It is not quiet:**"),
        "",
        *(f"- {trouble}" for trouble in troubles),
        *([""] if troubles else []),
        "Faults are computed, not written down: by the base model on the run's own tokens (packed, with other weights, at another "
        "temperature), by verl's policy loss, by playing the run's questions with a faulty policy, by the calibration report on "
        "the run's own verdicts. They replace the figures of as many steps as the guard is patient, as late in the run as its own "
        "figures leave room; the guards are the run's own (`explores_fall` with a limit of 0.7 instead of 0.4). "
        "What else speaks at the same step stands in brackets. The program fails when a fault is not caught, "
        "when the healthy run is not quiet, or when the code has a proof or a guard that is not in this table.",
        "",
        "| check | healthy, worst | limit | planted fault | its value | caught as |",
        "|---|---|---|---|---|---|",
        *(
            f"| {check} | {healthy} | {limit} | {fault.what} | {fault.value} | {fault.caught or '**NOT CAUGHT**'} |"
            for check, healthy, limit, fault in rows
        ),
        "",
        f"`first_state_agrees` sees a leak only as far as it lasts: with the miniature's own decays a state is forgotten within the 30 "
        f"tokens of a prompt, and the leaking critic reads {given.short_memory:.1g} there, while packed against padded differs at once. "
        f"The planted one remembers {MEMORY:g} tokens; the study's read 0.03 to 0.12.",
        "",
        f"`rollout_matches_actor` where the actor is a single step behind: {given.one_step_apart}.",
        "",
        "Not a fault to the guards: a critic that says the same everywhere explains none of the variance (0, the limit of "
        "`critic_useless`) and, with λ = 1, only takes a constant off every advantage. It is the baseline that a useful critic beats.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a finished, healthy run directory of the miniature")
    parser.add_argument("--model", type=Path, required=True, help="the base model's folder")
    parser.add_argument(
        "--rows", type=Path, help="its training rows (default: results/data/mini/train.parquet beside it)"
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()  # it reports the value model's new head as missing, which it is
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    rows = arguments.rows or arguments.run.parents[1] / "data" / "mini" / "train.parquet"
    run = Run(arguments.run, arguments.model, rows)
    longest = max(rule.warm_up + rule.patience for rule in DEFAULT_RULES)
    if len(run.steps) <= longest:
        sys.exit(f"{arguments.run} has {len(run.steps)} steps; the most patient guard needs more than {longest}.")
    given = Proofs(run)
    watching = Guards(run, given)
    troubles, notes = healthy_troubles(run)
    troubles += [
        f"{name}: nothing is planted for it, or it is no longer there" for name in without_a_fault(given, watching)
    ]
    watching.check_own_arithmetic()
    table = [row for rows_of in given.all().values() for row in rows_of()] + watching.table()
    troubles += [
        f"{row.check}: {row.fault.what}: {row.fault.value}, not caught" for row in table if not row.fault.caught
    ]
    text = page(run, given, table, notes, troubles)
    print(text)
    arguments.output.write_text(text, encoding="utf-8")
    if troubles:
        sys.exit("\n".join(troubles))


if __name__ == "__main__":
    main()

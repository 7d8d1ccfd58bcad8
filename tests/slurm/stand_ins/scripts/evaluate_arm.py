#!/usr/bin/env python3
"""Stand-in for ``workflow/scripts/evaluate_arm.py``: the same command line and files; answers are drawn at random."""

import argparse
import datetime
import os
import random
import sys
from pathlib import Path

from genselect.cli import run
from genselect.config import fingerprint, load_config
from genselect.dataset.held_out import FILES, held_out_rows
from genselect.formats.arm_results import write_arm_results
from genselect.plan.evaluation import arm_identity, evaluation_plan
from genselect.plan.runs import resolved_runs
from genselect.provenance import write_seal


def main(arguments: argparse.Namespace) -> None:
    """Write the arm's file and its seal."""
    started = datetime.datetime.now(datetime.UTC)
    config = load_config(arguments.config)
    runs = resolved_runs(config)
    plan = evaluation_plan(config, runs)
    arm = plan.played[arguments.arm]
    rows, judge = held_out_rows(arguments.data, config)
    draw = random.Random(arguments.arm)
    results = [
        {"question_id": row["extra_info"]["question_id"], "seed": runs[arm.run].seed if arm.run else 0, "sample": sample,
         "correct": draw.randrange(2), "shown": draw.randrange(8), "answer": "42", "explores": 1, "end": "submit", "tokens": 30,
         "verdict_source": "label"}
        for row in rows for sample in range(config.evaluation.samples)
    ]  # fmt: skip
    write_arm_results(arguments.output, results)
    identity = arm_identity(config, runs, plan, arguments.arm)
    write_seal(
        arguments.output,
        kind="arm",
        counts={"questions": len(rows), "cards": os.environ.get("CUDA_VISIBLE_DEVICES", "")},
        outputs=[arguments.output],
        inputs=[*(arguments.data / file for file in FILES), arguments.model / "config.json"],
        started=started,
        fingerprints={"judge": judge, "arm": fingerprint(identity)},
        config=identity,
    )


parser = argparse.ArgumentParser(description=__doc__)
for option in ("config", "data", "model", "output", "parts"):
    parser.add_argument(f"--{option}", type=Path, required=True)
parser.add_argument("--arm", required=True)

if __name__ == "__main__":
    sys.exit(run(parser, main))

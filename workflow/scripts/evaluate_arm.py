#!/usr/bin/env python3
"""Play a policy on every held-out question. A stopped evaluation goes on."""

import argparse
import sys
from pathlib import Path

from genselect.cli import run
from genselect.config import load_config
from genselect.errors import GenselectError
from genselect.plan.evaluation import evaluation_plan
from genselect.plan.runs import resolved_runs
from genselect.provenance.difference import did_you_mean
from genselect.training.arms import evaluate_arm
from genselect.training.rollout_engine import run_kept


def main(arguments: argparse.Namespace) -> None:
    """Play; a stop leaves with status 75 and finished parts kept."""
    config = load_config(arguments.config)
    runs = resolved_runs(config)
    plan = evaluation_plan(config, runs)
    if arguments.arm not in plan.played:
        raise GenselectError(
            f"--arm {arguments.arm}: there is no such policy", did_you_mean(arguments.arm, plan.played)
        )
    evaluate_arm(
        arguments.arm,
        config,
        runs,
        plan,
        data=arguments.data,
        model=arguments.model,
        output=arguments.output,
        parts=arguments.parts,
    )


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--arm", required=True, help="untrained, untrained_selector, or <run>@<step>")
parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the built rows")
parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="folder of the policy's weights")
parser.add_argument("--output", type=Path, required=True, help="Parquet file; its seal is written beside it")
parser.add_argument("--parts", type=Path, required=True, metavar="DIR", help="folder of finished parts, until the end")

if __name__ == "__main__":
    status = run_kept()
    sys.exit(run(parser, main) if status is None else status)

#!/usr/bin/env python3
"""Play the untrained policy on built rows, through the rollout engine and with no trainer. A stopped rollout goes on."""

import argparse
import logging
import sys
from pathlib import Path

from genselect.cli import run
from genselect.config import load_config
from genselect.errors import GenselectError
from genselect.plan.runs import resolved_runs
from genselect.provenance.difference import did_you_mean
from genselect.training.rollout import roll_out
from genselect.training.rollout_engine import run_kept

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Play and say what came out; a stop leaves with status 75 and finished parts kept."""
    config = load_config(arguments.config)
    if arguments.rollout not in config.rollouts:
        raise GenselectError(
            f"--rollout {arguments.rollout}: there is no such rollout", did_you_mean(arguments.rollout, config.rollouts)
        )
    rollout = config.rollouts[arguments.rollout]
    runs = resolved_runs(config)
    if rollout.like not in runs:
        raise GenselectError(
            f"rollouts.{arguments.rollout}.like: there is no run {rollout.like}", did_you_mean(rollout.like, runs)
        )
    summary = roll_out(
        arguments.rows,
        arguments.model,
        runs[rollout.like],
        rollout,
        arguments.output_dir,
        arguments.parts,
        config.models.base.template_options,
        judge=config.judge,
    )
    counts = ", ".join(f"{passed} correct: {questions}" for passed, questions in summary["pass_counts"].items())
    logger.info(
        "rollout %s: verdict %.3f over %d episodes of %d questions (of %d samples %s), %.1f episodes a second",
        arguments.rollout,
        summary["verdict"],
        summary["episodes"],
        summary["rows"],
        summary["samples"],
        counts,
        summary["episodes_per_second"],
    )


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--rollout", required=True, help="name of the rollout")
parser.add_argument("--model", type=Path, required=True, help="folder of the base model")
parser.add_argument("--rows", type=Path, required=True, help="train.parquet or val.parquet")
parser.add_argument("--output-dir", type=Path, required=True, help="folder for records, rollout.json and its seal")
parser.add_argument("--parts", type=Path, required=True, metavar="DIR", help="folder of finished parts, until the end")

if __name__ == "__main__":
    status = run_kept()
    sys.exit(run(parser, main) if status is None else status)

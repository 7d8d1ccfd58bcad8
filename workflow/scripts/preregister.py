#!/usr/bin/env python3
"""Fix, before the formal run, what will be compared, by which test, and what that can see."""

import argparse
import logging
import sys
from pathlib import Path

from genselect.cli import run
from genselect.config import load_config
from genselect.evaluation.stage import write_preregistration
from genselect.plan.evaluation import evaluation_plan
from genselect.plan.runs import resolved_runs

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Write, and say what can be seen."""
    config = load_config(arguments.config)
    runs = resolved_runs(config)
    written = write_preregistration(
        config,
        runs,
        evaluation_plan(config, runs),
        arguments.data,
        arguments.baselines,
        arguments.arms,
        arguments.output,
    )
    for name, effect in written["minimum_detectable"].items():
        logger.info(
            "%s: a rise of %.1f points would be found with chance %.0f %%, on %d questions (smallest that matters: %.1f)",
            *(
                name,
                100 * effect["difference"],
                100 * effect["power"],
                effect["questions"],
                100 * written["smallest_effect"],
            ),
        )


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the built rows")
parser.add_argument("--baselines", type=Path, required=True, help="baselines.parquet")
parser.add_argument("--arms", type=Path, required=True, metavar="DIR", help="folder of the arms' files")
parser.add_argument("--output", type=Path, required=True, help="preregistration.json")

if __name__ == "__main__":
    sys.exit(run(parser, main))

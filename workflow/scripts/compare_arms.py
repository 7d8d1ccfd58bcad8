#!/usr/bin/env python3
"""Compare all arms on the same questions, against what was preregistered: the final word."""

import argparse
import logging
import sys
from pathlib import Path

from genselect.cli import run
from genselect.config import load_config
from genselect.evaluation.stage import write_comparison
from genselect.plan.evaluation import evaluation_plan
from genselect.plan.runs import resolved_runs

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Compare, and say the word on each hypothesis."""
    config = load_config(arguments.config)
    runs = resolved_runs(config)
    comparison = write_comparison(
        config,
        runs,
        evaluation_plan(config, runs),
        data=arguments.data,
        baselines=arguments.baselines,
        arms=arguments.arms,
        preregistration=arguments.preregistration,
        runs_root=arguments.runs_root,
        output=arguments.output,
    )
    for entry in comparison["hypotheses"]:
        mark = " (exploratory)" if entry["exploratory"] else ""
        logger.info("%s?%s %s", entry["name"], mark, entry["verdict"]["sentence"])


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the built rows")
parser.add_argument("--baselines", type=Path, required=True, help="baselines.parquet")
parser.add_argument("--arms", type=Path, required=True, metavar="DIR", help="folder of the arms' files")
parser.add_argument("--preregistration", type=Path, required=True, help="preregistration.json")
parser.add_argument("--runs-root", type=Path, required=True, metavar="DIR", help="folder of the run directories")
parser.add_argument("--output", type=Path, required=True, help="comparison.json; comparison.md is written beside it")

if __name__ == "__main__":
    sys.exit(run(parser, main))

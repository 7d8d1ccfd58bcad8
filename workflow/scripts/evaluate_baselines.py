#!/usr/bin/env python3
"""Write every arm that needs no model: first, mean, majority of k, oracle, adaptive consistency."""

import argparse
import logging
import sys
from pathlib import Path

from genselect.cli import run
from genselect.config import load_config
from genselect.evaluation.stage import write_baselines

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Write, and say how accurate the best known ones are."""
    summary = write_baselines(load_config(arguments.config), arguments.data, arguments.output)
    figures = ", ".join(f"{name} {values['accuracy']:.3f}" for name, values in summary["arms"].items())
    logger.info("baselines on %d questions: %s", summary["questions"], figures)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the built rows")
parser.add_argument("--output", type=Path, required=True, help="Parquet file; its seal is written beside it")

if __name__ == "__main__":
    sys.exit(run(parser, main))

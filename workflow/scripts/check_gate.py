#!/usr/bin/env python3
"""Judge a finished gate run: its proofs, its assertions, and, for an overfitting control, its rise."""

import argparse
import logging
import sys
from pathlib import Path

from genselect.cli import run
from genselect.config import load_config
from genselect.plan.runs import resolved_runs
from genselect.training.gate import check_gate

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Judge and say so."""
    config = load_config(arguments.config)
    chosen = resolved_runs(config)[arguments.run]
    verdict = check_gate(arguments.run, chosen, arguments.directory, arguments.output, config.waived_gates)
    passed = sum(check["passed"] for check in verdict["checks"])
    if verdict["passed"]:
        logger.info("gate %s passes: %d checks", arguments.run, passed)
    else:
        failed = len(verdict["failed"])
        logger.info(
            "gate %s fails %d of %d checks and is waived: %s", arguments.run, failed, passed + failed, verdict["waived"]
        )


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--run", required=True, help="name of the run")
parser.add_argument("--directory", type=Path, required=True, help="its run directory")
parser.add_argument("--output", type=Path, required=True, help="the gate's file")

if __name__ == "__main__":
    sys.exit(run(parser, main))

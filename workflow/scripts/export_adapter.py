#!/usr/bin/env python3
"""Write the LoRA adapter of a run's save as PEFT loads it, with a model card."""

import argparse
import logging
import sys
from pathlib import Path

from genselect.cli import run
from genselect.config import load_config
from genselect.plan.runs import resolved_runs
from genselect.publishing.adapters import export

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Export."""
    config = load_config(arguments.config)
    export(
        config,
        resolved_runs(config),
        arguments.run,
        arguments.step,
        results=arguments.results or config.results,
        base=arguments.model,
        output=arguments.output_dir,
    )
    logger.info("%s, step %d: %s", arguments.run, arguments.step, arguments.output_dir)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--results", type=Path, metavar="DIR", help="results folder; the configuration's when not given")
parser.add_argument("--run", required=True, help="the run's name")
parser.add_argument("--step", type=int, required=True, help="step of the save")
parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="folder of the base model")
parser.add_argument("--output-dir", type=Path, required=True, metavar="DIR", help="made anew")

if __name__ == "__main__":
    sys.exit(run(parser, main))

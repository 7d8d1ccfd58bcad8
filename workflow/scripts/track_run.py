#!/usr/bin/env python3
"""Mirror a run to the configured tracker (publish.tracking), while it trains or afterwards."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from genselect.cli import run
from genselect.config import load_config
from genselect.formats import write_json
from genselect.plan.runs import resolved_runs
from genselect.publishing.tracking import sync_run


def main(arguments: argparse.Namespace) -> None:
    """Sync."""
    config = load_config(arguments.config)
    mirrored = sync_run(
        config, resolved_runs(config), arguments.run, arguments.results or config.results, new_run=arguments.new_run
    )
    if arguments.output:
        write_json(arguments.output, asdict(mirrored))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--run", required=True, help="the run's name")
parser.add_argument("--results", type=Path, metavar="DIR", help="results folder (default: the configuration's)")
parser.add_argument("--new-run", action="store_true", help="send it to W&B under a new id, whole")
parser.add_argument(
    "--output", type=Path, metavar="FILE", help="write what the tracker was told there as well, as JSON"
)

if __name__ == "__main__":
    sys.exit(run(parser, main))

#!/usr/bin/env python3
"""Stage what is published: the Hub's tree, and the reading copy for GitHub, each with a front page and publication.json."""

import argparse
import logging
import sys
from pathlib import Path

from genselect.cli import run
from genselect.config import load_config
from genselect.plan.runs import resolved_runs
from genselect.publishing.layout import make_plan, publication_folder
from genselect.publishing.plan_text import plan_text
from genselect.publishing.stage import stage
from genselect.status.render import in_bytes

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Stage, or show what would be staged."""
    config = load_config(arguments.config)
    results = arguments.results or config.results
    if arguments.plan:
        print(plan_text(make_plan(config, results)))
        return
    for target, publication in stage(config, resolved_runs(config), results).items():
        folder = publication_folder(results, config.dataset.name) / target
        size = sum(file.bytes for file in publication.files)
        logger.info("%s: %d files, %s", folder, len(publication.files) + 1, in_bytes(size))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--results", type=Path, metavar="DIR", help="results folder; the configuration's when not given")
parser.add_argument("--plan", action="store_true", help="show what goes where, and write nothing")

if __name__ == "__main__":
    sys.exit(run(parser, main))

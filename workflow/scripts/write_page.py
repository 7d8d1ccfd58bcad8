#!/usr/bin/env python3
"""Write the report's page: verdict, pictures, tables, provenance, in one HTML file."""

import argparse
import logging
import sys
from pathlib import Path

from genselect.cli import run
from genselect.config import load_config
from genselect.plan.runs import resolved_runs
from genselect.report.facts import collect_facts
from genselect.report.page import render_page

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Write it, and say where."""
    config = load_config(arguments.config)
    facts = collect_facts(config, resolved_runs(config), arguments.results)
    render_page(facts, arguments.output.parent / "figures", arguments.output)
    logger.info("report: %s", arguments.output)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--results", type=Path, required=True, metavar="DIR", help="results folder")
parser.add_argument("--output", type=Path, required=True, help="index.html; the pictures lie in figures/ beside it")

if __name__ == "__main__":
    sys.exit(run(parser, main))

#!/usr/bin/env python3
"""Show how a results folder stands: stages, runs, health, ETA, disk, what waits for what. Reads only, takes no lock."""

import argparse
import sys
from pathlib import Path

import orjson
from rich.console import Console

from genselect.cli import run
from genselect.status import collect, render


def main(arguments: argparse.Namespace) -> None:
    """Print a table, or the same as JSON."""
    status = collect(arguments.results, arguments.config)
    if arguments.json:
        options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        sys.stdout.write(orjson.dumps(status.as_json(), option=options).decode())
    else:
        render(status, Console(highlight=False))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
parser.add_argument("--config", type=Path, help="resolved configuration (default: data/<name>/config.yaml in it)")
parser.add_argument("--json", action="store_true", help="JSON instead of the table (docs/status.md lists its keys)")

if __name__ == "__main__":
    sys.exit(run(parser, main))

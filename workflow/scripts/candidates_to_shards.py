#!/usr/bin/env python3
"""Turn a file of your own problems and candidate solutions into shards that the workflow reads (docs/own-data.md)."""

import argparse
import sys
from pathlib import Path

from genselect import cli
from genselect.dataset.own import make_own_shards


def main(arguments: argparse.Namespace) -> None:
    """Check the whole file, then write the shards."""
    make_own_shards(arguments.candidates, arguments.output_dir, arguments.shards, arguments.per_prompt)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument(
        "--candidates", type=Path, required=True, metavar="FILE",
        help=".jsonl or .parquet: a row a problem (problem, answer, candidates), or a row a candidate (candidate)",
    )  # fmt: skip
    made.add_argument(
        "--output-dir", type=Path, required=True, metavar="DIR", help="new or empty folder for the shards"
    )
    made.add_argument("--shards", type=int, default=1, help="Parquet files (default: %(default)s)")
    made.add_argument(
        "--per-prompt", type=int, default=16, metavar="N", help="candidates in a row, at most (default: %(default)s)"
    )
    return made


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))

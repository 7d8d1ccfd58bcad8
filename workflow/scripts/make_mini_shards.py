#!/usr/bin/env python3
"""Write the miniature's shards: generated problems and candidates in the real schema and prompt form."""

import argparse
import logging
import sys
from pathlib import Path

from genselect import cli
from genselect.dataset.miniature import make_shards


def main(arguments: argparse.Namespace) -> None:
    """Write the shards and say where they are."""
    paths = make_shards(arguments.output, arguments.seed, arguments.problems, arguments.shards)
    logging.getLogger("genselect").info("%s: %d shards", arguments.output, len(paths))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for the shards")
    made.add_argument("--seed", type=int, required=True, help="same seed, same bytes")
    made.add_argument("--problems", type=int, default=320, help="problems to keep (default: %(default)s)")
    made.add_argument("--shards", type=int, default=4, help="Parquet files (default: %(default)s)")
    return made


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))

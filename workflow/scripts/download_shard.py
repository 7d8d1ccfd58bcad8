#!/usr/bin/env python3
"""Fetch one raw shard from the Hub (or from dataset.local_dir), check it, and put it in place with a seal."""

import argparse
import sys
from pathlib import Path

from genselect import cli
from genselect.config import load_config
from genselect.dataset.download import fetch_shard


def main(arguments: argparse.Namespace) -> None:
    """Fetch the shard. Started again after a cut, it goes on where it stopped."""
    fetch_shard(load_config(arguments.config).dataset, arguments.name, arguments.output)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--config", type=Path, required=True, help="its dataset section says where from")
    made.add_argument(
        "--name", required=True, metavar="FILE", help="one of dataset.shards, or a file name of local_dir"
    )
    made.add_argument("--output", type=Path, required=True, metavar="PATH", help="where the shard goes")
    return made


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))

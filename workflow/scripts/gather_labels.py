#!/usr/bin/env python3
"""Put the labels of all shards together, checked: one merge, one judge, every candidate once."""

import argparse
import logging
import sys
from pathlib import Path

from genselect.cli import run
from genselect.judge import gather_labels

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Gather and say what came out."""
    counts = gather_labels(arguments.merged, arguments.shards, arguments.output)
    logger.info(
        "gathered %d labels of %d problems from %d shards: %d judged, %d correct",
        *(counts["candidates"], counts["problems"], len(arguments.shards), counts["judged"], counts["correct"]),
    )


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--merged", type=Path, required=True, help="merged.jsonl")
parser.add_argument("--shards", type=Path, nargs="+", required=True, metavar="FILE", help="labels of shards 1/N to N/N")
parser.add_argument("--output", type=Path, required=True, help="labels.jsonl to write")

if __name__ == "__main__":
    sys.exit(run(parser, main))

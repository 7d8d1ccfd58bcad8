#!/usr/bin/env python3
"""Build training and held-out rows from a merge and its labels."""

import argparse
import logging
import sys
from pathlib import Path

from genselect.cli import run
from genselect.config import load_config
from genselect.dataset.build import build_rows

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Build and say what came out."""
    stats = build_rows(arguments.merged, arguments.labels, arguments.output_dir, load_config(arguments.config))
    logger.info(
        "built %d rows of %d merged problems: %d to train on, %d held out (%d of them validated online); correct of %d: %s",
        stats["problems_kept"],
        stats["problems_merged"],
        stats["train_rows"],
        stats["held_out_rows"],
        stats["val_rows_online"],
        stats["candidates_per_row"],
        " ".join(f"{count}:{problems}" for count, problems in stats["correct_of_eight"].items()),
    )


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--merged", type=Path, required=True, help="merged.jsonl")
parser.add_argument("--labels", type=Path, required=True, help="labels.jsonl of that merge")
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--output-dir", type=Path, required=True, help="folder for the rows, partition and statistics")

if __name__ == "__main__":
    sys.exit(run(parser, main))

#!/usr/bin/env python3
"""Merge GenSelect shards into one line a problem, with its distinct candidate solutions."""

import argparse
import sys
from pathlib import Path

from genselect import cli
from genselect.config import load_config
from genselect.dataset.merge import PROBLEM_TYPES, merge_shards


def main(arguments: argparse.Namespace) -> None:
    """Merge; the configuration is read for ``dataset.problem_types`` only."""
    kept = load_config(arguments.config).dataset.problem_types if arguments.config else PROBLEM_TYPES
    merge_shards(arguments.shards, arguments.output, arguments.stats, problem_types=kept, workers=arguments.workers)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument(
        "--shards", type=Path, nargs="+", required=True, metavar="FILE_OR_DIR",
        help="Parquet files, or folders of them; read in this order, a folder's in name order",
    )  # fmt: skip
    made.add_argument(
        "--output", type=Path, required=True, metavar="MERGED.jsonl",
        help="one line a problem; MERGED.judgments.jsonl and a seal are written beside it",
    )  # fmt: skip
    made.add_argument("--stats", type=Path, required=True, metavar="STATS.json", help="what was read, kept and refused")
    made.add_argument("--config", type=Path, help="takes dataset.problem_types from it (default: has_answer_extracted)")
    made.add_argument("--workers", type=int, help="processes at most; the output does not depend on it")
    return made


if __name__ == "__main__":
    sys.exit(cli.run(parser(), main))

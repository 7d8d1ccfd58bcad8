#!/usr/bin/env python3
"""Label the candidates of a merge: is each boxed answer equivalent to the expected one?"""

import argparse
import logging
import sys
from pathlib import Path

from genselect.cli import run
from genselect.config import load_config
from genselect.judge import Shard, label_candidates

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Label and say what came out."""
    shard = Shard.parse(arguments.shard)
    config = load_config(arguments.config)
    counts = label_candidates(
        arguments.merged,
        config,
        journal=arguments.journal,
        output=arguments.output,
        shard=shard,
        reuse=arguments.reuse,
    )
    logger.info(
        "labelled %d candidates of %d problems: %d judged, %d correct, %d judge calls",
        *(counts[name] for name in ("candidates", "problems", "judged", "correct", "judge_calls")),
    )


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--merged", type=Path, required=True, help="merged.jsonl")
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument(
    "--shard", default="1/1", metavar="K/N", help="label the K-th of N shares of the problems (default: 1/1)"
)
parser.add_argument(
    "--journal", type=Path, required=True, metavar="DIR", help="folder of this job's journal and progress"
)
parser.add_argument(
    "--reuse",
    type=Path,
    metavar="DIR",
    help="use the verdicts in other journals below this folder, of other shares say",
)
parser.add_argument("--output", type=Path, required=True, help="labels.jsonl to write")

if __name__ == "__main__":
    sys.exit(run(parser, main))

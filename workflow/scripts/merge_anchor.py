#!/usr/bin/env python3
"""Make a model folder out of a run's save: the adapter added into the base model's weights."""

import argparse
import sys
from pathlib import Path

from genselect.cli import run
from genselect.training.merge_anchor import merge_anchor


def main(arguments: argparse.Namespace) -> None:
    """Merge."""
    merge_anchor(arguments.run_directory, arguments.step, arguments.model, arguments.output_dir, arguments.record)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--run-directory", type=Path, required=True, metavar="DIR", help="results/runs/<run>")
parser.add_argument("--step", type=int, required=True, help="step of the save")
parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="folder of the base model")
parser.add_argument("--output-dir", type=Path, required=True, metavar="DIR", help="the model's folder, made anew")
parser.add_argument("--record", type=Path, required=True, help="JSON file that says what the folder is; sealed")

if __name__ == "__main__":
    sys.exit(run(parser, main))

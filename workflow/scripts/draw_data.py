#!/usr/bin/env python3
"""Draw what the data stages kept and dropped."""

import argparse
import sys
from pathlib import Path

from genselect.cli import run
from genselect.formats import read_json
from genselect.report.figures_data import correct_of_eight, count_correct, data_flow, labels_by_stage
from genselect.report.style import save_figure


def main(arguments: argparse.Namespace) -> None:
    """One picture after the other."""
    merge_stats, stats = (read_json(arguments.data / name) for name in ("merge_stats.json", "stats.json"))
    counts = count_correct(arguments.data / "questions.jsonl")
    save_figure(data_flow(merge_stats, stats), arguments.output_dir / "data_flow.svg")
    save_figure(labels_by_stage(stats), arguments.output_dir / "labels_by_stage.svg")
    save_figure(correct_of_eight(counts, arguments.per_row), arguments.output_dir / "correct_of_eight.svg")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the built rows")
parser.add_argument("--per-row", type=int, default=8, metavar="N", help="candidates a row (default: 8)")
parser.add_argument("--output-dir", type=Path, required=True, help="folder for the pictures, SVG and PNG")

if __name__ == "__main__":
    sys.exit(run(parser, main))

#!/usr/bin/env python3
"""Draw the comparison: differences, accuracies, cost, strata."""

import argparse
import sys
from pathlib import Path

from genselect.cli import run
from genselect.formats import read_json
from genselect.report.figures_evaluation import accuracy, cost, forest, strata
from genselect.report.style import save_figure


def main(arguments: argparse.Namespace) -> None:
    """One picture after the other."""
    comparison = read_json(arguments.comparison)
    for draw in (forest, accuracy, cost, strata):
        save_figure(draw(comparison), arguments.output_dir / f"{draw.__name__}.svg")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--comparison", type=Path, required=True, help="comparison.json")
parser.add_argument("--output-dir", type=Path, required=True, help="folder for the pictures, SVG and PNG")

if __name__ == "__main__":
    sys.exit(run(parser, main))

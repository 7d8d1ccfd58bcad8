#!/usr/bin/env python3
"""Draw one training run: curves, guards and proofs, explores, calibration."""

import argparse
import sys
from pathlib import Path

from genselect.cli import run
from genselect.config import load_config
from genselect.formats import read_json
from genselect.plan.runs import resolved_runs
from genselect.report.figures_calibration import calibration, reliability
from genselect.report.figures_run import explores, health, training
from genselect.report.levels import guard_levels, held_out_levels, kl_limit
from genselect.report.run_files import read_run_files
from genselect.report.style import save_figure


def main(arguments: argparse.Namespace) -> None:
    """One picture after the other."""
    files = read_run_files(arguments.run_directory)
    settings = resolved_runs(load_config(arguments.config))[arguments.run]
    levels = held_out_levels(read_json(arguments.comparison)) if arguments.comparison else {}
    pictures = {
        "training": training(files, levels, kl_limit=kl_limit(settings.guards)),
        "health": health(files, guard_levels(settings.guards)),
        "explores": explores(files),
        "calibration": calibration(files),
        "reliability": reliability(files),
    }
    for name, figure in pictures.items():
        save_figure(figure, arguments.output_dir / f"{name}.svg")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--run", required=True, help="the run's name in it")
parser.add_argument("--run-directory", type=Path, required=True, metavar="DIR", help="its run directory")
parser.add_argument("--comparison", type=Path, help="comparison.json: its arms become lines to compare with")
parser.add_argument("--output-dir", type=Path, required=True, help="folder for the pictures, SVG and PNG")

if __name__ == "__main__":
    sys.exit(run(parser, main))

#!/usr/bin/env python3
"""Draw which rule feeds which, from what `snakemake --rulegraph dot` prints."""

import argparse
import sys
from pathlib import Path

from genselect.cli import run
from genselect.plan.stages import GROUPS
from genselect.report.figure_rules import read_rule_graph, rule_graph
from genselect.report.style import save_figure


def main(arguments: argparse.Namespace) -> None:
    """Draw it."""
    graph = read_rule_graph(arguments.graph.read_text(encoding="utf-8"))
    save_figure(rule_graph(graph, GROUPS), arguments.output)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--graph", type=Path, required=True, help="the rule graph in DOT")
parser.add_argument("--output", type=Path, required=True, help="the picture, .svg; a .png is written beside it")

if __name__ == "__main__":
    sys.exit(run(parser, main))

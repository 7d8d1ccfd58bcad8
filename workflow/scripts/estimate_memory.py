#!/usr/bin/env python3
"""What a run needs of each card, stage by stage, and what to change first when it does not fit. Needs no card and no weights."""

import argparse
import sys
from pathlib import Path

from genselect.cli import run
from genselect.config import load_config
from genselect.errors import GenselectError
from genselect.formats import write_json
from genselect.memory.architecture import architecture_of
from genselect.memory.predict import CARDS, GIB, predict
from genselect.memory.report import as_json, as_text
from genselect.memory.settings import Layout, run_settings
from genselect.plan.runs import resolved_runs
from genselect.provenance.difference import did_you_mean


def main(arguments: argparse.Namespace) -> None:
    """Predict for each layout; print, and write."""
    config = load_config(arguments.config)
    runs = resolved_runs(config)
    if arguments.run not in runs:
        raise GenselectError(f"--run {arguments.run}: there is no such run", did_you_mean(arguments.run, runs))
    architecture = architecture_of(config, arguments.model_config)
    settings = run_settings(runs[arguments.run], arguments.run)
    layouts = [Layout.parse(text) for text in arguments.layout or []] or [settings.layout]
    written = []
    for layout in layouts:
        prediction = predict(
            architecture,
            settings,
            layout,
            int(card_gib(arguments.card) * GIB),
            context=int(arguments.context * GIB),
            caches_kept=arguments.caches_kept,
        )
        print(as_text(prediction, arguments.run), end="\n\n")
        written.append(as_json(prediction, arguments.run))
    if arguments.json:
        write_json(arguments.json, {"estimates": written})


def card_gib(text: str) -> float:
    """GiB of a card, by its name or as a number."""
    try:
        size = CARDS.get(text.upper()) or float(text)
    except ValueError:
        size = 0.0
    if size <= 0:
        raise GenselectError(f"--card {text}: is no card", f"Name {' or '.join(CARDS)}, or give its memory in GiB.")
    return size


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--run", required=True, help="name of the run")
parser.add_argument(
    "--layout",
    action="append",
    help="8: cards that train and roll out in turn; 4+3+1: train, roll out, judge. Again for another. Default: the run's own",
)
parser.add_argument(
    "--model-config", type=Path, help="the model's config.json; default: the workflow's own folder, else known by name"
)
parser.add_argument("--card", default="H200", help=f"{' or '.join(CARDS)}, or GiB of a card (default: H200)")
parser.add_argument(
    "--context", type=float, default=1.0, help="GiB that a process has on a card besides tensors; assumed (default: 1)"
)
parser.add_argument(
    "--caches-kept",
    action="store_true",
    help="as if no process gave its allocator's cache back after a stage, as in verl's engines",
)
parser.add_argument("--json", type=Path, help="write the figures there, in bytes")

if __name__ == "__main__":
    sys.exit(run(parser, main))

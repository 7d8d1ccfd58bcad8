#!/usr/bin/env python3
"""Stand-in for ``workflow/scripts/merge_anchor.py``: the same command line and files; the weights are the base model's."""

import argparse
import datetime
import shutil
import sys
from pathlib import Path

from genselect.cli import run
from genselect.formats import write_json
from genselect.provenance import write_seal
from genselect.provenance.run_directory import resolve_start


def main(arguments: argparse.Namespace) -> None:
    """Check that the save is there, and make the folder and the record."""
    started = datetime.datetime.now(datetime.UTC)
    folder = arguments.run_directory
    resolve_start(folder.parent, folder.name, arguments.step, False)
    shutil.copytree(arguments.model, arguments.output_dir, dirs_exist_ok=True)
    write_json(arguments.record, {"run": folder.name, "step": arguments.step})
    write_seal(arguments.record, kind="anchor", counts={}, outputs=[arguments.record], inputs=[], started=started)


parser = argparse.ArgumentParser(description=__doc__)
for option in ("run-directory", "model", "output-dir", "record"):
    parser.add_argument(f"--{option}", type=Path, required=True)
parser.add_argument("--step", type=int, required=True)

if __name__ == "__main__":
    sys.exit(run(parser, main))

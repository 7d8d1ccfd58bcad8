#!/usr/bin/env python3
"""Stand-in for ``workflow/scripts/rollout_policy.py``: the same command line and files; nothing is played."""

import argparse
import datetime
import os
import sys
from pathlib import Path

from genselect.cli import run
from genselect.formats import write_json
from genselect.provenance import write_seal


def main(arguments: argparse.Namespace) -> None:
    """Write the three files."""
    started = datetime.datetime.now(datetime.UTC)
    records, summary = arguments.output_dir / "records" / "step_0.parquet", arguments.output_dir / "rollout.json"
    records.parent.mkdir(parents=True, exist_ok=True)
    records.write_bytes(b"")
    write_json(summary, {"cards": os.environ.get("CUDA_VISIBLE_DEVICES", "")})
    write_seal(summary, kind="rollout", counts={}, outputs=[summary, records], inputs=[], started=started)


parser = argparse.ArgumentParser(description=__doc__)
for option in ("config", "model", "rows", "output-dir", "parts"):
    parser.add_argument(f"--{option}", type=Path, required=True)
parser.add_argument("--rollout", required=True)

if __name__ == "__main__":
    sys.exit(run(parser, main))

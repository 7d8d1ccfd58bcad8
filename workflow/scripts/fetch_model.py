#!/usr/bin/env python3
"""Fetch the base model from the Hugging Face Hub: a pinned commit, every file checked. A stopped download goes on where it was."""

import argparse
import logging
import sys
from pathlib import Path

from genselect.base_model.fetch import fetch_model
from genselect.cli import run
from genselect.config import load_config
from genselect.errors import GenselectError

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Fetch it and say what is there."""
    base = load_config(arguments.config).models.base
    if base.source != "hub" or not base.repo_id or not base.revision:
        raise GenselectError(
            f"{arguments.config}: models.base names nothing to fetch (source: {base.source}, repo_id: {base.repo_id}, "
            f"revision: {base.revision})",
            "Set models.base.source to hub, with repo_id and the revision to pin.",
        )
    record = fetch_model(base.repo_id, base.revision, arguments.output)
    logger.info("%s: %s at %s, %d files", arguments.output, record["repo_id"], record["revision"], len(record["files"]))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for the model")

if __name__ == "__main__":
    sys.exit(run(parser, main))

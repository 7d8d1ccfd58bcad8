#!/usr/bin/env python3
"""Fetch a published experiment into a results folder, to go on with it, to evaluate it or to report it without training it again."""

import argparse
import logging
import os
import sys
from pathlib import Path

from genselect.cli import run
from genselect.publishing.fetch import Fetched, fetch_from_folder, fetch_from_hub
from genselect.publishing.fetched_model import bring_base_model
from genselect.publishing.patience import quiet_client

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Fetch, and say how to go on."""
    if arguments.source:
        fetched = fetch_from_folder(arguments.source, arguments.into, keep=arguments.keep)
    else:
        quiet_client()
        token = os.environ.get("HF_TOKEN")
        fetched = fetch_from_hub(
            arguments.repository, arguments.revision, arguments.into, token=token, keep=arguments.keep
        )
    if arguments.model:
        bring_base_model(arguments.into, fetched.name, fetched.time_ns)
    tell(fetched, arguments.into)


def tell(fetched: Fetched, into: Path) -> None:
    """What was fetched, and the next command."""
    source = fetched.folder or f"{fetched.repository} at {fetched.commit}"
    logger.info("%s: %d files placed in %s, every sum compared", source, fetched.placed, into)
    if fetched.kept:
        logger.info("kept as they are, other than published: %s", ", ".join(fetched.kept))
    config = into / "data" / fetched.name / "config.yaml"
    if config.is_file():
        logger.info("go on with: snakemake -n report --configfile %s", config)
    if not (into / "models" / fetched.name / "config.json").is_file():
        logger.info("before anything is trained or played here: the same command with --model, for the base model")


parser = argparse.ArgumentParser(description=__doc__)
source = parser.add_mutually_exclusive_group(required=True)
source.add_argument(
    "--repository", metavar="OWNER/NAME", help="dataset repository of the Hub (HF_TOKEN for a private one)"
)
source.add_argument("--from", dest="source", type=Path, metavar="DIR", help="a published tree on this machine")
parser.add_argument("--revision", help="commit or tag of the repository; by default the newest commit")
parser.add_argument(
    "--into", type=Path, default=Path("results"), metavar="DIR", help="results folder (default: results)"
)
parser.add_argument(
    "--keep", action="store_true", help="keep files that stand there with another content, instead of refusing"
)
parser.add_argument(
    "--model",
    action="store_true",
    help="also the base model, from its own repository: needed to train or play, not to report",
)

if __name__ == "__main__":
    sys.exit(run(parser, main))

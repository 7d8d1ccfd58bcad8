#!/usr/bin/env python3
"""Publish a staged tree: check it where it lies, copy it to a folder, or bring it to the Hugging Face Hub (token in HF_TOKEN)."""

import argparse
import logging
import os
import sys
from pathlib import Path

from genselect.cli import run
from genselect.publishing.local import publish_locally
from genselect.publishing.receipt import write_receipt

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Publish, then write the receipt."""
    if arguments.repository:
        from genselect.publishing.hub import publish_to_hub
        from genselect.publishing.patience import quiet_client

        quiet_client()
        token = os.environ.get("HF_TOKEN")
        receipt = publish_to_hub(arguments.tree, arguments.repository, token=token, public=arguments.public)
        logger.info("%s (%s): %s", receipt.repository, receipt.visibility, receipt.url)
    else:
        receipt = publish_locally(arguments.tree, arguments.to)
        logger.info("published: %s", receipt.folder)
    write_receipt(arguments.receipt, receipt)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "--tree", type=Path, required=True, metavar="DIR", help="staged tree, results/publication/<name>/hub"
)
where = parser.add_mutually_exclusive_group()
where.add_argument(
    "--repository", metavar="OWNER/NAME", help="dataset repository of the Hub; created private if it is not there"
)
where.add_argument("--to", type=Path, metavar="DIR", help="copy the tree to this folder")
parser.add_argument("--public", action="store_true", help="make the repository public, once everything is there")
parser.add_argument(
    "--receipt", type=Path, required=True, metavar="FILE", help="what was published where; written last"
)

if __name__ == "__main__":
    sys.exit(run(parser, main))

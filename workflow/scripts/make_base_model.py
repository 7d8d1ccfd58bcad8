#!/usr/bin/env python3
"""Make the miniature's base model: tokenizer, a tiny Qwen3.5 and its warm start, two to three minutes on two cores."""

import argparse
import logging
import sys
from pathlib import Path

import transformers

from genselect.base_model.problems import shard_statements
from genselect.base_model.settings import WarmStartSettings
from genselect.base_model.warm_start import make_base_model
from genselect.cli import run
from genselect.config import load_config

logger = logging.getLogger("genselect")


def main(arguments: argparse.Namespace) -> None:
    """Make it and say what it can do."""
    # Its progress bars and its advice about missing GPU kernels would stand between our lines.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = load_config(arguments.config)
    made = config.models.base.made
    settings = WarmStartSettings(
        seed=made.seed if arguments.seed is None else arguments.seed,
        copy_steps=made.copy_steps,
        steps=made.steps,
        careful_share=made.careful_share,
    )
    shards = config.dataset.generated
    keep_away = shard_statements(shards.seed, shards.problems) if config.dataset.source == "generated" else ()
    record = make_base_model(
        arguments.output, settings, system=config.prompt.system, user=config.prompt.user, keep_away=keep_away
    )
    measured = record["evaluation"]
    logger.info(
        "%s: a base model that submits %.1f%% right answers as trained from, %.1f%% when asked to be careful",
        arguments.output,
        100 * measured["plain"]["accuracy"],
        100 * measured["careful"]["accuracy"],
    )


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for the model")
parser.add_argument("--seed", type=int, help="instead of models.base.made.seed")

if __name__ == "__main__":
    sys.exit(run(parser, main))

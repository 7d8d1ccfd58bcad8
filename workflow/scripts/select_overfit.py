#!/usr/bin/env python3
"""Choose the fixed rows of the overfitting control from how a policy's samples split on them.

With --records alone: rows of each pass count in --bands (the study's 64). With --second-records too: of such a set, the rows
that both draws split (the study's 32).
"""

import argparse
import logging
import sys
from pathlib import Path

from genselect.cli import run
from genselect.dataset.selection import SelectionSettings, select_bands, select_split_in_both
from genselect.errors import GenselectError

logger = logging.getLogger("genselect")
_DEFAULTS = SelectionSettings()


def main(arguments: argparse.Namespace) -> None:
    """Select and say what came out."""
    settings = SelectionSettings(
        bands=arguments.bands,
        per_band=arguments.per_band,
        samples=arguments.samples,
        max_length_capped=arguments.max_length_capped,
        max_mean_tokens=arguments.max_mean_tokens,
        seed=arguments.seed,
    )
    if arguments.second_records:
        selection = arguments.selection or arguments.rows.with_name("selection.csv")
        lines = select_split_in_both(
            arguments.rows, selection, arguments.records, arguments.second_records, arguments.output_dir, settings
        )
    elif arguments.selection:
        raise GenselectError(
            "--selection is given without --second-records", "Name the second draw's records, or leave --selection out."
        )
    else:
        lines = select_bands(arguments.rows, arguments.records, arguments.output_dir, settings)
    logger.info(
        "selected %d rows, %d of each of the bands %s, into %s",
        len(lines),
        settings.per_band,
        ", ".join(map(str, settings.bands)),
        arguments.output_dir,
    )


def bands(text: str) -> tuple[int, ...]:
    """``2,3,4,5`` as numbers."""
    return tuple(int(part) for part in text.split(","))


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--rows", type=Path, required=True, help="train.parquet to choose from")
parser.add_argument(
    "--records", type=Path, nargs="+", required=True, metavar="FILE", help="step_<n>.parquet of one policy"
)
parser.add_argument("--second-records", type=Path, nargs="+", metavar="FILE", help="those of a second draw")
parser.add_argument(
    "--selection", type=Path, help="selection.csv of the rows (default: beside them); with a second draw"
)
parser.add_argument("--output-dir", type=Path, required=True, help="folder for the rows, selection.csv and its seal")
parser.add_argument(
    "--bands", type=bands, default=_DEFAULTS.bands, metavar="N,N,…", help="pass counts (default: 2,3,4,5)"
)
parser.add_argument("--per-band", type=int, default=_DEFAULTS.per_band, help="rows of each (default: %(default)s)")
parser.add_argument("--samples", type=int, default=_DEFAULTS.samples, help="samples in a draw (default: %(default)s)")
parser.add_argument(
    "--max-length-capped",
    type=int,
    default=_DEFAULTS.max_length_capped,
    help="cut samples allowed (default: %(default)s)",
)
parser.add_argument(
    "--max-mean-tokens", type=float, default=_DEFAULTS.max_mean_tokens,
    help="mean response must be under this (default: %(default)s)",
)  # fmt: skip
parser.add_argument("--seed", type=int, default=_DEFAULTS.seed, help="draws the rows of a band (default: %(default)s)")

if __name__ == "__main__":
    sys.exit(run(parser, main))

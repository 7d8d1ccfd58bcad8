#!/usr/bin/env python3
"""Make one attempt at a training run: start it, or go on from its last complete save."""

import argparse
import sys
from pathlib import Path

from genselect.cli import USER_ERROR, run
from genselect.config import load_config
from genselect.errors import GenselectError
from genselect.formats import read_json
from genselect.plan.runs import identity, resolved_runs
from genselect.provenance import file_sha256, read_seal
from genselect.training.attempt_config import Inputs
from genselect.training.launcher import train


def main(arguments: argparse.Namespace) -> int:
    """Train; the exit status says whether the run is done (0), can be resumed (75) or was stopped by a guard (3)."""
    config = load_config(arguments.config)
    runs = resolved_runs(config)
    if arguments.run not in runs:
        raise GenselectError(f"--run {arguments.run}: there is no such run", f"Runs: {', '.join(runs) or 'none'}.")
    model = read_json(arguments.model / "base_model.json") if (arguments.model / "base_model.json").exists() else {}
    rows_seal = read_seal(arguments.stats)
    chosen = runs[arguments.run]
    return train(
        Inputs(
            name=arguments.run,
            run=chosen,
            model=arguments.model,
            train_rows=arguments.train_rows,
            val_rows=arguments.val_rows,
            runs_root=arguments.runs_root,
            identity={
                "run": identity(chosen),
                "model": {
                    "config_sha256": file_sha256(arguments.model / "config.json"),
                    "settings": model.get("settings"),
                },
                "data": {"train": file_sha256(arguments.train_rows), "val": file_sha256(arguments.val_rows)},
                "judge": dict(rows_seal.fingerprints).get("judge") if rows_seal else None,
            },
            candidates=config.build.candidates_per_row,
            template_options=config.models.base.template_options,
            judge=config.judge,
            context={"preregistration_sha256": file_sha256(arguments.preregistration)}
            if arguments.preregistration
            else {},
        )
    )


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=Path, required=True, help="configuration file")
parser.add_argument("--run", required=True, help="name of the run")
parser.add_argument("--model", type=Path, required=True, help="folder of the base model")
parser.add_argument("--train-rows", type=Path, required=True, help="train.parquet")
parser.add_argument("--val-rows", type=Path, required=True, help="val.parquet")
parser.add_argument("--stats", type=Path, required=True, help="stats.json of the built rows; its seal names the judge")
parser.add_argument(
    "--preregistration", type=Path, help="preregistration.json, of a formal run; its sha256 is recorded"
)
parser.add_argument("--runs-root", type=Path, required=True, help="folder of the run directories")

if __name__ == "__main__":
    statuses: list[int] = []
    failed = run(parser, lambda arguments: statuses.append(main(arguments)))
    sys.exit(failed or (statuses[0] if statuses else USER_ERROR))

#!/usr/bin/env python3
"""Seconds a training step: stock verl, this project's trainer without and with the submit predictor, same settings.

    docs/benchmarks/step_time.py --model results/models/mini --rows results/data/mini/train.parquet \\
        --val results/data/mini/val.parquet [--steps 8] [--rounds 2] [--output docs/benchmarks/step_time.md]

Three launches, one after the other, of config/mini.yaml's formal run: the same base model, rows, seeds and steps, no saves, no
validation, the policy updated from the first step. A further round takes them in the opposite order. Where a launch is stock, verl's
own ``PPOTrainerSync`` is put back into verl's registry in the process that trains; this file is its plugin, too.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import wrapt

# The library is imported where it is used: verl imports this file in each of its processes.

ROOT = Path(__file__).resolve().parents[2]
#: Set in the processes of a launch: where the steps' times go, and whether the trainer is verl's.
TIMES, STOCK = "GENSELECT_BENCHMARK_TIMES", "GENSELECT_BENCHMARK_STOCK"

VARIANTS = {
    "stock": "stock verl",
    "ours": "ours, no predictor",
    "predictor": "ours, with predictor",
}
#: verl's timers, in the order of a step. What is timed within another's time is taken out of that one.
PARTS = {
    "gen": "generation",
    "old_log_prob": "old log-probabilities",
    "values": "values",
    "adv": "advantages",
    "update_critic": "critic's update",
    "update_predictor": "predictor's update",
    "update_actor": "actor's update",
    "update_weights": "weights to the engine",
}
#: What follows from them.
SUMS = {
    "rest": "the rest of the step",
    "step": "**verl's step**",
    "after": "metrics, records, proofs, guards",
    "wall": "**step to step**",
}
#: Figures that are equal when the same episodes were played.
EPISODES = ("response_length/mean", "critic/score/mean", "num_turns/mean")


# --- within verl's processes ----------------------------------------------------------------------------------------------


def _time_steps(module: Any) -> None:
    """Write when each step was logged, with its figures: verl's ``step`` timer ends before metrics and records are made."""
    log = module.Tracking.log

    def timed(self: Any, data: Any, step: int, backend: Any = None) -> Any:
        numbers = {
            name: float(value) for name, value in data.items() if name.startswith("timing_s/") or name in EPISODES
        }
        with Path(os.environ[TIMES]).open("a") as handle:
            handle.write(json.dumps({"step": step, "at": time.monotonic(), **numbers}) + "\n")
        return log(self, data, step, backend)

    module.Tracking.log = timed


def _restore_verls_trainer(module: Any) -> None:
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    TRAINER_REGISTRY["sync"] = module.PPOTrainerSync


if TIMES in os.environ:
    wrapt.register_post_import_hook(_time_steps, "verl.utils.tracking")
if STOCK in os.environ:
    # Named after genselect.training.plugin in VERL_USE_EXTERNAL_MODULES, so this hook comes after its own.
    wrapt.register_post_import_hook(_restore_verls_trainer, "verl.trainer.ppo.v1")


# --- a launch -------------------------------------------------------------------------------------------------------------


def settings(predictor: bool, steps: int) -> Any:
    """The miniature's formal run, for the benchmark."""
    import yaml

    from genselect.config.training import Run

    values = yaml.safe_load((ROOT / "config" / "mini.yaml").read_text())["runs"]["formal"]
    values["schedule"] |= {"steps": steps, "validate_every": 0, "critic_warmup": 0}
    values["predictor"] = {"enabled": predictor}
    values["potential"] = []
    values["verl"] = {"trainer.save_freq": -1}
    return Run.model_validate(values)


def launch(variant: str, arguments: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """Train; the lines of its steps."""
    from genselect.base_model.folder import weights_sha256
    from genselect.config import Judge
    from genselect.provenance.run_directory import RunDirectory
    from genselect.training.attempt_config import Inputs, write_configs
    from genselect.training.trainer_process import TrainerProcess

    run = settings(variant == "predictor", arguments.steps)
    directory = RunDirectory(folder)
    (folder / "attempts").mkdir(parents=True)
    inputs = Inputs(
        name=f"step-time-{variant}",
        run=run,
        model=arguments.model,
        train_rows=arguments.rows,
        val_rows=arguments.val,
        runs_root=folder.parent,
        identity={},
        candidates=8,
        template_options={},
        judge=Judge(kind="rule", model=None, revision=None),
    )
    cpu = not arguments.cards
    weights = weights_sha256(arguments.model)
    config = write_configs(inputs, directory, 1, None, cpu, 1 if cpu else run.train_cards, weights)
    log = folder / "attempts" / "1.log"
    paths = [str(ROOT / "workflow"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {
        "VERL_USE_EXTERNAL_MODULES": "genselect.training.plugin,step_time",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        TIMES: str(folder / "times.jsonl"),
        **({STOCK: "1"} if variant == "stock" else {}),
    }
    trainer = TrainerProcess(config, log, folder, run, cpu, environment)
    outcome = trainer.run(run.timeout_s, run.step_s)
    if outcome.status:
        raise SystemExit(f"{variant}: exit status {outcome.status}; its last lines:\n{outcome.last_lines}")
    if (folder / "metrics.jsonl").exists() != (variant != "stock"):  # only our trainer writes it
        raise SystemExit(f"{variant}: the wrong trainer ran; see {log}")
    lines = [json.loads(line) for line in (folder / "times.jsonl").read_text().splitlines()]
    if [line["step"] for line in lines] != list(range(1, arguments.steps + 1)):
        raise SystemExit(f"{variant}: steps are missing; see {log}")
    return seconds_by_part(lines)


def seconds_by_part(lines: list[dict[str, float]]) -> list[dict[str, float]]:
    """Each step but the first (warm-up): seconds by part, with ``rest`` of verl's step, ``after`` it, and ``wall``."""
    found = []
    for before, line in itertools.pairwise(lines):
        row = {part: line.get(f"timing_s/{part}", 0.0) for part in PARTS}
        row["adv"] -= row["update_predictor"]  # verl's timer of the advantages runs around it
        row["step"] = line["timing_s/step"]
        row["rest"] = row["step"] - sum(row[part] for part in PARTS)
        row["wall"] = line["at"] - before["at"]
        row["after"] = row["wall"] - row["step"]
        found.append(row | {name: line[name] for name in EPISODES if name in line})
    return found


# --- the table ------------------------------------------------------------------------------------------------------------


def cell(steps: list[dict[str, float]], part: str) -> str:
    values = [step[part] for step in steps]
    if not any(values):
        return "–"
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.2f} ± {spread:.2f}"


def ratio(steps: list[dict[str, float]], stock: list[dict[str, float]], part: str) -> str:
    """Of the means, with the standard error of the steps' own ratios: step n is set against stock's step n of the same round."""
    pairs = [ours[part] / theirs[part] for ours, theirs in zip(steps, stock, strict=True)]
    mean = sum(step[part] for step in steps) / sum(step[part] for step in stock)
    error = statistics.stdev(pairs) / len(pairs) ** 0.5 if len(pairs) > 1 else 0.0
    return f"{mean:.3f} ± {error:.3f}"


def report(found: dict[str, list[dict[str, float]]], arguments: argparse.Namespace, load: float) -> str:
    """The Markdown page."""
    from importlib.metadata import version

    count = len(found["stock"])
    rows = [(title, part) for part, title in [*PARTS.items(), *SUMS.items()]]
    same = all(
        steps[row].get(name) == found["stock"][row].get(name)
        for steps in found.values()
        for row in range(count)
        for name in EPISODES
    )
    episodes = (
        "The three played the same episodes at every step (mean length, score and turns are equal), so they did the same work."
        if same
        else "**The three did not play the same episodes** (mean length, score or turns differ), so part of the difference is the work's."
    )
    versions = ", ".join(f"{name} {version(name)}" for name in ("verl", "ray", "torch"))
    schedule = settings(True, arguments.steps).schedule
    lines = [
        "# Seconds a step",
        "",
        f"Made by `docs/benchmarks/step_time.py` on {datetime.date.today()}: {len(os.sched_getaffinity(0))} cores ({processor()}), Python",
        f"{platform.python_version()}, {versions}; load average before the first launch {load:.1f}.",
        "",
        f"The miniature's formal run ({schedule.problems} problems of {schedule.samples} episodes a step), policy updated",
        f"from the first step, no saves, no validation, no potential. {arguments.rounds} round(s) of one launch each, {arguments.steps}",
        f"steps each, the first left out: {count} steps in each column. Seconds: mean ± standard deviation of the steps.",
        episodes,
        "",
        "| part | " + " | ".join(VARIANTS.values()) + " |",
        "|---|" + "---:|" * len(VARIANTS),
        *(f"| {title} | " + " | ".join(cell(found[name], part) for name in VARIANTS) + " |" for title, part in rows),
        "",
        "| against stock | " + " | ".join(list(VARIANTS.values())[1:]) + " |",
        "|---|---:|---:|",
        *(
            f"| {title} | " + " | ".join(ratio(found[name], found["stock"], part) for name in list(VARIANTS)[1:]) + " |"
            for title, part in (("verl's step", "step"), ("step to step", "wall"))
        ),
        "",
        "Ratios of the means, ± the standard error of the steps' own ratios (step n against stock's step n of the same round).",
        "",
        "*Stock* is verl's `PPOTrainerSync` on verl's engines, with three things of this project that it cannot do without here: the",
        "agent loop with its reward, which plays the episodes; the critic's engine, because verl's own raises with a LoRA on any device",
        "(`genselect/training/engines.py`); and, without cards, the CPU platform. It writes no records, proofs or guards.",
        "The predictor's forward runs within *old log-probabilities*; its update is timed by itself.",
        "*Metrics, records, proofs, guards* is what passes between the end of verl's timed step and the step's line in the log: verl's",
        "metrics in all three columns, and this project's files in its two.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def processor() -> str:
    """The processor's name, where the system gives one."""
    info = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return match[1] if match else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--rows", type=Path, required=True, help="train.parquet")
    parser.add_argument("--val", type=Path, required=True, help="val.parquet (verl loads it; nothing is validated)")
    parser.add_argument("--steps", type=int, default=8, help="steps a launch; the first is left out (default: 8)")
    parser.add_argument("--rounds", type=int, default=1, help="launches of each (default: 1)")
    parser.add_argument("--cards", action="store_true", help="train on cards instead of on the CPU")
    parser.add_argument(
        "--workdir", type=Path, help="folder for what the launches write; default: a temporary one, removed"
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    if arguments.steps < 2:
        parser.error("--steps must be 2 or more, for the first is left out")
    sys.path.insert(0, str(ROOT / "workflow"))
    load = os.getloadavg()[0]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as temporary:
        workdir = (arguments.workdir or Path(temporary)).resolve()
        for number in range(1, arguments.rounds + 1):
            for variant in list(VARIANTS)[:: 1 if number % 2 else -1]:
                print(f"round {number}: {VARIANTS[variant]}", file=sys.stderr, flush=True)
                found[variant] += launch(variant, arguments, workdir / f"{number}-{variant}")
    page = report(found, arguments, load)
    arguments.output.write_text(page)
    print(page)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Does the miniature learn? The training and held-out verdicts of its runs, by step and seed, against baselines from the data.

    snakemake --profile profiles/mini --configfile config/mini.yaml docs/benchmarks/learning.yaml
    docs/benchmarks/learning.py [--results results] [--dataset mini] [--output docs/benchmarks/learning.md]

Writes the page and, beside it, its picture. Runs that are not there are left out; one that is still going on is shown so far.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from genselect.answers import normal_form
from genselect.training.records import read_records, recorded_steps

#: The runs by what they have in common but the seed.
GROUPS = {
    "formal": ("formal", "formal-seed-2", "formal-seed-3"),
    "dear explores": ("formal-dear-explores",),
    "overfit": ("overfit", "overfit-seed-2", "overfit-seed-3"),
}
LAST = 3
"""Steps at a run's end that are averaged: one step's verdict wobbles by several points."""

# Okabe and Ito's colours, which the colour-blind tell apart; lines differ in dashes or labels as well.
BLUE, VERMILION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#555555"


# --- what is read ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """One run."""

    name: str
    seed: int
    cost: float
    """Of an explore."""
    planned: int
    """Steps."""
    steps: list[int]
    verdict: list[float]
    """Of the step's episodes, by step; so are the next two."""
    explores: list[float]
    score: list[float]
    held_out: dict[int, dict[str, bool]]
    """Verdict of each held-out question, by step of the validation."""

    @property
    def validations(self) -> dict[int, float]:
        """The held-out verdict, by step."""
        return {step: statistics.fmean(rows.values()) for step, rows in self.held_out.items()}


def read_run(folder: Path) -> Curve | None:
    """A run's curve; None when it is absent or has no step yet."""
    if not (folder / "metrics.jsonl").exists():
        return None
    run = json.loads((folder / "manifest.json").read_text())["identity"]["run"]
    steps = recorded_steps(folder / "records")
    records = [read_records(folder / "records" / f"step_{step}.parquet") for step in steps]
    if not steps:
        return None
    validated = {
        step: read_records(folder / "validation" / f"step_{step}.parquet")
        for step in recorded_steps(folder / "validation")
    }
    curve = Curve(
        name=folder.name,
        seed=run["seed"],
        cost=run["reward"]["cost_per_explore"],
        planned=run["schedule"]["steps"],
        steps=steps,
        verdict=[statistics.fmean(row.verdict for row in rows) for rows in records],
        explores=[statistics.fmean(row.explores for row in rows) for rows in records],
        score=[statistics.fmean(row.score for row in rows) for rows in records],
        held_out={step: {row.question_id: row.verdict for row in rows} for step, rows in validated.items()},
    )
    check_against_metrics(folder, curve)
    return curve


def check_against_metrics(folder: Path, curve: Curve) -> None:
    """The records must say what metrics.jsonl says, or one of the two is not the run's."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    told = {line["step"]: line["episode/verdict"] for line in lines if "episode/verdict" in line}
    for step, verdict in zip(curve.steps, curve.verdict, strict=True):
        # The step being written has its records first.
        if step in told and abs(told[step] - verdict) > 1e-9:
            raise SystemExit(f"{folder}: step {step}: verdict {verdict} by the records, {told[step]} by metrics.jsonl")


# --- baselines ------------------------------------------------------------------------------------------------------------

Candidates = Sequence[Mapping[str, Any]]


def mean_candidate(candidates: Candidates) -> float:
    return statistics.fmean(candidate["is_correct"] for candidate in candidates)


def first_candidate(candidates: Candidates) -> float:
    return float(candidates[0]["is_correct"])


def majority(candidates: Candidates) -> float:
    """The most frequent answer, answers of one normal form taken together; of equally frequent ones, the expected share."""
    classes: dict[str, list[bool]] = collections.defaultdict(list)
    for candidate in candidates:
        if candidate["answer"]:
            classes[normal_form(candidate["answer"])].append(candidate["is_correct"])
    most = max(map(len, classes.values()), default=0)
    return statistics.fmean(statistics.fmean(labels) for labels in classes.values() if len(labels) == most)


def first_pass(candidates: Candidates) -> float:
    """The first whose self-check passes, else the last: the planted signal (docs/miniature.md)."""
    chosen = next((one for one in candidates if one["reasoning"].rstrip().endswith("check: pass")), candidates[-1])
    return float(chosen["is_correct"])


def oracle(candidates: Candidates) -> float:
    return float(any(candidate["is_correct"] for candidate in candidates))


BASELINES: dict[str, Callable[[Candidates], float]] = {
    "a mean candidate": mean_candidate,
    "the first candidate": first_candidate,
    "the majority of eight": majority,
    "the first that passes its check (the planted signal)": first_pass,
    "oracle: any correct candidate": oracle,
}


def baselines(path: Path) -> tuple[dict[str, float], int]:
    """Each baseline's verdict on the rows of a built file, and their number."""
    rows = [row["cached_candidates"] for row in pq.read_table(path)["extra_info"].to_pylist()]
    return {name: statistics.fmean(map(rule, rows)) for name, rule in BASELINES.items()}, len(rows)


# --- the page -------------------------------------------------------------------------------------------------------------


def last(values: Sequence[float]) -> float:
    return statistics.fmean(values[-LAST:])


def gain(curve: Curve) -> str:
    """From the first validation to the last, question by question, with its standard error."""
    if len(curve.held_out) < 2:
        return "–"
    before, after = curve.held_out[min(curve.held_out)], curve.held_out[max(curve.held_out)]
    changes = [float(after[question]) - float(before[question]) for question in before]
    return f"{statistics.fmean(changes):+.3f} ± {statistics.stdev(changes) / len(changes) ** 0.5:.3f}"


def row(curve: Curve) -> str:
    done = f"{curve.steps[-1]}" if curve.steps[-1] >= curve.planned else f"{curve.steps[-1]} of {curve.planned}"
    held_out = ", ".join(f"{value:.3f} ({step})" for step, value in sorted(curve.validations.items())) or "–"
    cells = [
        f"`{curve.name}`",
        f"{curve.seed}",
        f"{curve.cost:g}",
        done,
        f"{curve.verdict[0]:.3f} → {last(curve.verdict):.3f}",
        held_out,
        gain(curve),
        f"{curve.explores[0]:.2f} → {last(curve.explores):.2f}",
        f"{curve.score[0]:.3f} → {last(curve.score):.3f}",
    ]
    return "| " + " | ".join(cells) + " |"


def summary(group: str, curves: Sequence[Curve]) -> str:
    """One sentence on a group of seeds."""
    gains = [last(curve.verdict) - curve.verdict[0] for curve in curves]
    text = f"- **{group}**, {len(curves)} seed(s): the training verdict changes by {statistics.fmean(gains):+.3f}"
    text += f" (lowest {min(gains):+.3f}, highest {max(gains):+.3f})" if len(gains) > 1 else ""
    validated = [curve.validations for curve in curves if len(curve.held_out) > 1]
    if validated:
        first, end = (statistics.fmean(values[pick(values)] for values in validated) for pick in (min, max))
        text += f"; the held-out verdict goes from {first:.3f} to {end:.3f}"
    return text + "."


def report(groups: Mapping[str, Sequence[Curve]], data: Path, picture: Path) -> str:
    """The Markdown page."""
    held_out, val_count = baselines(data / "val.parquet")
    train, train_count = baselines(data / "train.parquet")
    error = (0.25 / val_count) ** 0.5
    lines = [
        "# Does the miniature learn?",
        "",
        f"Made by `docs/benchmarks/learning.py` on {datetime.date.today()}: {len(os.sched_getaffinity(0))} cores ({platform.machine()}),",
        "no cards. The runs are those of `config/mini.yaml` and `docs/benchmarks/learning.yaml`; `docs/miniature.md` says what the data",
        "hold.",
        "",
        f"![Verdict and explores by step]({picture.name})",
        "",
        "Thin lines are seeds, thick ones their mean; marks are validations, one a seed.",
        "",
        *(summary(name, curves) for name, curves in groups.items()),
        "",
        "| run | seed | explore costs | steps | training verdict | held-out verdict (after step) | held-out gain | explores | score |",
        "|---|---:|---:|---:|---|---|---|---|---|",
        *(row(curve) for curves in groups.values() for curve in curves),
        "",
        f"*a → b*: at the first step → mean of the last {LAST}. The held-out verdict is one episode of each of {val_count} questions never",
        f"trained on, so its standard error is up to {error:.2f}; the gain is taken question by question, from the first validation",
        "(the untrained policy) to the last, ± its standard error.",
        "",
        "What a rule without a model gets on the same rows, from their labels; answers of one normal form count together, ties by",
        "their expected share:",
        "",
        f"| rule | held-out rows ({val_count}) | training rows ({train_count}) |",
        "|---|---:|---:|",
        *(f"| {name} | {held_out[name]:.3f} | {train[name]:.3f} |" for name in BASELINES),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


# --- the picture ----------------------------------------------------------------------------------------------------------


def seed_mean(curves: Sequence[Curve], pick: Callable[[Curve], Sequence[float]]) -> tuple[list[int], list[float]]:
    """The mean over the seeds at each step that all of them have."""
    shared = [step for step in curves[0].steps if all(step in curve.steps for curve in curves)]
    by_step = [[pick(curve)[curve.steps.index(step)] for curve in curves] for step in shared]
    return shared, [statistics.fmean(values) for values in by_step]


def draw_group(
    axes: Any, curves: Sequence[Curve], pick: Callable[[Curve], Sequence[float]], colour: str, label: str, **line: Any
) -> None:
    """Each seed thin, their mean thick."""
    if len(curves) > 1:
        for curve in curves:
            axes.plot(curve.steps, pick(curve), color=colour, linewidth=0.8, alpha=0.4)
    axes.plot(*seed_mean(curves, pick), color=colour, linewidth=2.2, label=label, **line)


def draw(groups: Mapping[str, Sequence[Curve]], majority_of_eight: float, path: Path) -> None:
    """Two panels, 1200 pixels wide."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), dpi=100, layout="constrained", width_ratios=(1.35, 1))
    styles = {"formal": (BLUE, "-", "o"), "overfit": (VERMILION, "--", "s")}
    for name, (colour, dashes, marker) in styles.items():
        if curves := groups.get(name):
            draw_group(
                left,
                curves,
                lambda curve: curve.verdict,
                colour,
                f"{name}, training ({seeds(curves)})",
                linestyle=dashes,
            )
            draw_held_out(left, curves, colour, marker, f"{name}, held out")
    draw_levels(left, groups, majority_of_eight)
    left.set(xlabel="step", ylabel="verdict (share of episodes answered correctly)", title="Verdict by step")
    if left.get_legend_handles_labels()[0]:
        left.legend(loc="lower right", fontsize=9)

    for name, colour, dashes in (("formal", BLUE, "-"), ("dear explores", GREEN, "--")):
        if curves := groups.get(name):
            label = f"an explore costs {curves[0].cost:g} ({seeds(curves)})"
            draw_group(right, curves, lambda curve: curve.explores, colour, label, linestyle=dashes)
    right.set(xlabel="step", ylabel="explores an episode (mean)", title="Explores by step", ylim=(0, None))
    if right.lines:
        right.legend(loc="upper right", fontsize=9)
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(left=-0.6)
    figure.savefig(path)
    plt.close(figure)


def seeds(curves: Sequence[Curve]) -> str:
    return f"mean of {len(curves)} seeds" if len(curves) > 1 else "one seed"


def draw_held_out(axes: Any, curves: Sequence[Curve], colour: str, marker: str, label: str) -> None:
    """A mark for each seed's validation."""
    points = [(step, value) for curve in curves for step, value in curve.validations.items()]
    if points:
        steps, verdicts = zip(*points, strict=True)
        style: dict[str, Any] = {"s": 42, "marker": marker, "edgecolors": "white", "linewidths": 0.8, "zorder": 3}
        axes.scatter(steps, verdicts, color=colour, clip_on=False, label=label, **style)


def draw_levels(axes: Any, groups: Mapping[str, Sequence[Curve]], majority_of_eight: float) -> None:
    """Dashed: the untrained policy and the majority of eight, on the held-out rows."""
    untrained = [curve.validations[0] for curves in groups.values() for curve in curves if 0 in curve.held_out]
    levels = {"majority of eight": majority_of_eight}
    if untrained:
        levels["untrained"] = statistics.fmean(untrained)
    for name, level in levels.items():
        axes.axhline(level, color=GREY, linewidth=1, linestyle=(0, (5, 4)), zorder=0)
        axes.annotate(
            f"{name}, held out: {level:.2f}", (1, level), xycoords=("axes fraction", "data"), xytext=(0, 3),
            textcoords="offset points", ha="right", va="bottom", color=GREY, fontsize=9,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of all results")
    parser.add_argument("--dataset", default="mini", help="folder under results/data (default: mini)")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).with_suffix(".md"), help="the page; .png beside it"
    )
    arguments = parser.parse_args()
    runs = arguments.results / "runs"
    found = {group: [curve for name in names if (curve := read_run(runs / name))] for group, names in GROUPS.items()}
    groups = {group: curves for group, curves in found.items() if curves}
    if not groups:
        raise SystemExit(
            f"{runs}: none of the runs is there: {', '.join(name for names in GROUPS.values() for name in names)}"
        )
    data, picture = arguments.results / "data" / arguments.dataset, arguments.output.with_suffix(".png")
    draw(groups, baselines(data / "val.parquet")[0]["the majority of eight"], picture)
    page = report(groups, data, picture)
    arguments.output.write_text(page)
    print(page)


if __name__ == "__main__":
    main()

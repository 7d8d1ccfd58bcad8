"""Pictures of one training run: how it learnt, what its guards and proofs said, how much its policy looked at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from genselect.report import style
from genselect.report.run_files import RunFiles
from genselect.report.style import BLACK, BLUE, GREY, LIGHT, VERMILION, empty_figure, house_style
from genselect.training.guards import Level

#: Up to so many steps each has a mark of its own; beyond it, marks would merge into a bar.
_MARKED_STEPS = 40
#: Dashes of named levels, in turn.
DASHES: tuple[Any, ...] = (
    (0, (6, 3)),
    (0, (1.5, 1.5)),
    (0, (6, 2, 1.5, 2)),
    (0, (12, 3)),
    (0, (3, 1.5, 1, 1.5, 1, 1.5)),
)
#: Names of attempts nearer than this share of the axis would run into each other.
_NAME_WIDTH = 0.25
#: Largest over smallest value from which an axis is logarithmic, and what it then shows at most.
_DECADES, _SHOWN = 100.0, 1e5

_LEVEL_MARKS: dict[str, dict[str, Any]] = {
    Level.NOTE.value: {"marker": "o", "markersize": 4, "markerfacecolor": "white", "markeredgecolor": GREY},
    Level.ALARM.value: {
        "marker": "^", "markersize": 6.5, "markerfacecolor": style.ORANGE, "markeredgecolor": BLACK, "markeredgewidth": 0.6,
    },
    Level.STOP.value: {"marker": "x", "markersize": 7, "markeredgecolor": VERMILION, "markeredgewidth": 2.4},
}  # fmt: skip
_LEVEL_WORDS = {Level.NOTE.value: "note", Level.ALARM.value: "alarm", Level.STOP.value: "stop by a guard"}
_FAILED: dict[str, Any] = {
    "marker": "X", "markersize": 7.5, "markerfacecolor": VERMILION, "markeredgecolor": BLACK, "markeredgewidth": 0.6,
}  # fmt: skip
_PASSED: dict[str, Any] = {"marker": ".", "markersize": 5, "color": BLUE}


@house_style()
def training(run: RunFiles, levels: Mapping[str, float], *, kl_limit: float | None = None) -> Figure:
    """Verdict, explores, score and divergence of the policy by step.

    Args:
        run: The run.
        levels: Accuracies on the held-out questions to compare with, by the words to write: ``{"majority of 8, held out": 0.7}``.
        kl_limit: Of the guard over the divergence, in nats a token; by default the one that the newest finding names, if any.
    """
    if not run.metrics:
        return empty_figure(f"Run {run.name} has not finished a step yet.")
    worst = run.series("actor/ppo_kl_max")
    divergence = np.abs(np.where(np.isfinite(worst), worst, run.series("actor/ppo_kl")))
    panels = {
        "mean explores": run.series("episode/mean_explores"),
        "mean score": run.series("episode/score"),
        "|KL|,\nnats a token": divergence,
    }
    panels = {name: values for name, values in panels.items() if np.isfinite(values).any()}
    ratios = [2.2, *([1.0] * len(panels))]
    figure, axes = style.new_figure(1.1 + sum(ratios), len(ratios), sharex=True, height_ratios=ratios)
    resumes = run.resumes()
    _verdict_panel(axes[0], run, levels, bool(resumes))
    for panel, (name, values) in zip(axes[1:], panels.items(), strict=True):
        line_by_step(panel, run.steps, values)
        panel.set_ylabel(name)
        if values is divergence:
            _divergence_axis(panel, values, kl_limit if kl_limit is not None else _limit_found(run))
    _mark_resumes(axes, resumes)
    step_axis(axes[-1])
    figure.align_ylabels(axes)
    return figure


@house_style()
def health(run: RunFiles, rules: Mapping[str, str]) -> Figure:
    """What the guards and the proofs said, step by step.

    Args:
        run: The run.
        rules: The level of each guard by name: ``note``, ``alarm``, ``stop``. ``health.json`` has a step's worst level only; a guard that
            is not among the rules is drawn at that.
    """
    spoken = _spoken(run, rules)
    proofs = _proofs(run)
    if run.health is None and not proofs:
        return empty_figure(f"Run {run.name} has no word of its guards and no proof yet.")
    silent = len(set(rules) - set(spoken))
    words = f"{silent} guard{'' if silent == 1 else 's'} silent"
    if not spoken and not proofs:
        return empty_figure(f"{words}; no proof was given.")
    parts: list[Mapping[str, Any]] = [part for part in (spoken, proofs) if part]
    rows = [len(part) for part in parts]
    figure, axes = style.new_figure(
        1.2 + 0.34 * len(rows) + 0.23 * sum(rows), len(rows), sharex=True, height_ratios=[count + 0.5 for count in rows]
    )
    for panel, part in zip(axes, parts, strict=True):
        _rows(panel, "Guards" if part is spoken else "Proofs", list(part))
    if spoken:
        for row, marks in enumerate(spoken.values()):
            for level, steps in marks.items():
                axes[0].plot(steps, [row] * len(steps), linestyle="", **_LEVEL_MARKS[level])
    for row, outcomes in enumerate(proofs.values()):
        _proof_row(axes[-1], row, outcomes)
    step_axis(axes[-1])
    # Of the axes: beside a legend of the figure, constrained layout leaves a hole.
    axes[0].legend(
        handles=_health_handles(spoken, proofs), loc="lower left", bbox_to_anchor=(-0.09, 1), borderaxespad=2.4, ncols=2,
        columnspacing=1.2, title=None if run.health is None else words, title_fontsize=9, alignment="left",
    )  # fmt: skip
    return figure


@house_style()
def explores(run: RunFiles) -> Figure:
    """Share of the trajectories by number of explores, step by step, and the mean."""
    drawn = {step: counts for step, counts in run.explores.items() if counts}
    if not drawn:
        return empty_figure(f"Run {run.name} has no records of trajectories.")
    steps = np.arange(min(drawn), max(drawn) + 1)
    numbers = np.arange(max(max(counts) for counts in drawn.values()) + 1)
    shares = np.full((len(numbers), len(steps)), np.nan)
    for step, counts in drawn.items():
        column = np.array([counts.get(int(number), 0) for number in numbers])
        shares[:, step - steps[0]] = 100 * column / column.sum()
    figure, (axes,) = style.new_figure(1.5 + 0.19 * len(numbers))
    edges = np.arange(steps[0], steps[-1] + 2) - 0.5, np.arange(len(numbers) + 1) - 0.5
    # From white on: nothing there is nothing to see, in grey as well.
    mesh = axes.pcolormesh(*edges, np.ma.masked_invalid(shares), cmap="Blues", vmin=0)
    outline = [patheffects.Stroke(linewidth=4.2, foreground="white"), patheffects.Normal()]
    mean = numbers @ shares / 100
    axes.plot(
        steps, mean, color=BLACK, linewidth=1.8, marker="o" if len(drawn) == 1 else "", path_effects=outline, label="mean"
    )  # fmt: skip
    figure.colorbar(mesh, ax=axes, label="trajectories, %", pad=0.02)
    axes.set_ylabel("explores a trajectory")
    step_axis(axes)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    legend_above(axes)
    return figure


def legend_above(axes: Axes, columns: int = 2, *, handles: Sequence[Any] | None = None, lift: float = 0.2) -> None:
    """The names of what is drawn, over the axes and not in them, where they could hide a curve. Nothing where nothing has a name.

    Args:
        axes: Whose.
        columns: Of names.
        handles: Instead of all that have a name.
        lift: Of the legend over the axes, in font sizes.
    """
    shown = axes.get_legend_handles_labels()[0] if handles is None else handles
    if shown:
        axes.legend(
            handles=shown, loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=columns, borderaxespad=lift, columnspacing=1.2
        )  # fmt: skip


def line_by_step(axes: Axes, steps: Sequence[int], values: NDArray[np.float64], name: str | None = None) -> None:
    """A figure at each step, nan where it is not defined. Marks stand on all points, or, where they would merge, on those alone
    between gaps, which no line would show."""
    few = len(steps) <= _MARKED_STEPS
    defined = np.pad(np.isfinite(values), 1)
    marked = np.flatnonzero(defined[1:-1] & (few | (~defined[:-2] & ~defined[2:])))
    axes.plot(
        steps, values, color=BLUE, linewidth=1.6 if few else 1.1, marker="o", markevery=marked.tolist(), label=name
    )  # fmt: skip
    axes.margins(y=0.12)


def step_axis(axes: Axes) -> None:
    """Whole steps on the x axis, a single one too."""
    low, high = axes.get_xlim()
    if high - low < 1:
        axes.set_xlim((low + high) / 2 - 0.6, (low + high) / 2 + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.set_xlabel("step")


def _verdict_panel(axes: Axes, run: RunFiles, levels: Mapping[str, float], resumed: bool) -> None:
    line_by_step(axes, run.steps, run.series("episode/verdict"), "training")
    if run.validation:
        shares = np.array([entry.verdict for entry in run.validation.values()])
        rows = np.array([entry.rows or math.nan for entry in run.validation.values()])
        axes.errorbar(
            list(run.validation), shares, yerr=np.sqrt(shares * (1 - shares) / rows), linestyle="", marker="s", markersize=5,
            color=VERMILION, markeredgecolor=BLACK, markeredgewidth=0.6, elinewidth=1.2, capsize=2.5, zorder=3,
            label="held out, ± 1 standard error",
        )  # fmt: skip
    for number, (words, share) in enumerate(levels.items()):
        axes.axhline(share, color=BLACK, linewidth=1.1, linestyle=DASHES[number % len(DASHES)], zorder=1, label=words)
    marked = {level: _steps_at(run, level) for level in (Level.ALARM.value, Level.STOP.value)}
    if any(marked.values()):  # a strip of its own, over the curves
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.13 * (high - low))
    for level, steps in marked.items():
        if steps:
            axes.plot(
                steps, [0.95] * len(steps), linestyle="", transform=axes.get_xaxis_transform(), label=_LEVEL_WORDS[level],
                zorder=4, **_LEVEL_MARKS[level],
            )  # fmt: skip
    axes.set_ylabel("share correct")
    handles, names = axes.get_legend_handles_labels()
    order = {name: place for place, name in enumerate(["training", "held out, ± 1 standard error", *levels])}
    named = sorted(zip(names, handles, strict=True), key=lambda pair: order.get(pair[0], len(order)))
    legend_above(axes, handles=[handle for _, handle in named], lift=1.5 if resumed else 0.2)


def _divergence_axis(axes: Axes, values: NDArray[np.float64], limit: float | None) -> None:
    shown = values[np.isfinite(values) & (values > 0)]
    if limit is not None:
        axes.axhline(limit, color=BLACK, linewidth=1.1, linestyle=DASHES[0], label=f"guard's limit, {limit:g}")
        shown = np.append(shown, limit)
        legend_above(axes)
    if shown.size and shown.max() > _DECADES * shown.min():
        axes.set_yscale("log")
        axes.set_ylim(max(shown.min(), shown.max() / _SHOWN) / 1.5, shown.max() * 2)
    else:
        axes.set_ylim(bottom=0)


def _limit_found(run: RunFiles) -> float | None:
    findings = (run.health or {}).get("findings") or []
    return next((finding["limit"] for finding in findings if finding.get("guard") == "kl"), None)


def _mark_resumes(axes: Sequence[Axes], resumes: Mapping[int, int]) -> None:
    """A vertical line in every panel, and the attempt's number over the first; close ones share a name."""
    for panel in axes:
        for step in resumes:
            panel.axvline(step - 0.5, color=GREY, linewidth=1, linestyle=(0, (3, 2)), zorder=0)
    low, high = axes[0].get_xlim()
    groups: list[list[tuple[float, int]]] = []
    for step, attempt in resumes.items():
        place = (step - 0.5 - low) / (high - low)
        if groups and place - groups[-1][0][0] < _NAME_WIDTH:
            groups[-1].append((place, attempt))
        else:
            groups.append([(place, attempt)])
    for group in groups:
        numbers = [attempt for _, attempt in group]
        words = f"attempt {numbers[0]}" if len(group) == 1 else f"attempts {numbers[0]} to {numbers[-1]}"
        centre = (group[0][0] + group[-1][0]) / 2
        axes[0].annotate(
            words, (min(max(centre, 0.1), 0.9), 1), xycoords="axes fraction", xytext=(0, 2), textcoords="offset points",
            ha="center", va="bottom", color=GREY, fontsize=8,
        )  # fmt: skip


def _steps_at(run: RunFiles, level: str) -> list[int]:
    return [entry["step"] for entry in (run.health or {}).get("steps") or [] if entry["level"] == level]


def _spoken(run: RunFiles, rules: Mapping[str, str]) -> dict[str, dict[str, list[int]]]:
    """Steps by level of each guard that spoke, those of the worst level first."""
    found: dict[str, dict[str, list[int]]] = {}
    for entry in (run.health or {}).get("steps") or []:
        for guard in entry["guards"]:
            level = rules.get(guard, entry["level"])
            found.setdefault(guard, {}).setdefault(level, []).append(entry["step"])
    return dict(sorted(found.items(), key=lambda item: (-max(Level(level).rank for level in item[1]), item[0])))


def _proofs(run: RunFiles) -> dict[str, dict[int, bool]]:
    """Whether each proof passed, by step."""
    found: dict[str, dict[int, bool]] = {}
    for step, proofs in run.proofs.items():
        for proof in proofs:
            found.setdefault(proof["name"], {})[step] = bool(proof["passed"])
    return found


def _rows(axes: Axes, title: str, names: Sequence[str]) -> None:
    axes.set_title(title)
    axes.set_yticks(range(len(names)), labels=names, fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", color=LIGHT, linewidth=0.5)
    axes.set_axisbelow(True)


def _proof_row(axes: Axes, row: int, outcomes: Mapping[int, bool]) -> None:
    passed = [step for step, good in outcomes.items() if good]
    failed = [step for step, good in outcomes.items() if not good]
    if len(outcomes) > _MARKED_STEPS:
        for first, last in _stretches(passed):
            if first < last:
                axes.plot([first, last], [row, row], color=BLUE, linewidth=1.4)
        passed = [first for first, last in _stretches(passed) if first == last]
    for steps, look in ((passed, _PASSED), (failed, _FAILED)):
        if steps:
            axes.plot(steps, [row] * len(steps), linestyle="", **look)


def _stretches(steps: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each unbroken run of steps."""
    found: list[tuple[int, int]] = []
    for step in steps:
        if found and step == found[-1][1] + 1:
            found[-1] = (found[-1][0], step)
        else:
            found.append((step, step))
    return found


def _health_handles(
    spoken: Mapping[str, Mapping[str, Sequence[int]]], proofs: Mapping[str, Mapping[int, bool]]
) -> list[Line2D]:
    levels = {level for marks in spoken.values() for level in marks}
    handles = [
        Line2D([], [], linestyle="", label=_LEVEL_WORDS[level], **mark) for level, mark in _LEVEL_MARKS.items() if level in levels
    ]  # fmt: skip
    outcomes = {good for given in proofs.values() for good in given.values()}
    if True in outcomes:
        line: Any = "-" if any(len(given) > _MARKED_STEPS for given in proofs.values()) else ""
        handles.append(Line2D([], [], linestyle=line, linewidth=1.4, label="proof passed", **_PASSED))
    if False in outcomes:
        handles.append(Line2D([], [], linestyle="", label="proof failed", **_FAILED))
    return handles

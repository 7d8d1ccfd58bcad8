"""Pictures of what the value models are worth: the submit predictor's chances against what came of them, the critic's values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from genselect.report import style
from genselect.report.figures_run import DASHES, legend_above, line_by_step, step_axis
from genselect.report.run_files import RunFiles
from genselect.report.style import BLACK, BLUE, GREY, SKY, VERMILION, empty_figure, house_style

#: A figure under this is drawn at the foot of its panel: one wild step must not flatten all others.
_FLOOR = -1.0
#: Points² of the mark of the largest bin, and of an empty one.
_LARGEST, _SMALLEST = 110.0, 8.0


@dataclass(frozen=True)
class _Curve:
    """A figure by step, and what it is read against."""

    metric: str
    name: str
    level: float
    level_name: str


_CURVES = (
    _Curve("predictor/brier_skill", "Brier skill", 0.0, "knows the base rate only"),
    _Curve("predictor/auc", "AUC", 0.5, "chance"),
    _Curve("critic/mc_explained_variance", "explained\nvariance", 0.0, "a constant"),
)


@house_style()
def calibration(run: RunFiles) -> Figure:
    """Brier skill and AUC of the submit predictor, explained variance of the critic, by step; Brier skill by k over the last third.

    Parts that the run does not have are left out.
    """
    curves = [curve for curve in _CURVES if np.isfinite(run.series(curve.metric)).any()]
    last = _thirds(_predictor_reports(run))[-1:]
    by_k = _skill_by_k([run.potential[step]["predictor"] for step in last[0]]) if last else {}
    if not curves and not by_k:
        return empty_figure(f"Run {run.name} has neither a submit predictor nor a critic to judge.")
    ratios = [1.0] * len(curves) + [1.15] * bool(by_k)
    figure, axes = style.new_figure(0.5 + 1.65 * sum(ratios), len(ratios), height_ratios=ratios)
    for panel, curve in zip(axes, curves, strict=False):
        panel.sharex(axes[0])
        _curve_panel(panel, run, curve)
    if curves:
        for panel in axes[: len(curves) - 1]:
            panel.tick_params(labelbottom=False)
        step_axis(axes[len(curves) - 1])
    if by_k:
        _bars_by_k(axes[-1], by_k, last[0])
    figure.align_ylabels(axes)
    return figure


@house_style()
def reliability(run: RunFiles) -> Figure:
    """The submit predictor's chances against the share that was correct, over the first and over the last third of the steps."""
    groups = _thirds(_predictor_reports(run))
    pooled = [_pooled_bins(run.potential[step]["predictor"]["overall"] for step in steps) for steps in groups]
    if not any(bins.count.sum() for bins in pooled):
        return empty_figure(f"Run {run.name} has no submit predictor to judge.")
    figure, (top, bottom) = style.new_figure(5.6, 2, sharex=True, height_ratios=[3.2, 1])
    top.plot([0, 1], [0, 1], color=BLACK, linewidth=1.1, linestyle=DASHES[0], zorder=0, label="as often as predicted")
    largest = max(int(bins.count.max()) for bins in pooled)
    looks: tuple[dict[str, Any], ...] = (
        {"color": VERMILION, "linestyle": (0, (1.5, 1.5)), "marker": "o", "facecolors": "white"},
        {"color": BLUE, "linestyle": "-", "marker": "s", "facecolors": BLUE},
    )
    for steps, bins, look in zip(groups, pooled, looks[-len(groups) :], strict=True):
        _reliability_curve(top, bins, look, _named(steps), largest)
    width = 0.8 / len(groups)
    for number, (bins, look) in enumerate(zip(pooled, looks[-len(groups) :], strict=True)):
        span = bins.upper - bins.lower
        left = bins.lower + span * (0.1 + number * width)
        bottom.bar(left, bins.count, span * width, align="edge", facecolor=look["facecolors"], edgecolor=look["color"])
    top.set(ylabel="share correct", xlim=(0, 1), ylim=(-0.03, 1.03))
    bottom.set(xlabel="predicted chance that a submission is correct", ylabel="submissions")
    bottom.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    bottom.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(int(value))))
    legend_above(top)
    figure.align_ylabels([top, bottom])
    return figure


@dataclass(frozen=True)
class _Bins:
    """Reliability bins pooled over steps, each of shape (bins,); nan where a bin is empty."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    count: NDArray[np.int64]
    predicted: NDArray[np.float64]
    rate: NDArray[np.float64]


def _predictor_reports(run: RunFiles) -> list[int]:
    """Steps with a report of the predictor in which a submission was judged."""
    return [
        step for step, report in run.potential.items()
        if (report.get("predictor") or {}).get("overall", {}).get("count") and not report["predictor"]["overall"].get("broken")
    ]  # fmt: skip


def _thirds(steps: Sequence[int]) -> list[Sequence[int]]:
    """The first and the last third; one group of a single step."""
    size = max(1, len(steps) // 3)
    return [steps[:size], steps[-size:]] if len(steps) > 1 else [steps] * bool(steps)


def _named(steps: Sequence[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def _curve_panel(axes: Axes, run: RunFiles, curve: _Curve) -> None:
    values = run.series(curve.metric)
    line_by_step(axes, run.steps, values)
    axes.axhline(curve.level, color=BLACK, linewidth=1.1, linestyle=DASHES[0], zorder=1, label=curve.level_name)
    under = values < _FLOOR
    if under.any():
        axes.set_ylim(bottom=_FLOOR - 0.12)
        axes.plot(
            np.array(run.steps)[under], np.full(under.sum(), _FLOOR - 0.04), linestyle="", marker="v", markersize=5, color=VERMILION,
            markeredgecolor=BLACK, markeredgewidth=0.5, label=f"under {_FLOOR:g}",
        )  # fmt: skip
    axes.set_ylabel(curve.name)
    legend_above(axes)


def _skill_by_k(reports: Iterable[Mapping[str, Any]]) -> dict[int, tuple[int, float]]:
    """Submissions and Brier skill at each k, pooled: skills of single steps, of a few submissions each, are not averaged."""
    sums: dict[int, list[float]] = {}
    for report in reports:
        for k, figures in report["by_k"].items():
            if figures["count"] and not figures.get("broken"):
                total = sums.setdefault(int(k), [0.0, 0.0, 0.0])
                for place, weight in enumerate((1.0, figures["base_rate"], figures["brier"])):
                    total[place] += figures["count"] * weight
    found = {}
    for k, (count, right, squares) in sorted(sums.items()):
        reference = right / count * (1 - right / count)
        found[k] = (int(count), 1 - squares / count / reference if reference > 0 else math.nan)
    return found


def _bars_by_k(axes: Axes, by_k: Mapping[int, tuple[int, float]], steps: Sequence[int]) -> None:
    skills = np.array([skill for _, skill in by_k.values()])
    shown = np.where(np.isfinite(skills), np.maximum(skills, _FLOOR), 0.0)
    places = np.arange(len(by_k))
    axes.bar(places, shown, 0.6, facecolor=SKY, edgecolor=BLACK, linewidth=0.8)
    axes.axhline(0, color=BLACK, linewidth=1.1, linestyle=DASHES[0])
    axes.use_sticky_edges = False  # room on both sides of the zero line
    axes.margins(y=0.15)
    under = skills < _FLOOR
    if under.any():
        axes.set_ylim(bottom=_FLOOR - 0.12)
        axes.plot(
            places[under], np.full(under.sum(), _FLOOR + 0.06), linestyle="", marker="v", markersize=5, color=BLACK
        )
    for place in places[~np.isfinite(skills)]:
        axes.annotate("–", (place, 0), xytext=(0, 2), textcoords="offset points", ha="center", color=GREY)
    axes.set_xticks(places, [f"{k}\n{_short(count)}" for k, (count, _) in by_k.items()])
    axes.set_xlim(-0.6, max(len(by_k) - 0.4, 1.6))
    axes.set(xlabel="candidates revealed; below, submissions judged", ylabel="Brier skill")
    axes.set_title(_named(steps).capitalize(), fontweight="normal", fontsize=9)


def _pooled_bins(reports: Iterable[Mapping[str, Any]]) -> _Bins:
    sums: dict[tuple[float, float], list[float]] = {}
    for report in reports:
        for entry in report["reliability"]:
            total = sums.setdefault((entry["lower"], entry["upper"]), [0.0, 0.0, 0.0])
            if entry["count"]:
                for place, weight in enumerate((1.0, entry["mean_prediction"], entry["rate"])):
                    total[place] += entry["count"] * weight
    bounds = np.array(sorted(sums))
    count, predicted, right = np.array([sums[tuple(pair)] for pair in bounds]).T
    safe = np.where(count > 0, count, math.nan)
    return _Bins(bounds[:, 0], bounds[:, 1], count.astype(np.int64), predicted / safe, right / safe)


def _reliability_curve(axes: Axes, bins: _Bins, look: Mapping[str, Any], name: str, largest: int) -> None:
    seen = bins.count > 0
    x, y, count = bins.predicted[seen], bins.rate[seen], bins.count[seen]
    axes.errorbar(
        x,
        y,
        yerr=np.sqrt(y * (1 - y) / count),
        linestyle=look["linestyle"],
        linewidth=1.2,
        color=look["color"],
        elinewidth=0.9,
    )
    axes.scatter(
        x, y, s=_SMALLEST + (_LARGEST - _SMALLEST) * count / largest, marker=look["marker"], facecolors=look["facecolors"],
        edgecolors=look["color"], linewidths=1.2, zorder=3, label=name,
    )  # fmt: skip


def _short(count: int) -> str:
    """``950``, ``12k``, ``3.4M``: narrow enough to stand under a bar."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count >= 10 * size or (letter == "M" and count >= size):
            return (
                f"{count / size:.1f}".removesuffix(".0") + letter if count < 10 * size else f"{count // size}{letter}"
            )
    return str(count)

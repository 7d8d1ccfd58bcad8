"""Pictures of the comparison: the verdicts, the accuracies, accuracy against cost, and accuracy by number of correct candidates.

Each takes what :func:`genselect.evaluation.comparison.compare_arms` returns, as ``comparison.json`` holds it. Figures that are null or
absent are left out; where nothing is left, the picture says so in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from genselect.evaluation.conclusion import points, size
from genselect.report.arms import GROUPS, MARKS, group_of, number
from genselect.report.figures_cost import cost
from genselect.report.labels import wrap_name
from genselect.report.style import BLACK, BLUE, GREY, LIGHT, LINES, empty_figure, house_style, new_figure

__all__ = ["accuracy", "cost", "forest", "strata"]

#: Inches of a line of text.
_LINE = 0.155
#: Points from the axes to the columns beside them.
_FIRST, _SECOND = 9.0, 68.0
#: Panels of the strata, at most.
_PANELS = 6
_EXPLORATORY = "Exploratory: added after the preregistration.\nThese suggest; they do not decide."


@house_style()
def forest(comparison: Mapping[str, Any]) -> Figure:
    """A row a hypothesis: difference in percentage points with its interval, what matters, what could be seen, and the verdict.

    Args:
        comparison: Of :func:`genselect.evaluation.comparison.compare_arms`.
    """
    entries = [entry for entry in comparison.get("hypotheses") or [] if number(entry.get("difference")) is not None]
    if not entries:
        return empty_figure("No hypothesis has been compared.")
    settings = comparison.get("settings") or {}
    smallest = 100 * (number(settings.get("smallest_effect")) or 0.0)
    registered = [entry for entry in entries if not entry.get("exploratory")]
    explored = [entry for entry in entries if entry.get("exploratory")]
    names = {id(entry): wrap_name(f"{entry['arm']} above {entry['against']}?", 44) for entry in entries}
    heights = {key: _LINE * (name.count("\n") + 1) + 0.5 for key, name in names.items()}
    total = sum(heights.values()) + (0.5 if explored else 0.0)
    figure, (axes,) = new_figure(total + 1.35)
    axes.set_ylim(total, 0)
    axes.set_xlim(*_span(entries, smallest))
    top = 0.0
    for entry in registered:
        _forest_row(axes, entry, names[id(entry)], top, heights[id(entry)], smallest)
        top += heights[id(entry)]
    if explored:
        axes.plot(
            [0, 1.4], [top + 0.04] * 2, transform=axes.get_yaxis_transform(), color=GREY, linewidth=0.8, clip_on=False
        )
        axes.text(
            0, top + 0.1, _EXPLORATORY, transform=axes.get_yaxis_transform(), va="top", fontsize=8, style="italic"
        )
        top += 0.5
    for entry in explored:
        _forest_row(axes, entry, names[id(entry)], top, heights[id(entry)], smallest)
        top += heights[id(entry)]
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("difference in accuracy, percentage points")
    figure.legend(handles=_forest_key(entries, settings, smallest), loc="outside lower left", ncols=1)
    return figure


def _span(entries: Sequence[Mapping[str, Any]], smallest: float) -> tuple[float, float]:
    """Limits of x that hold everything that is drawn."""
    values = [0.0, -1.5 * smallest, 1.5 * smallest]
    for entry in entries:
        found = [entry["difference"], *_interval(entry), entry.get("detectable"), *_seeds(entry)]
        values += [100 * value for value in map(number, found) if value is not None]
    room = max(1.0, max(values) - min(values))
    return min(values) - 0.04 * room, max(values) + 0.04 * room


def _interval(entry: Mapping[str, Any]) -> list[float]:
    found = [number(value) for value in entry.get("interval") or []]
    return [value for value in found if value is not None] if len(found) == 2 and None not in found else []


def _seeds(entry: Mapping[str, Any]) -> list[float]:
    """Differences of the training seeds, where there are several."""
    found = [number(value) for value in (entry.get("replicates") or {}).get("by_seed") or []]
    return [value for value in found if value is not None] if len(found) > 1 else []


def _forest_row(axes: Axes, entry: Mapping[str, Any], name: str, top: float, height: float, smallest: float) -> None:
    """From ``top`` downwards: the name, and below it the strip with the interval; verdict and numbers at the right."""
    across = axes.get_yaxis_transform()
    strip = top + 0.05 + _LINE * (name.count("\n") + 1)
    bottom, middle = top + height - 0.06, strip + 0.17
    axes.text(0, top + 0.03, name, transform=across, va="top")
    axes.add_patch(Rectangle((-smallest, strip), 2 * smallest, bottom - strip, **_BAND))
    axes.plot([0, 0], [strip, bottom], color=BLACK, linewidth=1, zorder=1)
    exploratory = bool(entry.get("exploratory"))
    interval = [100 * value for value in _interval(entry)]
    if interval:
        axes.plot(
            interval, [middle] * 2, color=BLUE, linewidth=2, linestyle=(0, (3, 1.5)) if exploratory else "-", zorder=3
        )
    axes.plot(
        100 * entry["difference"], middle, marker="o", markersize=5.5, color=BLUE,
        markerfacecolor="white" if exploratory else BLUE, zorder=4,
    )  # fmt: skip
    detectable = number(entry.get("detectable"))
    if detectable is not None:
        axes.plot([100 * detectable] * 2, [middle - 0.13, middle + 0.13], color=BLACK, linewidth=1.4, zorder=3)
    for value in _seeds(entry):
        axes.plot(100 * value, middle + 0.13, marker="x", markersize=4, color=BLACK, markeredgewidth=1, zorder=3)
    word = (entry.get("verdict") or {}).get("word") or "no verdict"
    numbers = points(entry["difference"])
    if interval:
        numbers += f"\n{points(interval[0] / 100)} to {points(interval[1] / 100)}"
    beside(axes, top + 0.03, word, va="top", fontweight="bold")
    beside(axes, top + 0.05 + _LINE, numbers, va="top", fontsize=8, linespacing=1.3)


_BAND: dict[str, Any] = {"facecolor": "#F0F0F0", "edgecolor": "#B5B5B5", "hatch": "////", "linewidth": 0, "zorder": 0}


def _forest_key(
    entries: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], smallest: float
) -> list[Line2D | Patch]:
    level, power = number(settings.get("level")) or 0.95, number(settings.get("power")) or 0.8
    key: list[Line2D | Patch] = [
        Line2D([], [], color=BLUE, linewidth=2, marker="o", markersize=6, label=f"difference and {level:.0%} interval"),
    ]
    if any(entry.get("exploratory") for entry in entries):
        key.append(Line2D([], [], color=BLUE, linewidth=2, linestyle=(0, (3, 1.5)), marker="o", markersize=6,
                          markerfacecolor="white", label="the same, exploratory"))  # fmt: skip
    if smallest:
        key.append(Patch(**_BAND, label=f"smaller than the {size(smallest / 100)} points that matter"))
    if any(number(entry.get("detectable")) is not None for entry in entries):
        words = f"rise that would have been found with chance {power:.0%}"
        key.append(
            Line2D([], [], color=BLACK, linestyle="", marker="|", markersize=9, markeredgewidth=1.4, label=words)
        )
    if any(_seeds(entry) for entry in entries):
        key.append(Line2D([], [], color=BLACK, linestyle="", marker="x", label="one training seed"))
    return key


@house_style()
def accuracy(comparison: Mapping[str, Any]) -> Figure:
    """Every arm's accuracy (%) with one standard error to each side, best first within its group, the oracle as ceiling.

    Args:
        comparison: Of :func:`genselect.evaluation.comparison.compare_arms`.
    """
    arms = [arm for arm in comparison.get("arms") or [] if number(arm.get("accuracy")) is not None]
    if not arms:
        return empty_figure("No arm has an accuracy.")
    rows: list[tuple[str, Mapping[str, Any] | None]] = []
    for group, heading in GROUPS.items():
        members = sorted(
            (arm for arm in arms if group_of(arm) == group), key=lambda arm: (-arm["accuracy"], arm["name"])
        )
        if members:
            rows += [(heading, None), *((_arm_name(arm), arm) for arm in members)]
    heights = [_LINE * (name.count("\n") + 1) + (0.11 if arm is None else 0.05) for name, arm in rows]
    figure, (axes,) = new_figure(sum(heights) + 1.0)
    axes.set_ylim(sum(heights), -0.25)
    top, ticks = 0.0, dict[float, str]()
    for (name, arm), height in zip(rows, heights, strict=True):
        middle = top + height / 2
        if arm is None:
            middle += 0.04
        else:
            _accuracy_row(axes, arm, middle)
        ticks[middle] = name
        top += height
    axes.set_yticks(list(ticks), list(ticks.values()), color=BLACK)
    for label, (_, arm) in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if arm is None else "normal")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("accuracy, %")
    ends = [
        100 * (arm["accuracy"] + sign * (number(arm.get("standard_error")) or 0.0)) for arm in arms for sign in (-1, 1)
    ]
    room = max(1.0, max(ends) - min(ends))
    axes.set_xlim(min(ends) - 0.06 * room, max(ends) + 0.06 * room)
    _accuracy_heads(axes)
    return figure


def _arm_name(arm: Mapping[str, Any]) -> str:
    name = arm["name"] + (" (ceiling)" if arm["name"] == "oracle" else "")
    return wrap_name(name + (" (exploratory)" if arm.get("exploratory") else ""), 24)


def _accuracy_row(axes: Axes, arm: Mapping[str, Any], middle: float) -> None:
    group = group_of(arm)
    mark, error = MARKS[group], number(arm.get("standard_error"))
    axes.axhline(middle, color=LIGHT, linewidth=0.6, zorder=0)
    axes.errorbar(
        100 * arm["accuracy"], middle, xerr=None if error is None else 100 * error, fmt=mark["marker"], color=mark["color"],
        markerfacecolor="white" if arm.get("exploratory") else mark["color"], markersize=5.5, elinewidth=1.4, capsize=2.5, zorder=3,
    )  # fmt: skip
    if arm["name"] == "oracle":
        axes.axvline(100 * arm["accuracy"], color=GREY, linewidth=1, linestyle=(0, (5, 4)), zorder=1)
    words = size(arm["accuracy"]) + ("" if error is None else f" ± {size(error)}")
    beside(axes, middle, words, va="center", fontsize=8)
    if group != "candidates" and arm.get("seeds") and arm.get("samples"):
        beside(axes, middle, f"{arm['seeds']} × {arm['samples']}", _SECOND, va="center", fontsize=8)


def _accuracy_heads(axes: Axes) -> None:
    for distance, words in ((_FIRST, "% ± stan-\ndard error"), (_SECOND, "seeds ×\nsamples")):
        beside(axes, 0.14, words, distance, va="bottom", fontsize=8, color=GREY)


def beside(axes: Axes, y: float, words: str, distance: float = _FIRST, **style: Any) -> None:
    """Words at the right of the axes, ``distance`` points away, at ``y`` of the data."""
    axes.annotate(words, (1, y), xycoords=("axes fraction", "data"), xytext=(distance, 0), textcoords="offset points",
                  annotation_clip=False, **style)  # fmt: skip


@house_style()
def strata(comparison: Mapping[str, Any]) -> Figure:
    """Accuracy (%) by number of correct candidates: a panel a trained arm with the arms it is compared with; below, the questions.

    With more than six arms only the preregistered ones are drawn, six at most. The bars at the marks of the others are the
    standard error of the difference between the trained arm and them; no other one is known by stratum.

    Args:
        comparison: Of :func:`genselect.evaluation.comparison.compare_arms`.
    """
    entries = [entry for entry in comparison.get("hypotheses") or [] if entry.get("strata")]
    if not entries:
        return empty_figure("No comparison has figures by number of correct candidates.")
    panels = _panels(entries)
    left_out = len({entry["arm"] for entry in entries}) - len(panels)
    others = list(dict.fromkeys(entry["against"] for members in panels.values() for entry in members))
    styles = {name: LINES[1 + place % (len(LINES) - 1)] for place, name in enumerate(others)}
    each = 2.4 if len(panels) == 1 else 1.6
    figure, axes = new_figure(
        each * len(panels) + 1.5, len(panels) + 1, sharex=True, height_ratios=[each] * len(panels) + [0.75]
    )
    for plot, (arm, members) in zip(axes, panels.items(), strict=False):
        _strata_panel(plot, members, styles)
        plot.set_title(wrap_name(arm + (" (exploratory)" if members[0].get("exploratory") else ""), 48), fontsize=9)
    axes[len(panels) // 2 if len(panels) % 2 else 0].set_ylabel("accuracy, %")
    _strata_bars(axes[-1], next(iter(panels.values()))[0]["strata"])
    key = [Line2D([], [], **LINES[0], label="trained arm (above its panel)")]
    key += [Line2D([], [], **style, label=wrap_name(name, 30)) for name, style in styles.items()]
    if left_out:
        key.append(Line2D([], [], linestyle="", label=f"not drawn: {left_out} more arm{'s' * (left_out > 1)}"))
    figure.legend(handles=key, loc="outside lower left", ncols=2)
    return figure


def _panels(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Entries by trained arm."""
    if len({entry["arm"] for entry in entries}) > _PANELS:
        entries = [entry for entry in entries if not entry.get("exploratory")] or entries
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        panels.setdefault(entry["arm"], []).append(entry)
    return dict(list(panels.items())[:_PANELS])


def _strata_panel(plot: Axes, entries: Sequence[Mapping[str, Any]], styles: Mapping[str, Mapping[str, Any]]) -> None:
    levels = entries[0]["strata"]
    plot.plot([level["correct"] for level in levels], [100 * level["arm"] for level in levels], zorder=4, **LINES[0])
    for place, entry in enumerate(entries):
        # Side by side, or the bars of two arms hide one another.
        shift = 0.12 * (place // 2 + 1) * (-1) ** place
        for level in entry["strata"]:
            error = number(level.get("standard_error"))
            if error is not None:
                plot.errorbar(
                    level["correct"] + shift, 100 * level["reference"], yerr=100 * error, fmt="none",
                    ecolor=styles[entry["against"]]["color"], elinewidth=1, capsize=2, zorder=2,
                )  # fmt: skip
        xs = [level["correct"] + shift for level in entry["strata"]]
        plot.plot(xs, [100 * level["reference"] for level in entry["strata"]], zorder=3, **styles[entry["against"]])
    ends = [100 * level["reference"] + sign * 100 * (number(level.get("standard_error")) or 0.0)
            for entry in entries for level in entry["strata"] for sign in (-1, 1)]  # fmt: skip
    plot.set_ylim(min(-5.0, *ends), max(105.0, *ends))
    plot.set_yticks([0, 25, 50, 75, 100])
    plot.grid(axis="y", color=LIGHT, linewidth=0.6)
    plot.tick_params(axis="x", length=0)


def _strata_bars(plot: Axes, levels: Sequence[Mapping[str, Any]]) -> None:
    xs, counts = [level["correct"] for level in levels], [level["questions"] for level in levels]
    plot.bar(xs, counts, width=0.7, color=LIGHT, edgecolor=GREY, linewidth=0.8)
    for x, count in zip(xs, counts, strict=True):
        plot.annotate(f"{count:,}", (x, count), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=8)
    plot.set_ylim(0, 1.5 * max(counts))
    plot.set_yticks([])
    plot.set_ylabel("questions")
    plot.spines["left"].set_visible(False)
    ends = min(1, *xs), max(7, *xs)
    plot.set_xticks(range(ends[0], ends[1] + 1))
    plot.set_xlim(ends[0] - 0.6, ends[1] + 0.6)
    plot.set_xlabel("correct candidates of eight")

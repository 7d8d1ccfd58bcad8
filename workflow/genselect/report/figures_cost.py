"""The picture of accuracy against cost. Its neighbours are in :mod:`genselect.report.figures_evaluation`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from genselect.report.arms import GROUPS, MARKS, group_of, number
from genselect.report.labels import Label, place_labels, wrap_name
from genselect.report.style import BLACK, GREY, empty_figure, house_style, new_figure

_MAJORITY = re.compile(r"majority_(\d+)")
#: Inches; the first in which all labels find room.
_HEIGHTS = (4.4, 5.6)
#: Inches of a line of the key.
_KEY_LINE = 0.165


@house_style()
def cost(comparison: Mapping[str, Any]) -> Figure:
    """Accuracy (%) against the mean number of candidates shown: the majority of k as a curve, every other arm a labelled mark.

    Where too many marks lie in a heap for their names, letters stand at the marks and the names below.
    The arm ``mean`` is left out: it is ``first`` on average. An arm without accuracy or cost is left out too.

    Args:
        comparison: Of :func:`genselect.evaluation.comparison.compare_arms`.
    """
    points = [
        point for point in comparison.get("cost") or []
        if point["arm"] != "mean" and number(point.get("shown")) is not None and number(point.get("accuracy")) is not None
    ]  # fmt: skip
    if not points:
        return empty_figure("No arm has both an accuracy and a number of candidates shown.")
    arms = {arm["name"]: arm for arm in comparison.get("arms") or []}
    for height in _HEIGHTS:
        figure, roomy = _draw(points, arms, height)
        if roomy:
            return figure
    return _draw(points, arms, _HEIGHTS[0], lettered=True)[0]


def _draw(
    points: Sequence[Mapping[str, Any]], arms: Mapping[str, Any], height: float, *, lettered: bool = False
) -> tuple[Figure, bool]:
    """The figure, and whether its labels found room. ``lettered``: letters at the marks, and the names below the axes."""
    curve = sorted((point for point in points if _MAJORITY.fullmatch(point["arm"])), key=lambda point: point["shown"])
    others = sorted(
        (point for point in points if point not in curve),
        key=lambda point: (list(MARKS).index(group_of(_arm(point, arms))), point["shown"], point["arm"]),
    )
    letters = dict(zip((point["arm"] for point in others), ascii_uppercase + ascii_lowercase, strict=False))
    key = _key(others, arms, bool(curve), letters if lettered else {})
    figure, (axes,) = new_figure(height + (_KEY_LINE * len(key) if lettered else 0.0))
    _limits(axes, points)
    occupied = [(point["shown"], 100 * point["accuracy"]) for point in points] + _draw_curve(axes, curve)
    # The numbers along the curve first: they are small, and of no use far from their points. Then trained arms.
    labels = _curve_labels(curve)
    for point in others:
        occupied += _draw_mark(axes, point, _arm(point, arms))
        group = group_of(_arm(point, arms))
        words = letters.get(point["arm"], "") if lettered else wrap_name(_name(point, arms), 22)
        style = {"color": BLACK, "fontweight": "bold" if lettered or group == "trained" else "normal"}
        labels.append(Label(words, (point["shown"], 100 * point["accuracy"]), style))
    figure.legend(handles=key, loc="outside lower left", ncols=1 if lettered else 2)
    return figure, place_labels(figure, axes, labels, occupied, give_up=not lettered)


def _arm(point: Mapping[str, Any], arms: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(arms.get(point["arm"], {"name": point["arm"], "kind": "baseline"}))


def _name(point: Mapping[str, Any], arms: Mapping[str, Any]) -> str:
    return str(point["arm"]) + (" (exploratory)" if _arm(point, arms).get("exploratory") else "")


def _limits(axes: Axes, points: Sequence[Mapping[str, Any]]) -> None:
    axes.set_xlabel("candidates shown, mean of a question")
    axes.set_ylabel("accuracy, %")
    shown = [point["shown"] for point in points]
    axes.set_xlim(min(*shown, 1) - 0.5, max(*shown, 1) + 0.5)
    ends = [
        100 * (point["accuracy"] + sign * (number(point.get("standard_error")) or 0.0))
        for point in points
        for sign in (-1, 1)
    ]
    room = max(1.0, max(ends) - min(ends))
    axes.set_ylim(min(ends) - 0.1 * room, max(ends) + 0.1 * room)


def _draw_curve(axes: Axes, curve: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Draws the majorities, and returns points along the line."""
    if not curve:
        return []
    xs, ys = [point["shown"] for point in curve], [100 * point["accuracy"] for point in curve]
    axes.plot(xs, ys, color=BLACK, linestyle="-", linewidth=1.2, marker=".", markersize=6, zorder=2)
    along = np.linspace(xs[0], xs[-1], 120)
    return list(zip(along, np.interp(along, xs, ys), strict=True))


def _draw_mark(axes: Axes, point: Mapping[str, Any], arm: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Draws an arm with its error, and returns points along the bar."""
    x, y, error = point["shown"], 100 * point["accuracy"], 100 * (number(point.get("standard_error")) or 0.0)
    mark = MARKS[group_of(arm)]
    axes.errorbar(
        x, y, yerr=error, fmt=mark["marker"], color=mark["color"], markerfacecolor="white" if arm.get("exploratory") else mark["color"],
        markersize=6, elinewidth=1, zorder=3,
    )  # fmt: skip
    return [(x, level) for level in np.linspace(y - error, y + error, 9)]


def _curve_labels(curve: Sequence[Mapping[str, Any]]) -> list[Label]:
    """k at each point."""
    return [
        Label(point["arm"].removeprefix("majority_"), (point["shown"], 100 * point["accuracy"]), {"color": GREY})
        for point in curve
    ]


def _key(
    others: Sequence[Mapping[str, Any]], arms: Mapping[str, Any], curve: bool, letters: Mapping[str, str]
) -> list[Line2D]:
    """Only what is there: sorts of arms, or with ``letters`` each arm."""
    key = []
    if curve:
        key.append(Line2D([], [], color=BLACK, linewidth=1.2, marker=".", label="majority of the first k, k beside it"))
    found = [_arm(point, arms) for point in others]
    if letters:
        for point, arm in zip(others, found, strict=True):
            mark = MARKS[group_of(arm)]
            face = "white" if arm.get("exploratory") else mark["color"]
            words = f"{letters.get(point['arm'], '')}  {wrap_name(_name(point, arms), 48)}"
            key.append(Line2D([], [], linestyle="", markersize=6, markerfacecolor=face, label=words, **mark))
        return key
    for group, mark in MARKS.items():
        if any(group_of(arm) == group for arm in found):
            key.append(Line2D([], [], linestyle="", markersize=6, label=GROUPS[group], **mark))
    if any(arm.get("exploratory") for arm in found):
        hollow: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": BLACK, "marker": "o"}
        key.append(Line2D([], [], linestyle="", markersize=6, label="hollow: exploratory", **hollow))
    return key

"""Names in pictures: long ones in lines, and many of them beside their points without touching one another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from genselect.report.style import BLACK

#: Pixels of the figure: between places that are tried, around a label, and from where on a label needs a line to its point.
_GRID, _CLEAR, _FAR = 3.0, 2.0, 14.0
#: Pixels: half a mark.
_MARK = 4.5
#: Free places, nearest first, that are tried for an undisturbed line: these all, and of those behind them every so many-th.
_TRIED, _STRIDE = 60, 40


def wrap_name(name: str, width: int) -> str:
    """``name`` in lines of at most ``width`` characters, broken behind spaces, ``-``, ``_``, ``@`` and ``.`` where that is possible."""
    lines = [""]
    for piece in re.split(r"(?<=[-_@. ])", name):
        while len(piece.rstrip()) > width:
            room = width - len(lines[-1])
            lines[-1] += piece[:room]
            lines.append("")
            piece = piece[room:]
        if len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.strip() for line in lines if line.strip())


@dataclass(frozen=True)
class Label:
    """What is to be written beside a point."""

    words: str
    point: tuple[float, float]
    """In data."""
    style: dict[str, Any] = field(default_factory=dict)
    """As for ``Axes.text``."""


def place_labels(
    figure: Figure,
    axes: Axes,
    labels: Sequence[Label],
    occupied: Sequence[tuple[float, float]],
    *,
    give_up: bool = False,
) -> bool:
    """Write each label at the free place nearest to its point, within the axes.

    A label that is far from its point, or nearer to another one, gets a line to its own.

    Places are searched on a grid over the axes, label by label in the order given, so the first ones lie best and the same
    input gives the same picture.

    Args:
        figure, axes: Finished but for the labels: limits and layout are those that count.
        labels: First come, first served.
        occupied: Points in data that no label may cover: marks, and enough points along lines.
        give_up: Stop at the first label for which there is no room: the figure will be thrown away.

    Returns:
        Whether there was room: False if a label had to be left out, or if the line of one crosses another label or line.
        A larger figure mends it.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # a later layout would move what was measured
    frame = axes.get_window_extent()
    marks = axes.transData.transform([label.point for label in labels])
    lines = axes.transData.transform(np.asarray([*occupied, *(label.point for label in labels)], dtype=np.float64))
    # What no label may touch; and what no line of a label may cross, apart from the mark that it leads to.
    taken = np.vstack([np.hstack([lines - 2, lines + 2]), np.hstack([marks - _MARK, marks + _MARK])])
    solid = np.hstack([marks - _MARK, marks + _MARK])
    roomy = True
    for label in labels:
        text = axes.text(*label.point, label.words, **{"fontsize": 8, "ha": "left", "va": "bottom", **label.style})
        box = text.get_window_extent()
        anchor = axes.transData.transform(label.point)
        place, undisturbed = _place(
            anchor, (box.width, box.height), (frame.x0, frame.y0, frame.x1, frame.y1), taken, solid, len(marks)
        )
        if place is None:
            text.remove()
            roomy = False
            continue
        x, y = axes.transData.inverted().transform(place)
        text.set_position((float(x), float(y)))
        written = np.array([*place, place[0] + box.width, place[1] + box.height])
        taken, solid = np.vstack([taken, written]), np.vstack([solid, written])
        near = np.clip(anchor, written[:2], written[2:])
        if _needs_line(written, anchor, marks):
            roomy = roomy and undisturbed
            if give_up and not roomy:
                return False
            ends = axes.transData.inverted().transform([anchor, near])
            axes.plot(*ends.T, color=BLACK, linewidth=0.6, marker="", zorder=5)
            path = _along(anchor, near)
            line = np.hstack([path - 1, path + 1])
            taken, solid = np.vstack([taken, line]), np.vstack([solid, line])
    return roomy


def _needs_line(box: npt.NDArray[np.float64], anchor: npt.NDArray[np.float64], marks: npt.NDArray[np.float64]) -> bool:
    away = np.hypot(*(np.clip(anchor, box[:2], box[2:]) - anchor))
    others = marks[np.hypot(*(marks - anchor).T) > 1]
    nearest = np.hypot(*(np.clip(others, box[:2], box[2:]) - others).T).min(initial=np.inf)
    return bool(away > _FAR or nearest < away + 2)


def _place(
    anchor: npt.NDArray[np.float64],
    size: tuple[float, float],
    frame: tuple[float, float, float, float],
    taken: npt.NDArray[np.float64],
    solid: npt.NDArray[np.float64],
    marks: int,
) -> tuple[npt.NDArray[np.float64] | None, bool]:
    """Lower left corner of the label, in pixels, and whether no words lie between it and its point.

    Boxes, shape (…, 4), are ``taken`` for labels and ``solid`` for lines; the first ``marks`` of the latter are marks.
    """
    xs = np.arange(frame[0] + _CLEAR, frame[2] - size[0] - _CLEAR, _GRID)
    ys = np.arange(frame[1] + _CLEAR, frame[3] - size[1] - _CLEAR, _GRID)
    low = np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)
    high = low + size
    near = np.clip(anchor, low, high)
    distance = np.hypot(*(near - anchor).T)
    # Of places as near as each other the one whose middle is nearer: straight beside, above or below the point.
    order = np.lexsort((np.hypot(*((low + high) / 2 - anchor).T), np.round(distance)))
    free = order[_are_free(low[order], high[order], taken)]
    tried = [*free[:_TRIED], *free[_TRIED::_STRIDE]]
    others = ~((solid[:, :2] < anchor) & (anchor < solid[:, 2:])).all(axis=1)
    # Where marks lie in a heap no line reaches its own past the others: then only words and lines are kept clear of.
    away = np.hypot(*(np.clip(anchor, solid[:, :2], solid[:, 2:]) - anchor).T) > _MARK
    for barriers in (solid[others], solid[marks:][away[marks:]]):
        for at in tried:
            if not _covers(barriers, _along(anchor, near[at])):
                return np.asarray(low[at]), True
    return (np.asarray(low[free[0]]) if len(free) else None), False


def _are_free(
    low: npt.NDArray[np.float64], high: npt.NDArray[np.float64], taken: npt.NDArray[np.float64]
) -> npt.NDArray[np.bool_]:
    """Of boxes, shape (boxes, 2) each corner: which touch nothing."""
    free = np.ones(len(low), dtype=np.bool_)
    for x0, y0, x1, y1 in taken:
        right, above = low[:, 0] > x1 + _CLEAR, low[:, 1] > y1 + _CLEAR
        left, below = high[:, 0] < x0 - _CLEAR, high[:, 1] < y0 - _CLEAR
        free &= right | above | left | below
    return free


def _along(start: npt.NDArray[np.float64], end: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Points of the line, two pixels apart."""
    count = max(2, int(np.hypot(*(end - start)) / 2))
    return np.linspace(start, end, count)


def _covers(boxes: npt.NDArray[np.float64], path: npt.NDArray[np.float64]) -> bool:
    inside = (path[:, None, :] >= boxes[None, :, :2] - 1) & (path[:, None, :] <= boxes[None, :, 2:] + 1)
    return bool(inside.all(axis=-1).any())

"""How the report's pictures look, and how they are written: colours that the colour-blind tell apart, SVG with a PNG beside it.

No picture says anything by colour alone: lines differ in dashes or markers too, areas in lightness or hatching, so that all of
them can be read in grey. They are narrow (:data:`WIDTH`), so that they stay legible on a phone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from genselect.formats import atomic_path

# Okabe and Ito 2008, "Color Universal Design".
BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7"
BLACK, GREY, LIGHT = "#222222", "#5A5A5A", "#D9D9D9"

#: Colour, dashes and marker of the first, second, … line of a picture.
LINES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-", "marker": "o"},
    {"color": VERMILION, "linestyle": "--", "marker": "s"},
    {"color": GREEN, "linestyle": "-.", "marker": "^"},
    {"color": ORANGE, "linestyle": ":", "marker": "D"},
    {"color": PURPLE, "linestyle": (0, (5, 1, 1, 1)), "marker": "v"},
    {"color": BLACK, "linestyle": (0, (1, 1)), "marker": "x"},
)

#: Inches. At 96 pixels an inch a little more than a phone's width.
WIDTH = 5.0
#: Pixels an inch of the PNG.
_PNG_DPI = 200

_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": BLACK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    # Letters as outlines: a reader's device may lack the font, and another one would run over its place. The page gives the words.
    "svg.fonttype": "path",
    # The same figures give the same bytes.
    "svg.hashsalt": "genselect",
}


@contextmanager
def house_style() -> Iterator[None]:
    """Within it every figure is drawn in the house style; also a decorator of functions that draw."""
    with mpl.rc_context(_SETTINGS):
        yield


def new_figure(
    height: float, rows: int = 1, columns: int = 1, *, width: float = WIDTH, **grid: Any
) -> tuple[Figure, list[Axes]]:
    """A figure without a window, and its axes in reading order.

    Args:
        height: Inches.
        rows, columns: Of axes.
        width: Inches.
        grid: As for ``matplotlib.figure.Figure.subplots``: ``sharex``, ``height_ratios``, …
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **grid)
    return figure, list(axes.flat)


def save_figure(figure: Figure, path: Path | str) -> None:
    """Write ``path`` (``.svg``) and, beside it, the same as ``.png``."""
    svg = Path(path)
    svg.parent.mkdir(parents=True, exist_ok=True)
    with house_style():
        for target, options in ((svg, {"metadata": {"Date": None}}), (svg.with_suffix(".png"), {"dpi": _PNG_DPI})):
            with atomic_path(target) as temporary:
                figure.savefig(temporary, format=target.suffix[1:], facecolor="white", **options)


def empty_figure(words: str, height: float = 1.0) -> Figure:
    """A figure that says, in words, why there is nothing to see."""
    figure = Figure(figsize=(WIDTH, height))
    figure.text(0.5, 0.5, words, ha="center", va="center", color=GREY, fontsize=9, wrap=True)
    return figure

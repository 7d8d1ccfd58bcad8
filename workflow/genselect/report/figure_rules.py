"""Picture of the workflow: which rule feeds which, from what ``snakemake --rulegraph dot`` prints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Curve
from scipy.optimize import isotonic_regression

from genselect.errors import GenselectError
from genselect.plan.stages import TARGETS
from genselect.report.style import BLACK, GREY, VERMILION, WIDTH, empty_figure, house_style, new_figure

#: Tints light enough for black type. Each box also names its group.
_TINTS = {
    "data": "#D6E9F5", "model": "#E8E8E8", "gates": "#FBE3D2", "training": "#D3EFE5", "evaluation": "#FCF1D0", "report": "#F5E1EC",
}  # fmt: skip
_HINT = "Give what `snakemake --rulegraph dot` prints, all of it."
_NODE = re.compile(r'^\s*(\d+)\s*\[\s*label\s*=\s*"([^"]*)"')
_EDGE = re.compile(r"^\s*(\d+)\s*->\s*(\d+)")

#: Inches: a box, a line of type in it, the least distance of neighbours in a row and of rows, and the margin at either side.
_BOX_WIDTH, _TYPE, _GAP, _ROW_GAP, _MARGIN = 1.44, 0.165, 0.12, 0.34, 0.04
#: Inches of a row that an arrow takes on its way past boxes.
_LANE = 0.1
_SWEEPS = 12
#: Of arrows that lead back.
_DASHES = (0, (4, 2))
#: How much more a lane heeds lanes than boxes.
_STRAIGHT = 8
#: Characters of a rule's name that fit on one line of its box.
_LINE = 19

# A box is a rule's name; where an arrow passes a row it has a lane there: (from, to, row).
_Lane = tuple[str, str, int]
_Slot = str | _Lane


@dataclass
class _Layout:
    """Rows of slots from the top, and where each slot's middle is, in inches."""

    rows: list[list[_Slot]]
    chains: list[tuple[list[_Slot], bool]]
    """Each arrow as the slots it passes, from the upper box to the lower one, and whether it points back up."""
    x: dict[_Slot, float] = field(default_factory=dict)

    @property
    def box_height(self) -> float:
        """Inches; room for the longest name and a line for the group."""
        lines = max(len(_lines(slot)) for row in self.rows for slot in row if isinstance(slot, str))
        return (lines + 1) * _TYPE + 0.08


def read_rule_graph(dot: str) -> nx.DiGraph:
    """The rules and what they feed.

    Args:
        dot: What ``snakemake --rulegraph dot`` prints.

    Returns:
        A graph whose nodes are rule names; an edge points from a rule to one that reads its output. It may have cycles, since
        a rule that runs several times may feed itself by way of others.

    Raises:
        GenselectError: It is no rule graph.
    """
    if not re.search(r"^\s*digraph\b", dot, re.MULTILINE) or "}" not in dot:
        raise GenselectError("the rule graph is not a whole digraph in DOT", _HINT)
    names: dict[str, str] = {}
    graph = nx.DiGraph()
    edges: list[tuple[str, str]] = []
    for line in dot.splitlines():
        if node := _NODE.match(line):
            names[node[1]] = node[2]
            graph.add_node(node[2])
        elif edge := _EDGE.match(line):
            edges.append((edge[1], edge[2]))
    if not names:
        raise GenselectError("the rule graph names no rule", _HINT)
    for source, target in edges:
        if source not in names or target not in names:
            raise GenselectError(
                f"the rule graph has an arrow {source} -> {target} to or from a rule it does not name", _HINT
            )
        graph.add_edge(names[source], names[target])
    return graph


@house_style()
def rule_graph(graph: nx.DiGraph, groups: Mapping[str, str]) -> Figure:
    """Boxes in rows, each below all that it needs; arrows that follow from others are left out.

    Args:
        graph: As :func:`read_rule_graph` returns.
        groups: Part of the experiment by rule: data, model, gates, training, evaluation, report. Others are drawn white.
    """
    # A target that something needs, or that has a group, is more than a target.
    idle = [rule for rule in graph if rule in TARGETS and rule not in groups and not graph.out_degree(rule)]
    shown = _sorted_graph(graph.subgraph(graph.nodes - set(idle)))
    if not shown:
        return empty_figure("The rule graph names no rule.")
    forward, back = split_cycles(shown)
    # Three boxes are as wide as the picture allows; with many arrows beside them fewer fit.
    for boxes in (3, 2, 1):
        layout = _arrange(forward, back, boxes)
        if max(_row_width(row) for row in layout.rows) <= WIDTH - 2 * _MARGIN:
            break
    _place(layout)
    return _draw(layout, groups)


def split_cycles(graph: nx.DiGraph) -> tuple[nx.DiGraph, list[tuple[str, str]]]:
    """The graph without cycles and with necessary edges only, and the edges that close cycles.

    A rule that runs several times (a training run, before and after a gate) closes a cycle. The rule of a cycle that most
    others of it lead to is taken as its beginning, and the edges to it as those that go back.
    """
    forward, back = graph.copy(), []
    while cycles := sorted(sorted(part) for part in nx.strongly_connected_components(forward) if len(part) > 1):
        cycle = forward.subgraph(cycles[0])
        head = min(cycle, key=lambda rule: (-cycle.in_degree(rule), -forward.in_degree(rule), rule))
        back += [(rule, head) for rule in sorted(cycle.predecessors(head))]
        forward.remove_edges_from(back)
    forward.remove_edges_from(list(nx.selfloop_edges(forward)))
    return _sorted_graph(nx.transitive_reduction(forward)), back


def _sorted_graph(graph: nx.DiGraph) -> nx.DiGraph:
    """The same graph in the order of names: the order in which Snakemake prints them does not change the picture."""
    ordered = nx.DiGraph()
    ordered.add_nodes_from(sorted(graph))
    ordered.add_edges_from(sorted((u, v) for u, v in graph.edges if u != v))
    return ordered


def _arrange(forward: nx.DiGraph, back: Sequence[tuple[str, str]], boxes: int) -> _Layout:
    """Boxes and lanes in rows of at most ``boxes`` boxes, ordered so that few arrows cross."""
    row_of = _rows_of(forward, boxes)
    arrows = [(u, v, False) for u, v in forward.edges] + [(head, rule, True) for rule, head in back]
    rows: list[list[_Slot]] = [[] for _ in range(max(row_of.values()) + 1)]
    for rule, row in row_of.items():
        rows[row].append(rule)
    chains: list[tuple[list[_Slot], bool]] = []
    for upper, lower, upward in arrows:
        lanes = [(upper + ("^" if upward else ""), lower, row) for row in range(row_of[upper] + 1, row_of[lower])]
        for lane in lanes:
            rows[lane[2]].append(lane)
        chains.append(([upper, *lanes, lower], upward))
    _uncross(rows, chains)
    return _Layout(rows, chains)


def _rows_of(forward: nx.DiGraph, boxes: int) -> dict[str, int]:
    """The row of each rule, from 0 at the top."""
    level = {rule: number for number, part in enumerate(nx.topological_generations(forward)) for rule in part}
    for rule in forward:
        # What needs nothing stands just above what needs it, which keeps its arrows short.
        if not forward.in_degree(rule) and forward.out_degree(rule):
            level[rule] = min(level[lower] for lower in forward.successors(rule)) - 1
    row_of: dict[str, int] = {}
    row = 0
    for number in sorted(set(level.values())):
        together = [rule for rule in forward if level[rule] == number]
        for position, rule in enumerate(together):
            row_of[rule] = row + position // boxes
        row = row_of[together[-1]] + 1
    return row_of


def _uncross(rows: list[list[_Slot]], chains: Sequence[tuple[Sequence[_Slot], bool]]) -> None:
    """Order each row by the barycentres of its neighbours above, then below, several times; keep the order with fewest crossings.

    Sugiyama, Tagawa and Toda 1981, "Methods for Visual Understanding of Hierarchical System Structures".
    """
    links = [link for slots, _ in chains for link in pairwise(slots)]
    best, fewest = [list(row) for row in rows], _crossings(rows, links)
    for sweep in range(_SWEEPS):
        downward = sweep % 2 == 0
        near: dict[_Slot, list[_Slot]] = {}
        for upper, lower in links:
            near.setdefault(lower if downward else upper, []).append(upper if downward else lower)
        for row in rows if downward else reversed(rows):
            # Shares of a row's width, so that rows of different length compare.
            share = {slot: (place + 0.5) / len(other) for other in rows for place, slot in enumerate(other)}
            centre = {slot: float(np.mean([share[one] for one in near.get(slot, [slot])])) for slot in row}
            row.sort(key=lambda slot: centre[slot])
        if (crossings := _crossings(rows, links)) < fewest:
            best, fewest = [list(row) for row in rows], crossings
    rows[:] = best


def _crossings(rows: Sequence[Sequence[_Slot]], links: Sequence[tuple[_Slot, _Slot]]) -> int:
    place = {slot: (number, position) for number, row in enumerate(rows) for position, slot in enumerate(row)}
    ends = sorted((place[upper], place[lower]) for upper, lower in links)
    return sum(
        first[0][0] == second[0][0] and first[0][1] < second[0][1] and first[1][1] > second[1][1]
        for number, first in enumerate(ends)
        for second in ends[number + 1 :]
    )


def _width(slot: _Slot) -> float:
    return _BOX_WIDTH if isinstance(slot, str) else _LANE


def _row_width(row: Sequence[_Slot]) -> float:
    return sum(_width(slot) for slot in row) + _GAP * (len(row) - 1)


def _place(layout: _Layout) -> None:
    """Put every slot near the mean of its neighbours, its row's order and distances kept, and the whole in the middle."""
    near: dict[_Slot, list[_Slot]] = {}
    for slots, _ in layout.chains:
        for upper, lower in pairwise(slots):
            near.setdefault(upper, []).append(lower)
            near.setdefault(lower, []).append(upper)
    layout.x = {slot: WIDTH / 2 for row in layout.rows for slot in row}
    for sweep in range(8 * _SWEEPS):
        for row in layout.rows if sweep % 2 == 0 else reversed(layout.rows):
            wanted = [_centre(slot, near.get(slot, [slot]), layout.x) for slot in row]
            layout.x.update(zip(row, _apart(wanted, [_width(slot) for slot in row]), strict=True))
    left = min(x - _width(slot) / 2 for slot, x in layout.x.items())
    right = max(x + _width(slot) / 2 for slot, x in layout.x.items())
    layout.x = {slot: x + (WIDTH - left - right) / 2 for slot, x in layout.x.items()}


def _centre(slot: _Slot, near: Sequence[_Slot], x: Mapping[_Slot, float]) -> float:
    # A lane's own way weighs more than its ends: long arrows run straight.
    weights = [1 if isinstance(slot, str) else _STRAIGHT if not isinstance(one, str) else 1 for one in near]
    return float(np.average([x[one] for one in near], weights=weights))


def _apart(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """The middles nearest to ``wanted`` (least squares) that keep the order, do not overlap and stay within the picture."""
    before = np.concatenate([[0.0], np.cumsum([(a + b) / 2 + _GAP for a, b in pairwise(widths)])])
    # Without the distances that must be kept, what is left only has to increase.
    free = isotonic_regression(np.asarray(wanted) - before).x
    lowest = _MARGIN + widths[0] / 2
    highest = WIDTH - _MARGIN - widths[-1] / 2 - before[-1]
    return list(np.clip(free, lowest, max(lowest, highest)) + before)


def _draw(layout: _Layout, groups: Mapping[str, str]) -> Figure:
    again = any(upward for _, upward in layout.chains)
    pitch = layout.box_height + _ROW_GAP
    height = pitch * len(layout.rows) + (0.1 if again else -_ROW_GAP + 2 * _MARGIN)
    figure, (axes,) = new_figure(height)
    figure.set_layout_engine("none")
    axes.set_position((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(0, height))
    axes.set_axis_off()
    top = height - _MARGIN - layout.box_height / 2
    middle = {slot: top - pitch * number for number, row in enumerate(layout.rows) for slot in row}
    _draw_arrows(axes, layout, middle)
    for slot, y in middle.items():
        if isinstance(slot, str):
            _draw_box(axes, slot, groups.get(slot), (layout.x[slot], y), layout.box_height)
    if again:
        axes.plot([0.1, 0.55], [0.15, 0.15], color=VERMILION, linestyle=_DASHES, linewidth=1.3)
        axes.text(0.65, 0.15, "back to a rule that runs several times", va="center", fontsize=8, color=BLACK)
    return figure


def _draw_box(axes: Axes, rule: str, group: str | None, middle: tuple[float, float], height: float) -> None:
    x, y = middle
    axes.add_patch(
        FancyBboxPatch(
            (x - _BOX_WIDTH / 2, y - height / 2), _BOX_WIDTH, height, boxstyle="round,pad=0,rounding_size=0.06",
            facecolor=_TINTS.get(group or "", "white"), edgecolor=GREY, linewidth=0.9,
        )
    )  # fmt: skip
    type_: list[tuple[str, dict[str, Any]]] = [(line, {"fontweight": "bold"}) for line in _lines(rule)]
    if group:
        type_.append((group, {"style": "italic"}))
    for number, (line, look) in enumerate(type_):
        height_of_line = y + ((len(type_) - 1) / 2 - number) * _TYPE
        axes.text(x, height_of_line, line, ha="center", va="center", fontsize=8, color=BLACK, **look)


def _lines(rule: str) -> list[str]:
    """A rule's name in lines that fit its box, broken after underscores where it has them."""
    lines = [""]
    for part in re.findall(rf"[^_]{{1,{_LINE - 1}}}_?|_", rule):
        if len(lines[-1]) + len(part) > _LINE:
            lines.append("")
        lines[-1] += part
    return lines


def _draw_arrows(axes: Axes, layout: _Layout, middle: Mapping[_Slot, float]) -> None:
    """Curves from the foot of one box to the head of another, side by side where several meet."""
    foot, head, half = _ports(layout, lower=True), _ports(layout, lower=False), layout.box_height / 2
    for number, (slots, upward) in enumerate(layout.chains):
        points = [(foot[number], middle[slots[0]] - half)]
        for lane in slots[1:-1]:
            points += [(layout.x[lane], middle[lane] + half), (layout.x[lane], middle[lane] - half)]
        points.append((head[number], middle[slots[-1]] + half))
        look: dict[str, Any] = {"color": GREY, "linewidth": 1.1}
        if upward:
            points.reverse()
            look = {"color": VERMILION, "linewidth": 1.3, "linestyle": _DASHES}
        arrow = FancyArrowPatch(path=_curve(points), arrowstyle="-|>", mutation_scale=8, shrinkA=0, shrinkB=0, **look)
        axes.add_patch(arrow)


def _ports(layout: _Layout, *, lower: bool) -> list[float]:
    """Where each arrow meets its upper box's foot (``lower``) or its lower box's head, in inches from the left."""
    here, there = (0, 1) if lower else (-1, -2)
    at: dict[_Slot, list[int]] = {}
    for number, (slots, _) in enumerate(layout.chains):
        at.setdefault(slots[here], []).append(number)
    ports = [0.0] * len(layout.chains)
    for box, numbers in at.items():
        numbers.sort(key=lambda number: (layout.x[layout.chains[number][0][there]], layout.chains[number][1]))
        step = min(0.28, (_BOX_WIDTH - 0.3) / max(1, len(numbers) - 1))
        for position, number in enumerate(numbers):
            ports[number] = layout.x[box] + (position - (len(numbers) - 1) / 2) * step
    return ports


def _curve(points: Sequence[tuple[float, float]]) -> Curve:
    """Vertical at both ends of each piece between rows, straight along a lane."""
    vertices, codes = [points[0]], [Curve.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(points):
        bend = (y0 + y1) / 2
        vertices += [(x0, bend), (x1, bend), (x1, y1)]
        codes += [Curve.CURVE4] * 3
    return Curve(vertices, codes)

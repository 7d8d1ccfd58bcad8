"""The workflow's picture has every rule once, arrows that go down unless they close a cycle, and no box upon another."""

from __future__ import annotations

import random
from itertools import combinations, pairwise
from pathlib import Path

import networkx as nx
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.text import Text

from genselect.errors import GenselectError
from genselect.report.figure_rules import read_rule_graph, rule_graph, split_cycles
from genselect.report.style import house_style, save_figure

# What Snakemake 9.27 prints, shortened: a training run feeds its gate, and the gate lets the next run start.
DOT = """digraph snakemake_dag {
    graph[bgcolor=white, margin=0];
    node[shape=box, style=rounded, fontname=sans,                 fontsize=10, penwidth=2];
    edge[penwidth=2, color=grey];
\t0[label = "all", color = "0.00 0.6 0.85", style="rounded"];
\t1[label = "merge_candidates", color = "0.03 0.6 0.85", style="rounded,dashed"];
\t2[label = "build_rows", color = "0.47 0.6 0.85", style="rounded"];
\t3[label = "train_run", color = "0.40 0.6 0.85", style="rounded"];
\t4[label = "check_gate", color = "0.30 0.6 0.85", style="rounded"];
\t5[label = "compare_arms", color = "0.33 0.6 0.85", style="rounded"];
\t5 -> 0
\t1 -> 0
\t1 -> 2
\t2 -> 3
\t4 -> 3
\t3 -> 4
\t3 -> 5
\t1 -> 5
}
"""
GROUPS = {"merge_candidates": "data", "build_rows": "data", "train_run": "training", "check_gate": "gates"}


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def boxes(figure: Figure) -> list[FancyBboxPatch]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]


def arrows(figure: Figure) -> list[tuple[bool, bool]]:
    """Of each arrow: whether it is dashed, and whether it goes up."""
    found = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]
    ends = [
        patch._path_original.vertices for patch in found
    ]  # what was asked for: get_path gives the outline, head and all
    return [
        (patch.get_linestyle() != "-" and patch.get_linestyle() != "solid", bool(way[-1][1] > way[0][1]))
        for patch, way in zip(found, ends, strict=True)
    ]


def large(rules: int) -> nx.DiGraph:
    rng = random.Random(0)
    graph = nx.DiGraph()
    for number in range(1, rules):
        for other in rng.sample(range(max(0, number - 9), number), min(number, rng.choice([1, 1, 2]))):
            graph.add_edge(f"rule_number_{other}_with_a_long_name", f"rule_number_{number}_with_a_long_name")
    return graph


def test_what_snakemake_prints_is_read() -> None:
    graph = read_rule_graph(DOT)
    assert set(graph) == {"all", *GROUPS, "compare_arms"}
    assert ("check_gate", "train_run") in graph.edges
    assert ("train_run", "check_gate") in graph.edges
    assert graph.number_of_edges() == 8


@pytest.mark.parametrize(
    ("dot", "complaint"),
    [
        ("", "not a whole digraph"),
        ("Building DAG of jobs...\n", "not a whole digraph"),
        (DOT[: DOT.index("}")], "not a whole digraph"),
        ("digraph snakemake_dag {\n}\n", "names no rule"),
        (DOT.replace("1 -> 2", "1 -> 99"), "1 -> 99"),
    ],
)
def test_what_is_no_rule_graph_is_refused(dot: str, complaint: str) -> None:
    with pytest.raises(GenselectError, match=complaint) as caught:
        read_rule_graph(dot)
    assert "--rulegraph" in caught.value.hint


def test_every_rule_is_named_with_its_group_and_targets_are_left_out() -> None:
    shown = words(rule_graph(read_rule_graph(DOT), GROUPS))
    for rule in (*GROUPS, "compare_arms"):
        assert shown.count(rule) == 1
    assert "all" not in shown
    assert shown.count("data") == 2
    assert shown.count("gates") == 1
    assert "report" in words(rule_graph(nx.DiGraph([("draw", "report"), ("report", "all")]), {"report": "report"}))


def test_only_necessary_arrows_are_drawn_and_those_up_are_dashed() -> None:
    forward, back = split_cycles(read_rule_graph(DOT).subgraph([*GROUPS, "compare_arms"]))
    assert back == [("check_gate", "train_run")]
    assert set(forward.edges) == {
        ("merge_candidates", "build_rows"), ("build_rows", "train_run"), ("train_run", "check_gate"), ("train_run", "compare_arms"),
    }  # fmt: skip
    figure = rule_graph(read_rule_graph(DOT), GROUPS)
    assert sorted(arrows(figure)) == [(False, False)] * 4 + [(True, True)]
    assert "back to a rule that runs several times" in words(figure)


def test_the_cycle_of_a_preregistered_run_begins_with_the_run() -> None:
    cycle = ["train_run", "merge_anchor", "evaluate_arm", "preregister", "train_run"]
    graph = nx.DiGraph([*pairwise(cycle), ("train_run", "check_gate"), ("check_gate", "train_run")])
    assert split_cycles(graph)[1] == [("check_gate", "train_run"), ("preregister", "train_run")]


def test_without_a_cycle_nothing_is_said_about_one() -> None:
    figure = rule_graph(nx.DiGraph([("a", "b"), ("b", "c")]), {})
    assert arrows(figure) == [(False, False)] * 2
    assert "back to a rule that runs several times" not in words(figure)


@pytest.mark.parametrize("graph", [read_rule_graph(DOT), large(40), nx.star_graph(9, create_using=nx.DiGraph)])
def test_boxes_do_not_overlap_stay_in_the_picture_and_hold_their_names(graph: nx.DiGraph) -> None:
    graph = nx.relabel_nodes(graph, str)
    figure = rule_graph(graph, dict.fromkeys(graph, "data"))
    with house_style():
        figure.draw_without_rendering()
    extents = [box.get_window_extent() for box in boxes(figure)]
    assert len(extents) == len(graph)
    assert not any(one.overlaps(other) for one, other in combinations(extents, 2))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1 for box in extents)
    for text in figure.axes[0].texts:
        assert text.get_fontsize() >= 8
        extent = text.get_window_extent()
        if "back to" not in text.get_text():
            assert any(
                box.x0 < extent.x0 and extent.x1 < box.x1 and box.y0 < extent.y0 and extent.y1 < box.y1
                for box in extents
            )


def test_the_same_graph_gives_the_same_picture_however_it_is_ordered(tmp_path: Path) -> None:
    graph = large(25)
    turned = nx.DiGraph()
    turned.add_nodes_from(reversed(list(graph)))
    turned.add_edges_from(reversed(list(graph.edges)))
    for name, one in (("a", graph), ("b", turned)):
        save_figure(rule_graph(one, {}), tmp_path / f"{name}.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_no_rule_at_all_is_said() -> None:
    assert "names no rule" in words(rule_graph(nx.DiGraph([("all", "all")]).subgraph([]), {}))[0]

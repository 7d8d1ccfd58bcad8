"""What the pictures of the comparison show, and that nothing in them collides at any size of study."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from genselect.report.figures_evaluation import accuracy, cost, forest, strata
from genselect.report.labels import wrap_name
from genselect.report.style import house_style, save_figure

PICTURES = {"forest": forest, "accuracy": accuracy, "cost": cost, "strata": strata}
LONG = "no-explore-bonus-and-a-very-long-run-name-indeed@200"


def arm(
    name: str, value: float, shown: float, *, kind: str = "model", seeds: int = 1, exploratory: bool = False
) -> dict[str, Any]:
    return {"name": name, "kind": kind, "exploratory": exploratory, "seeds": seeds, "samples": 4, "accuracy": value,
            "standard_error": 0.02, "shown": shown}  # fmt: skip


def hypothesis(name: str, against: str, difference: float, word: str, **more: Any) -> dict[str, Any]:
    levels = [
        {
            "correct": k,
            "questions": 50 * k,
            "arm": k / 8 + 0.05,
            "reference": k / 8,
            "difference": 0.05,
            "standard_error": 0.03,
        }
        for k in range(1, 8)
    ]
    return {"name": f"{name} {against}", "arm": name, "against": against, "exploratory": False, "difference": difference,
            "interval": [difference - 0.03, difference + 0.04], "detectable": 0.05, "replicates": {"by_seed": [difference]},
            "verdict": {"word": word}, "strata": levels, **more}  # fmt: skip


def comparison(trained: int = 1, *, exploratory: bool = False, level: float = 0.6) -> dict[str, Any]:
    """A comparison with this many trained arms, the second one with a very long name."""
    votes = [arm(f"majority_{k}", 0.45 + 0.02 * k, k, kind="baseline") for k in range(1, 9)]
    fixed = [
        ("first", 0.47, 1),
        ("mean", 0.46, 1),
        ("oracle", 1.0, 8),
        ("adaptive_0.9", 0.58, 4.4),
        ("adaptive_0.95", 0.59, 5.9),
    ]
    candidates = [*(arm(*entry, kind="baseline") for entry in fixed), *votes]
    names = [LONG if number == 1 else f"run{number}@200" for number in range(trained)]
    policies = [arm(name, level + 0.004 * place, 4 + 0.1 * place, seeds=3) for place, name in enumerate(names)]
    arms = [arm("untrained", 0.5, 4), arm("untrained_selector", 0.0, 8), *policies, *candidates]
    entries = [hypothesis(name, against, gain, word) for name in names
               for against, gain, word in (("untrained", 0.1, "yes"), ("majority_8", -0.01, "cannot tell"))]  # fmt: skip
    if exploratory:
        arms.append(arm("late@100", 0.55, 5, exploratory=True))
        entries.append(hypothesis("late@100", "untrained", 0.05, "no", exploratory=True))
    costs = [
        {"arm": one["name"], "shown": one["shown"], "accuracy": one["accuracy"], "standard_error": 0.02} for one in arms
    ]
    settings = {"smallest_effect": 0.02, "level": 0.95, "power": 0.8}
    return {"settings": settings, "hypotheses": entries, "arms": arms, "cost": costs}


def texts(figure: Figure) -> list[Text]:
    """Everything that can be read, in its place."""
    with house_style():
        figure.draw_without_rendering()
    unseen: set[Text] = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            unseen |= {tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
    found = figure.findobj(lambda one: isinstance(one, Text) and one.get_visible() and bool(one.get_text().strip()))
    return [text for text in found if isinstance(text, Text) and text not in unseen]


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in texts(figure))


def marks(axes: Axes, marker: str) -> list[float]:
    return [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == marker]  # type: ignore[index]


# --- nothing collides -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("trained", [1, 2, 5])
def test_no_words_touch_or_leave_the_picture(picture: str, trained: int) -> None:
    figure = PICTURES[picture](comparison(trained, exploratory=True))
    boxes = [(text.get_text(), text.get_window_extent().padded(-0.5)) for text in texts(figure)]
    page = figure.bbox.padded(1)
    touching = [(a, b) for (a, one), (b, other) in itertools.combinations(boxes, 2) if one.overlaps(other)]
    assert not touching
    outside = [
        name
        for name, box in boxes
        if not (page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1)
    ]
    assert not outside
    assert min(text.get_fontsize() for text in texts(figure)) >= 8


@pytest.mark.parametrize("level", [0.6, 0.47])
def test_every_label_of_cost_is_within_the_axes(level: float) -> None:
    figure = cost(comparison(8, exploratory=True, level=level))
    axes = figure.axes[0]
    texts(figure)
    frame, labels = axes.get_window_extent(), axes.texts
    # 8 trained, 1 late, 2 untrained, first, oracle, 2 adaptive, 8 numbers along the curve.
    assert len(labels) == 23
    key = "\n".join(text.get_text() for text in figure.legends[0].get_texts())
    assert LONG in key.replace("\n", "")
    for label in labels:
        box = label.get_window_extent()
        assert frame.x0 <= box.x0, label.get_text()
        assert box.x1 <= frame.x1, label.get_text()
        assert frame.y0 <= box.y0, label.get_text()
        assert box.y1 <= frame.y1, label.get_text()
    # A heap: no name fits beside its mark, so letters do.
    leads = [line.get_path().transformed(line.get_transform()) for line in axes.lines if line.get_linewidth() == 0.6]
    assert leads
    crossed = [
        label.get_text()
        for label, lead in itertools.product(labels, leads)
        if lead.intersects_bbox(label.get_window_extent().padded(-1), filled=False)
    ]
    assert not crossed


def test_long_names_are_wrapped_and_lose_nothing() -> None:
    lines = wrap_name(LONG, 22).split("\n")
    assert max(map(len, lines)) <= 22
    assert "".join(lines) == LONG
    assert wrap_name("a" * 50, 22).split("\n") == ["a" * 22, "a" * 22, "a" * 6]
    assert wrap_name("formal@20 above untrained?", 44) == "formal@20 above untrained?"


# --- what they say --------------------------------------------------------------------------------------------------------


def test_forest_gives_verdict_numbers_and_what_could_have_been_seen() -> None:
    figure = forest(comparison())
    found = words(figure)
    assert "run0@200 above untrained?" in found
    assert "+10.0\n+7.0 to +14.0" in found
    assert "-1.0\n-4.0 to +3.0" in found
    assert "smaller than the 2.0 points that matter" in found
    assert "rise that would have been found with chance 80%" in found
    order = [text.get_text() for text in texts(figure) if text.get_text() in ("yes", "no", "cannot tell")]
    assert order == ["yes", "cannot tell"]
    axes = figure.axes[0]
    assert marks(axes, "o") == pytest.approx([10, -1])
    low, high = axes.get_xlim()
    assert low < -4
    assert high > 14
    assert [(patch.get_x(), patch.get_width()) for patch in axes.patches] == [(-2, 4), (-2, 4)]


def test_forest_sets_exploratory_rows_apart_and_marks_seeds() -> None:
    study = comparison(exploratory=True)
    assert "Exploratory" not in words(forest(comparison()))
    study["hypotheses"].insert(0, study["hypotheses"].pop())  # whatever the order in the file
    study["hypotheses"][1]["replicates"] = {"by_seed": [0.08, 0.12]}
    figure = forest(study)
    axes = figure.axes[0]
    hollow = {
        float(line.get_xdata()[0]): line.get_markerfacecolor() == "white"
        for line in axes.lines
        if line.get_marker() == "o"
    }  # type: ignore[index]
    assert list(hollow) == pytest.approx([10, -1, 5])
    assert list(hollow.values()) == [False, False, True]
    assert marks(axes, "x") == pytest.approx([8, 12])
    assert "one training seed" in words(figure)
    assert "they do not decide" in words(figure)


def test_accuracy_is_sorted_in_groups_under_the_ceiling() -> None:
    axes = accuracy(comparison(3, exploratory=True)).axes[0]
    names = [label.get_text().replace("\n", "") for label in axes.get_yticklabels()]
    assert names[:6] == ["trained policy", "run2@200", LONG, "run0@200", "late@100 (exploratory)", "untrained policy"]
    assert names[6:11] == ["untrained", "untrained_selector", "candidates alone", "oracle (ceiling)", "majority_8"]
    written = [text.get_text() for text in axes.texts]
    assert "60.8 ± 2.0" in written
    assert written.count("3 × 4") == 3
    ceiling = [
        line for line in axes.lines if list(line.get_xdata()) == [100.0, 100.0] and list(line.get_ydata()) == [0, 1]
    ]  # type: ignore[arg-type]
    assert ceiling


def test_a_run_named_untrained_is_a_trained_policy_all_the_same() -> None:
    study = comparison()
    study["arms"][2]["name"] = "untrained-lr@200"
    names = [label.get_text() for label in accuracy(study).axes[0].get_yticklabels()]
    assert names[:2] == ["trained policy", "untrained-lr@200"]


def test_cost_draws_the_majority_as_a_curve() -> None:
    axes = cost(comparison()).axes[0]
    curve = max(axes.lines, key=lambda line: len(line.get_xdata()))  # type: ignore[arg-type]
    assert list(curve.get_xdata()) == list(range(1, 9))  # type: ignore[arg-type]
    labels = [text.get_text() for text in axes.texts]
    assert [label for label in labels if label.isdigit()] == list("12345678")
    assert {"run0@200", "untrained", "first", "oracle", "adaptive_0.9"} <= set(labels)
    assert not [label for label in labels if label.startswith("majority")]


def test_strata_count_questions_and_have_a_panel_an_arm() -> None:
    figure = strata(comparison(3))
    assert [axes.get_title(loc="left").replace("\n", "") for axes in figure.axes] == ["run0@200", LONG, "run2@200", ""]
    bars = figure.axes[-1]
    assert [text.get_text() for text in bars.texts] == ["50", "100", "150", "200", "250", "300", "350"]
    ours = figure.axes[0].lines[0]
    assert list(ours.get_xdata()) == list(range(1, 8))  # type: ignore[arg-type]
    assert ours.get_ydata()[0] == pytest.approx(17.5)  # type: ignore[index]


def test_strata_draw_six_arms_at_most_and_say_so() -> None:
    figure = strata(comparison(6, exploratory=True))
    titles = [axes.get_title(loc="left") for axes in figure.axes[:-1]]
    assert len(titles) == 6
    assert not any("late" in title for title in titles)
    assert "not drawn: 1 more arm" in words(figure)
    assert len(strata(comparison(2, exploratory=True)).axes) == 4
    assert len(strata(comparison(9)).axes) == 7


# --- what is not there ----------------------------------------------------------------------------------------------------


def without(study: Mapping[str, Any]) -> dict[str, Any]:
    """Every figure that may be null is null."""
    study = copy.deepcopy(dict(study))
    for entry in study["hypotheses"]:
        entry.update(interval=None, detectable=None, replicates=None, verdict=None)
        for level in entry["strata"]:
            level["standard_error"] = None
    for one in [*study["arms"], *study["cost"]]:
        one["standard_error"] = None
    study["arms"][0]["accuracy"] = study["cost"][0]["accuracy"] = None
    study["hypotheses"][1]["difference"] = float("nan")
    return study


@pytest.mark.parametrize("picture", PICTURES)
def test_null_figures_are_left_out(picture: str) -> None:
    found = words(PICTURES[picture](without(comparison())))
    assert "nan" not in found
    assert "None" not in found
    if picture == "forest":
        assert "no verdict" in found
        assert "majority_8" not in found
    if picture == "accuracy":
        assert "60.0" in found
        assert "\nuntrained\n" not in found


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("nothing", [{}, {"hypotheses": [], "arms": [], "cost": []}])
def test_nothing_to_draw_is_said(picture: str, nothing: dict[str, Any]) -> None:
    figure = PICTURES[picture](nothing)
    assert not figure.axes
    assert words(figure).startswith("No ")


@pytest.mark.parametrize("picture", PICTURES)
def test_the_same_comparison_gives_the_same_bytes(picture: str, tmp_path: Path) -> None:
    for name in "ab":
        save_figure(PICTURES[picture](comparison(2)), tmp_path / f"{name}.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()

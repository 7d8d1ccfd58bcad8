"""What a reader finds in the pictures of the value models."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

sys.path.insert(0, str(Path(__file__).parent))

from run_folder import RunFolder

from genselect.report.figures_calibration import calibration, reliability
from genselect.report.run_files import read_run_files
from genselect.report.style import save_figure
from genselect.training.calibration import brier_skill, predictor_report, write_report


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "formal").attempt()


def labels(figure: Figure) -> list[str]:
    return [axes.get_ylabel().replace("\n", " ") for axes in figure.axes]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def judged(run: RunFolder, step: int, chances: list[float], outcomes: list[int], k: list[int]) -> None:
    """One step whose predictor gave these chances."""
    run.step(step)
    p = np.array(chances)
    report = predictor_report(np.log(p / (1 - p)), outcomes, k)
    write_report(run.path / "potential" / f"step_{step}.json", step, {"predictor": report})


def bars(axes: Axes) -> dict[str, float]:
    """Height by first line of the label under it."""
    names = [label.get_text() for label in axes.get_xticklabels()]
    return dict(zip(names, [bar.get_height() for bar in axes.patches], strict=True))


def test_a_run_with_both_models_shows_all_parts(run: RunFolder) -> None:
    for step in range(1, 7):
        run.step(step, **run.potential(step))
    files = read_run_files(run.path)
    figure = calibration(files)
    assert labels(figure) == ["Brier skill", "AUC", "explained variance", "Brier skill"]
    np.testing.assert_allclose(figure.axes[1].get_lines()[0].get_ydata(), files.series("predictor/auc"))
    assert {"knows the base rate only", "chance", "a constant", "Steps 5 to 6"} <= set(words(figure))


def test_parts_that_the_run_does_not_have_are_left_out(run: RunFolder) -> None:
    run.step(1, **run.potential(1, critic=False))
    assert labels(calibration(read_run_files(run.path))) == ["Brier skill", "AUC", "Brier skill"]
    other = RunFolder(run.path.with_name("no_predictor")).attempt()
    other.step(1, **other.potential(1, predictor=False))
    assert labels(calibration(read_run_files(other.path))) == ["explained variance"]
    assert any("no submit predictor" in text for text in words(reliability(read_run_files(other.path))))
    neither = RunFolder(run.path.with_name("neither")).attempt()
    neither.step(1)
    assert any("neither" in text for text in words(calibration(read_run_files(neither.path))))


def test_skill_by_k_is_of_the_last_third_pooled(run: RunFolder) -> None:
    for step in (1, 2, 3, 4):
        judged(run, step, [0.9, 0.1], [0, 1], [0, 0])  # wildly wrong, and long ago
    judged(run, 5, [0.8, 0.3, 0.6], [1, 0, 1], [0, 0, 3])
    judged(run, 6, [0.7, 0.2], [0, 0], [0, 0])
    figure = calibration(read_run_files(run.path))
    shown = bars(figure.axes[-1])
    # Step 6 alone has no skill, its outcomes being equal; the pool of both has.
    assert shown["0\n4"] == pytest.approx(brier_skill([0.8, 0.3, 0.7, 0.2], [1, 0, 0, 0]))
    assert shown["3\n1"] == 0
    assert "–" in words(figure)
    assert "Steps 5 to 6" in words(figure)


def test_one_wild_step_does_not_flatten_the_others(run: RunFolder) -> None:
    for step, skill in enumerate((0.1, -40.0, 0.2, None), start=1):
        run.step(step, predictor__brier_skill=skill)
    axes = calibration(read_run_files(run.path)).axes[0]
    assert axes.get_ylim()[0] > -1.5
    (under,) = [line for line in axes.get_lines() if line.get_marker() == "v"]
    assert under.get_xdata().tolist() == [2]
    assert "under -1" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_reliability_pools_the_first_and_the_last_third(run: RunFolder) -> None:
    judged(run, 1, [0.91, 0.93, 0.12], [0, 0, 1], [0, 0, 0])
    judged(run, 2, [0.5], [1], [0])
    judged(run, 3, [0.52], [0], [0])
    judged(run, 4, [0.5], [1], [0])
    judged(run, 5, [0.11, 0.92], [0, 1], [0, 0])
    judged(run, 6, [0.15, 0.94, 0.94], [1, 1, 1], [0, 0, 0])
    figure = reliability(read_run_files(run.path))
    top, bottom = figure.axes
    curves = {found.get_label(): found for found in top.collections}
    first, last = curves["steps 1 to 2"], curves["steps 5 to 6"]
    np.testing.assert_allclose(first.get_offsets(), [[0.12, 1], [0.5, 1], [0.92, 0]])
    np.testing.assert_allclose(last.get_offsets(), [[0.13, 0.5], [(0.92 + 2 * 0.94) / 3, 1]])
    small, large = last.get_sizes()
    assert small < large
    assert [int(bar.get_height()) for bar in bottom.patches] == [
        0,
        1,
        0,
        0,
        0,
        1,
        0,
        0,
        0,
        2,
        0,
        2,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        3,
    ]
    assert first.get_paths()[0].vertices.shape != last.get_paths()[0].vertices.shape  # told apart without colour
    assert "as often as predicted" in words(figure)


def test_reliability_of_a_single_step_is_one_curve(run: RunFolder) -> None:
    judged(run, 1, [0.3, 0.8], [0, 1], [0, 1])
    assert {"step 1"} == {text for text in words(reliability(read_run_files(run.path))) if text.startswith("step")}


def test_a_step_in_which_nothing_was_submitted_is_passed_over(run: RunFolder) -> None:
    judged(run, 1, [0.3, 0.8], [0, 1], [0, 1])
    judged(run, 2, [], [], [])
    files = read_run_files(run.path)
    assert files.potential[2]["predictor"]["overall"]["brier"] is None
    assert "Step 1" in words(calibration(files))
    assert "step 1" in words(reliability(files))


def test_the_same_run_gives_the_same_bytes(run: RunFolder, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        run.step(step, **run.potential(step))
    for name, draw in (("calibration", calibration), ("reliability", reliability)):
        for copy in "ab":
            save_figure(draw(read_run_files(run.path)), tmp_path / copy / f"{name}.svg")
        assert (tmp_path / "a" / f"{name}.svg").read_bytes() == (tmp_path / "b" / f"{name}.svg").read_bytes()

"""What a reader finds in the pictures of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

sys.path.insert(0, str(Path(__file__).parent))

from run_folder import RunFolder

from genselect.report.figures_run import explores, health, training
from genselect.report.run_files import read_run_files
from genselect.report.style import save_figure

RULES = {"kl": "alarm", "kl_repeated": "stop", "explores_all": "note", "missing": "alarm", "length_capped": "alarm"}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "formal").attempt()


@pytest.fixture
def stopped(run: RunFolder) -> RunFolder:
    """Two attempts, of which the second is stopped by a guard, and nulls in between."""
    run.line(0, val__verdict=0.5, val__rows=100.0)
    run.step(1)
    run.step(2, episode__score=None, actor__ppo_kl=None, actor__ppo_kl_max=None)
    run.attempt(resumed_from=2, ended="killed")
    run.step(3, actor__ppo_kl_max=-0.2, val__verdict=0.8, val__rows=100.0)
    run.step(4, actor__ppo_kl_max=0.3)
    return run


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def panel(figure: Figure, label: str) -> Axes:
    return next(axes for axes in figure.axes if axes.get_ylabel().startswith(label))


def lines_with(axes: Axes, marker: str) -> list[Line2D]:
    return [line for line in axes.get_lines() if line.get_marker() == marker and len(line.get_xdata())]


def steps_of(lines: Sequence[Line2D]) -> list[float]:
    return sorted(float(step) for line in lines for step in np.asarray(line.get_xdata()))


def row_of(axes: Axes, name: str) -> int:
    return [label.get_text() for label in axes.get_yticklabels()].index(name)


def test_held_out_marks_have_their_standard_error(stopped: RunFolder) -> None:
    axes = panel(training(read_run_files(stopped.path), {}), "share correct")
    (bars,) = axes.containers
    np.testing.assert_allclose(bars.lines[0].get_xydata(), [[0, 0.5], [3, 0.8]])
    ends = [segment[:, 1] for segment in bars.lines[2][0].get_segments()]
    np.testing.assert_allclose(ends, [[0.45, 0.55], [0.76, 0.84]])  # √(0.5·0.5/100) = 0.05, √(0.8·0.2/100) = 0.04


def test_levels_are_named_and_told_apart_without_colour(run: RunFolder) -> None:
    run.step(1)
    levels = {"majority of 8, held out": 0.7, "untrained, held out": 0.71}
    figure = training(read_run_files(run.path), levels)
    lines = [line for line in panel(figure, "share").get_lines() if line.get_label() in levels]
    assert {line.get_label(): line.get_ydata()[0] for line in lines} == levels
    assert set(levels) <= set(words(figure))
    assert len({str(line._dash_pattern) for line in lines}) == 2


def test_resumes_alarms_and_stops_are_where_they_happened(stopped: RunFolder) -> None:
    figure = training(read_run_files(stopped.path), {})
    axes = panel(figure, "share correct")
    assert "attempt 2" in words(figure)
    for every in figure.axes:
        assert [line for line in every.get_lines() if list(line.get_xdata()) == [2.5, 2.5]]
    assert steps_of(lines_with(axes, "^")) == [3]
    assert steps_of(lines_with(axes, "x")) == [4]


def test_attempts_close_together_share_a_name(run: RunFolder) -> None:
    run.step(1)
    for step in range(2, 41):
        if step in (20, 21, 39):
            run.attempt(step - 1, "killed")
        run.step(step)
    shown = words(training(read_run_files(run.path), {}))
    assert [text for text in shown if text.startswith("attempt")] == ["attempts 2 to 3", "attempt 4"]


def test_the_divergence_is_the_largest_mini_batchs_magnitude(stopped: RunFolder) -> None:
    axes = panel(training(read_run_files(stopped.path), {}, kl_limit=0.1), "|KL|")
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), [0.004, np.nan, 0.2, 0.3])
    assert axes.get_legend().get_texts()[0].get_text() == "guard's limit, 0.1"
    assert axes.get_yscale() == "linear"


def test_a_divergence_over_decades_has_a_logarithmic_axis(run: RunFolder) -> None:
    for step, kl in enumerate((0.0, 1e-4, 0.003, 0.4), start=1):
        run.step(step, actor__ppo_kl_max=kl)
    axes = panel(training(read_run_files(run.path), {}), "|KL|")
    assert axes.get_yscale() == "log"
    low, high = axes.get_ylim()
    assert low < 1e-4 < 0.4 < high
    # The newest finding says which limit the guard has.
    assert axes.get_legend().get_texts()[0].get_text() == "guard's limit, 0.1"


def test_panels_without_a_figure_are_left_out(run: RunFolder) -> None:
    run.step(1, actor__ppo_kl=None, actor__ppo_kl_max=None, episode__score=None)
    figure = training(read_run_files(run.path), {})
    assert [axes.get_ylabel() for axes in figure.axes] == ["share correct", "mean explores"]


def test_a_step_between_gaps_has_a_mark_of_its_own_in_a_long_run(run: RunFolder) -> None:
    for step in range(1, 61):
        run.step(step, episode__score=None if step in (30, 32) else 0.4)
    line = panel(training(read_run_files(run.path), {}), "mean score").get_lines()[0]
    assert [line.get_xdata()[place] for place in line.get_markevery()] == [31]


def test_guards_are_drawn_at_their_own_level_and_the_silent_ones_counted(stopped: RunFolder) -> None:
    stopped.proofs(1, predictor_k0=True)
    figure = health(read_run_files(stopped.path), RULES)
    axes = figure.axes[0]
    assert steps_of(lines_with(axes, "x")) == [4]  # kl_repeated
    assert steps_of(lines_with(axes, "^")) == [3, 4]  # kl spoke at the step of the stop too, and is an alarm
    assert {line.get_ydata()[0] for line in lines_with(axes, "^")} == {row_of(axes, "kl")}
    assert "3 guards silent" in words(figure)


def test_a_failed_proof_is_a_cross_in_its_row(run: RunFolder) -> None:
    for step in (1, 2, 3):
        run.step(step)
        run.proofs(step, predictor_k0=True, rollout_matches_actor=step != 2)
    figure = health(read_run_files(run.path), RULES)
    (axes,) = figure.axes
    (failed,) = lines_with(axes, "X")
    assert failed.get_xydata().tolist() == [[2, row_of(axes, "rollout_matches_actor")]]
    assert steps_of(lines_with(axes, ".")) == [1, 1, 2, 3, 3]
    assert "5 guards silent" in words(figure)


def test_many_passed_proofs_are_a_line_that_a_failure_breaks(run: RunFolder) -> None:
    for step in range(1, 61):
        run.step(step)
        run.proofs(step, predictor_k0=step != 30)
    (axes,) = health(read_run_files(run.path), RULES).axes
    assert [list(line.get_xdata()) for line in axes.get_lines()] == [[1, 29], [31, 60], [30]]


def test_shares_of_explores_are_of_each_steps_trajectories(run: RunFolder) -> None:
    for step, counts in {1: [0, 0, 2, 3], 2: [1] * 10, 4: [3, 3]}.items():
        run.step(step)
        run.records(step, counts)
    figure = explores(read_run_files(run.path))
    axes = figure.axes[0]
    (mesh,) = [found for found in axes.collections if isinstance(found, QuadMesh)]
    shares = np.ma.filled(mesh.get_array().astype(float), np.nan).reshape(4, 4)
    none = [np.nan] * 4
    np.testing.assert_allclose(shares.T, [[50, 0, 25, 25], [0, 100, 0, 0], none, [0, 0, 0, 100]])
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), [1.25, 1, np.nan, 3])
    assert "trajectories, %" in words(figure)


def test_nothing_to_draw_is_said_in_words(run: RunFolder) -> None:
    run.line(0, val__verdict=0.5, val__rows=10.0)
    files = read_run_files(run.path)
    for figure, expected in (
        (training(files, {}), "not finished a step"),
        (health(files, RULES), "no proof yet"),
        (explores(files), "no records"),
    ):
        assert not figure.axes
        assert any(expected in text for text in words(figure))


def test_the_same_run_gives_the_same_bytes(stopped: RunFolder, tmp_path: Path) -> None:
    stopped.records(1, [0, 1, 2])
    stopped.proofs(1, predictor_k0=True)
    for name, draw in (
        ("training", lambda files: training(files, {"majority of 8": 0.7})),
        ("health", lambda files: health(files, RULES)),
        ("explores", explores),
    ):
        for copy in "ab":
            save_figure(draw(read_run_files(stopped.path)), tmp_path / copy / f"{name}.svg")
        assert (tmp_path / "a" / f"{name}.svg").read_bytes() == (tmp_path / "b" / f"{name}.svg").read_bytes()

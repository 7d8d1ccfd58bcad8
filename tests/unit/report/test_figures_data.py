"""Pictures of the data stages say what the statistics say: bars as long as their counts, pieces that add up, nothing invented."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from genselect.errors import GenselectError
from genselect.formats import write_jsonl
from genselect.report.figures_data import correct_of_eight, count_correct, data_flow, labels_by_stage
from genselect.report.style import house_style, save_figure

MERGE_STATS: dict[str, Any] = {
    "rows_read": 1308, "rows_kept": 1173, "rows_refused": 12,
    "rows_dropped_by_problem_type": {"converted_proof": 43, "no_answer_extracted": 80},
    "refusals": {"count_disagrees": 5, "no_anchor": 4, "no_tail": 3},
    "solutions_read": 3951, "candidates": 3200, "duplicates": {"within_prompt": 174, "over_prompts": 577},
}  # fmt: skip
STATS: dict[str, Any] = {
    "problems_merged": 320, "problems_kept": 255, "train_rows": 153, "held_out_rows": 102,
    "problems_dropped": {"answer_pattern": 49, "too_few_candidates": 2, "too_few_correct": 10, "too_many_correct": 4, "near_duplicate": 0},
    "candidates_judged": 3173, "candidates_correct": 1573, "candidates_unjudged_dropped": 27, "candidates_too_long_set_aside": 0,
    "candidates_by_source": {"identical": 1426, "judge": 1600, "none": 27, "symbolic": 147},
    "labelling": {
        "judge_calls": 960, "judge_second_cap_calls": 10, "audit_calls": 50,
        "calls_saved": {"identical": 1426, "symbolic": 147, "shared_pair": 640},
    },
    "judge": {"kind": "vllm"},
}  # fmt: skip

Bars = list[tuple[str, float, float]]


def bars(axes: Axes) -> Bars:
    """Name, start and length of each bar, from the top."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    return [(name, bar.get_x(), bar.get_width()) for name, bar in zip(names, axes.patches, strict=True)]


def blocks(figure: Figure) -> dict[str, Bars]:
    return {axes.get_title(loc="left"): bars(axes) for axes in figure.axes}


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def check_waterfall(block: Bars, end: str) -> None:
    """The pieces between the first bar and ``end`` lead from the one to the other without a gap."""
    names = [name for name, _, _ in block]
    pieces = block[1 : names.index(end)]
    edge = block[0][2]
    for _, start, length in pieces:
        assert start + length == edge
        edge = start
    assert block[names.index(end)][1:] == (0, edge)


def test_the_flow_keeps_units_apart_and_adds_up() -> None:
    found = blocks(data_flow(MERGE_STATS, STATS))
    assert list(found) == ["Rows of the shards", "Candidate solutions", "Problems"]
    check_waterfall(found["Rows of the shards"], "kept")
    check_waterfall(found["Candidate solutions"], "distinct")
    check_waterfall(found["Problems"], "kept")
    assert [(name, length) for name, _, length in found["Rows of the shards"]] == [
        ("read", 1308), ("− type: no answer extracted", 80), ("− type: converted proof", 43), ("− refused: count disagrees", 5),
        ("− refused: no anchor", 4), ("− refused: no tail", 3), ("kept", 1173),
    ]  # fmt: skip
    assert found["Candidate solutions"][-2:] == [("− no verdict", 3173, 27), ("usable", 0, 3173)]
    # Together the two parts are as long as what was kept.
    assert found["Problems"][-2:] == [("train", 0, 153), ("held out", 153, 102)]


def test_every_count_is_written_on_its_bar() -> None:
    shown = words(data_flow(MERGE_STATS, STATS)).splitlines()
    for written in ("1,308", "80  (6.1%)", "1,173  (89.7%)", "577  (14.6%)", "255  (79.7%)", "102  (31.9%)"):
        assert written in shown
    assert not any("near duplicate" in line for line in shown)


def test_many_reasons_share_a_bar_and_still_add_up() -> None:
    refusals = {f"reason_{number}": 2 for number in range(11)}
    found = blocks(data_flow({"rows_read": 100, "rows_kept": 78, "refusals": refusals}, {}))["Rows of the shards"]
    assert len(found) == 8
    assert found[-2] == ("− refused: 6 other reasons", 78, 12)
    check_waterfall(found, "kept")


def test_what_falls_away_is_told_apart_without_colour() -> None:
    for axes in data_flow(MERGE_STATS, STATS).axes:
        fallen = {name: bar.get_hatch() for (name, _, _), bar in zip(bars(axes), axes.patches, strict=True)}
        assert all(bool(hatch) == (name.startswith("−") or name == "held out") for name, hatch in fallen.items())


@pytest.mark.parametrize("scale", [1, 300, 1_000_000])
def test_nothing_overlaps_or_is_cut_off(scale: int) -> None:
    def larger(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: larger(one) for name, one in value.items()}
        return value * scale if isinstance(value, int) else value

    counts = {split: {level: 9000 * scale + level for level in range(17)} for split in ("train", "held_out")}
    figures = (
        data_flow(larger(MERGE_STATS), larger(STATS)),
        labels_by_stage(larger(STATS)),
        correct_of_eight(counts, 16),
    )
    for figure in figures:
        with house_style():
            figure.draw_without_rendering()
        shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
        boxes = [text.get_window_extent() for text in shown]
        for text, box in zip(shown, boxes, strict=True):
            assert text.get_fontsize() >= 8
            assert box.x0 >= 0, text.get_text()
            assert box.x1 <= figure.bbox.x1, text.get_text()
        for axes in figure.axes:
            counted = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
            assert all(lower.y1 <= upper.y0 + 1 for lower, upper in pairwise(counted))


def test_what_is_missing_is_left_out() -> None:
    assert list(blocks(data_flow({}, STATS))) == ["Problems"]
    partial = blocks(data_flow({"rows_read": 10, "rows_kept": None, "rows_refused": 3}, {"problems_merged": None}))
    assert partial == {"Rows of the shards": [("read", 0, 10), ("− refused", 7, 3)]}
    assert "No counts of the data stages yet." in words(data_flow({}, {}))
    assert "No counts of labels yet." in words(labels_by_stage({}))
    assert "No problems to count yet." in words(correct_of_eight({}, 8))


def test_labels_show_stages_in_their_order_what_is_right_and_calls() -> None:
    stages, correct, calls = blocks(labels_by_stage(STATS)).values()
    assert stages == [("identical", 0, 1426), ("symbolic", 0, 147), ("judge", 0, 1600), ("no verdict", 0, 27)]
    assert correct == [("judged", 0, 3173), ("correct", 0, 1573), ("wrong", 1573, 1600)]
    assert calls == [
        ("made", 0, 960), ("of them longer second tries", 0, 10), ("of them audits", 0, 50), ("saved: identical", 0, 1426),
        ("saved: symbolic", 0, 147), ("saved: same answer asked", 0, 640),
    ]  # fmt: skip


def test_labels_without_a_seal_have_no_calls_and_a_rule_asks_no_model() -> None:
    assert "Calls of the judge" not in blocks(labels_by_stage({**STATS, "labelling": {}}))
    assert "no model to ask" in words(labels_by_stage({**STATS, "judge": {"kind": "rule"}}))
    assert "no model to ask" not in words(labels_by_stage(STATS))


def question(split: str, *correct: bool) -> dict[str, Any]:
    return {"split": split, "cached_candidates": [{"answer": "1", "is_correct": one} for one in correct]}


def test_correct_candidates_are_counted_by_split(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    lines = [question("train", True, False), question("train", True, True), question("train", False, True)]
    write_jsonl(path, [*lines, question("held_out", False, True)])
    assert count_correct(path) == {"held_out": {1: 1}, "train": {1: 2, 2: 1}}


@pytest.mark.parametrize(
    "broken", [{"cached_candidates": []}, {"split": "train"}, {"split": "train", "cached_candidates": [3]}]
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, broken: dict[str, Any]) -> None:
    write_jsonl(tmp_path / "questions.jsonl", [question("train", True), broken])
    with pytest.raises(GenselectError, match=r"questions\.jsonl, line 2"):
        count_correct(tmp_path / "questions.jsonl")


def test_splits_of_different_size_are_compared_by_shares() -> None:
    figure = correct_of_eight({"held_out": {1: 1, 3: 1}, "train": {1: 30, 2: 10, 3: 60}}, 8)
    train, held_out = figure.axes[0].containers
    assert [bar.get_width() for bar in train] == [30, 10, 60]
    assert [bar.get_width() for bar in held_out] == [50, 0, 50]
    shown = words(figure)
    for written in (
        "60.0%  (60)",
        "50.0%  (1)",
        "train: 100 problems",
        "held out: 2 problems",
        "correct candidates of 8",
    ):
        assert written in shown


def test_the_same_counts_give_the_same_picture(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_figure(data_flow(MERGE_STATS, STATS), tmp_path / f"{name}.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()

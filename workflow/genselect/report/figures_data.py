"""Pictures of the data stages: what became of the rows, who decided the labels, how many of a problem's candidates are right."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, MaxNLocator

from genselect.errors import GenselectError
from genselect.formats import SOURCES, read_jsonl
from genselect.report.style import BLACK, BLUE, GREY, LIGHT, ORANGE, SKY, empty_figure, house_style, new_figure

#: How a bar is filled, by what it stands for. Each differs from the others in lightness or hatching too.
_FILLS: dict[str, dict[str, Any]] = {
    "left": {"facecolor": BLUE, "edgecolor": BLUE},
    "away": {"facecolor": "white", "edgecolor": GREY, "hatch": "//////"},
    "part": {"facecolor": SKY, "edgecolor": BLUE},
    "held_out": {"facecolor": ORANGE, "edgecolor": BLACK, "hatch": "...."},
    "unjudged": {"facecolor": LIGHT, "edgecolor": GREY},
}
#: A block names so many reasons; the rest share a bar.
_REASONS = 6
#: Inches of a bar with its gap, and of a block's title and axis.
_BAR, _BLOCK = 0.21, 0.68
#: Of the longest bar: room at its right for the count.
_ROOM = 1.65
_SPLITS = {"train": "train", "held_out": "held out"}


@dataclass(frozen=True)
class _Bar:
    """One bar of a block: from ``start``, ``length`` long."""

    name: str
    start: float
    length: float
    fill: str


@dataclass(frozen=True)
class _Block:
    """Bars of one unit on an axis of their own."""

    title: str
    unit: str
    bars: list[_Bar]
    whole: float
    """What percentages are of."""


@house_style()
def data_flow(merge_stats: Mapping[str, Any], stats: Mapping[str, Any]) -> Figure:
    """From raw rows to kept problems: what each stage had, what fell away and why.

    Args:
        merge_stats: ``merge_stats.json``.
        stats: ``stats.json`` of the built rows.

    Returns:
        A block each for rows, candidates and problems. What either file lacks is left out.
    """
    found = (_rows_block(merge_stats), _candidates_block(merge_stats, stats), _problems_block(stats))
    return _blocks_figure([block for block in found if block], "No counts of the data stages yet.")


@house_style()
def labels_by_stage(stats: Mapping[str, Any]) -> Figure:
    """Which stage decided the candidates' labels, how many are right, and what the judge was asked.

    Args:
        stats: ``stats.json`` of the built rows. Labels that came without a seal have no counts of calls.
    """
    found = (_sources_block(stats), _correct_block(stats), _calls_block(stats))
    return _blocks_figure([block for block in found if block], "No counts of labels yet.")


def count_correct(questions: Path) -> dict[str, dict[int, int]]:
    """Problems by split and number of correct candidates, read line by line from ``questions.jsonl``.

    Returns:
        By split (``train``, ``held_out``), then by number of correct candidates: problems.

    Raises:
        GenselectError: The file is missing or a line is not a question.
    """
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for number, question in read_jsonl(questions):
        try:
            correct = sum(candidate["is_correct"] is True for candidate in question["cached_candidates"])
            counts[question["split"]][correct] += 1
        except (KeyError, TypeError) as error:
            raise GenselectError(
                f"{questions}, line {number}: not a question with a split and labelled candidates ({error})",
                "Give the questions.jsonl that build_rows wrote, or build the rows again.",
            ) from None
    return {split: dict(sorted(of_split.items())) for split, of_split in sorted(counts.items())}


@house_style()
def correct_of_eight(counts: Mapping[str, Mapping[int, int]], per_row: int) -> Figure:
    """Problems by number of correct candidates, the splits side by side.

    Args:
        counts: As :func:`count_correct` returns.
        per_row: Candidates of a problem.
    """
    # The known splits first, whatever else there is after them.
    order = [*(split for split in _SPLITS if split in counts), *sorted(counts.keys() - _SPLITS.keys())]
    splits = [split for split in order if sum(counts[split].values())]
    if not splits:
        return empty_figure("No problems to count yet.")
    present = [correct for split in splits for correct, problems in counts[split].items() if problems]
    levels = range(min(present), max(present) + 1)
    figure, (axes,) = new_figure(_BLOCK + len(levels) * (len(splits) * 0.17 + 0.1) + 0.3)
    thickness = 0.84 / len(splits)
    longest = 0.0
    for position, split in enumerate(splits):
        total = sum(counts[split].values())
        shares = [100 * counts[split].get(level, 0) / total for level in levels]
        heights = [level + (position - (len(splits) - 1) / 2) * thickness for level in levels]
        fill = _FILLS[("left", "held_out", "away", "part")[position % 4]]
        label = f"{_SPLITS.get(split, split)}: {total:,} problems"
        axes.barh(heights, shares, thickness * 0.86, label=label, linewidth=0.8, **fill)
        for height, share, level in zip(heights, shares, levels, strict=True):
            _write(axes, share, height, f"{share:.1f}%  ({counts[split].get(level, 0):,})")
        longest = max(longest, *shares)
    _scale(axes, longest)
    axes.set_ylim(levels[-1] + 0.6, levels[0] - 0.6)
    axes.set_xlabel("share of the split's problems (%), count in brackets", loc="left")
    axes.set_ylabel(f"correct candidates of {per_row}")
    axes.yaxis.set_major_locator(FixedLocator(list(levels)))
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def _rows_block(stats: Mapping[str, Any]) -> _Block | None:
    if not stats.get("rows_read"):
        return None
    fallen = {f"type: {_words(name)}": rows for name, rows in _largest(stats.get("rows_dropped_by_problem_type"))}
    refused = {f"refused: {_words(name)}": rows for name, rows in _largest(stats.get("refusals"))}
    fallen |= refused or {"refused": stats.get("rows_refused") or 0}
    return _waterfall(
        "Rows of the shards", "rows", ("read", stats["rows_read"]), fallen, ("kept", stats.get("rows_kept"))
    )


def _candidates_block(merge_stats: Mapping[str, Any], stats: Mapping[str, Any]) -> _Block | None:
    duplicates = merge_stats.get("duplicates") or {}
    distinct = merge_stats.get("candidates")
    if not distinct:
        return None
    repeats = {
        "same in one prompt": duplicates.get("within_prompt"),
        "known from another row": duplicates.get("over_prompts"),
    }
    read = merge_stats.get("solutions_read")
    start = ("in kept rows", read) if read else ("distinct", distinct)
    block = _waterfall("Candidate solutions", "candidates", start, repeats, ("distinct", distinct))
    aside = {
        "no verdict": stats.get("candidates_unjudged_dropped"),
        "too long": stats.get("candidates_too_long_set_aside"),
    }
    usable = distinct - sum(value or 0 for value in aside.values())
    if usable != distinct:
        block.bars.extend(_waterfall("", "", ("", distinct), aside, ("usable", usable)).bars[1:])
    return block


def _problems_block(stats: Mapping[str, Any]) -> _Block | None:
    merged = stats.get("problems_merged")
    if not merged:
        return None
    fallen = {_words(reason): problems for reason, problems in _largest(stats.get("problems_dropped"))}
    block = _waterfall("Problems", "problems", ("merged", merged), fallen, ("kept", stats.get("problems_kept")))
    train, held_out = stats.get("train_rows"), stats.get("held_out_rows")
    if train is not None:
        block.bars.append(_Bar("train", 0, train, "part"))
    if held_out is not None:
        block.bars.append(_Bar("held out", train or 0, held_out, "held_out"))
    return block


def _waterfall(
    title: str, unit: str, start: tuple[str, float], fallen: Mapping[str, float | None], end: tuple[str, float | None]
) -> _Block:
    """A bar for what there was, each piece that fell away at the end of what was left then, and a bar for what stayed."""
    bars = [_Bar(*_spread(start), "left")]
    left = start[1]
    for name, amount in fallen.items():
        if amount:
            left -= amount
            bars.append(_Bar(f"− {name}", left, amount, "away"))
    if end[1] is not None and end[0] != start[0]:
        bars.append(_Bar(*_spread((end[0], end[1])), "left"))
    return _Block(title, unit, bars, start[1])


def _spread(named: tuple[str, float]) -> tuple[str, float, float]:
    return named[0], 0, named[1]


def _sources_block(stats: Mapping[str, Any]) -> _Block | None:
    by_source = {name: value for name, value in (stats.get("candidates_by_source") or {}).items() if value}
    if not by_source:
        return None
    order = [*(name for name in SOURCES if name in by_source), *sorted(by_source.keys() - set(SOURCES))]
    bars = [
        _Bar("no verdict", 0, by_source[name], "away") if name == "none" else _Bar(name, 0, by_source[name], "left")
        for name in order
    ]
    return _Block("Candidates by the stage that decided", "candidates", bars, sum(by_source.values()))


def _correct_block(stats: Mapping[str, Any]) -> _Block | None:
    judged, correct = stats.get("candidates_judged"), stats.get("candidates_correct")
    if not judged or correct is None:
        return None
    bars = [_Bar("judged", 0, judged, "left"), _Bar("correct", 0, correct, "part")]
    bars.append(_Bar("wrong", correct, judged - correct, "unjudged"))
    return _Block("Right and wrong among the judged", "candidates", bars, judged)


def _calls_block(stats: Mapping[str, Any]) -> _Block | None:
    labelling = stats.get("labelling") or {}
    made, saved = labelling.get("judge_calls"), labelling.get("calls_saved") or {}
    if made is None or not (made or any(saved.values())):
        return None
    bars = [_Bar("made", 0, made, "left")]
    for name, words in {"judge_second_cap_calls": "longer second tries", "audit_calls": "audits"}.items():
        if labelling.get(name):
            bars.append(_Bar(f"of them {words}", 0, labelling[name], "part"))
    known = {"identical": "identical", "symbolic": "symbolic", "shared_pair": "same answer asked"}
    bars += [
        _Bar(f"saved: {known.get(name, _words(name))}", 0, calls, "away") for name, calls in saved.items() if calls
    ]
    kind = (stats.get("judge") or {}).get("kind")
    unit = "calls (judge kind rule: no model to ask)" if kind == "rule" else "calls"
    return _Block("Calls of the judge", unit, bars, made + sum(saved.values()))


def _largest(counts: Mapping[str, int] | None) -> list[tuple[str, int]]:
    """The largest counts, largest first; small ones beyond :data:`_REASONS` as one."""
    ordered = sorted(
        ((name, count) for name, count in (counts or {}).items() if count), key=lambda item: (-item[1], item[0])
    )
    if len(ordered) <= _REASONS:
        return ordered
    rest = ordered[_REASONS - 1 :]
    return [*ordered[: _REASONS - 1], (f"{len(rest)} other reasons", sum(count for _, count in rest))]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _blocks_figure(blocks: list[_Block], nothing: str) -> Figure:
    if not blocks:
        return empty_figure(nothing)
    heights = [len(block.bars) * _BAR + _BLOCK for block in blocks]
    figure, every = new_figure(sum(heights), rows=len(blocks), height_ratios=[len(block.bars) for block in blocks])
    for axes, block in zip(every, blocks, strict=True):
        _draw(axes, block)
    return figure


def _draw(axes: Axes, block: _Block) -> None:
    longest = max(bar.start + bar.length for bar in block.bars) or 1
    for height, bar in enumerate(block.bars):
        axes.barh(height, bar.length, 0.72, left=bar.start, linewidth=0.8, **_FILLS[bar.fill])
        share = f"  ({_percent(bar.length, block.whole)})" if block.whole and bar.length not in (0, block.whole) else ""
        _write(axes, bar.start + bar.length, height, f"{bar.length:,}{share}")
    for before, after in _joints(block.bars):
        end = block.bars[after].start + block.bars[after].length
        axes.plot([end, end], [before + 0.36, after - 0.36], color=GREY, linewidth=0.8)
    axes.set_title(block.title, pad=4)
    _scale(axes, longest)
    axes.set_ylim(len(block.bars) - 0.4, -0.6)
    axes.set_xlabel(block.unit, loc="left")
    axes.yaxis.set_major_locator(FixedLocator(list(range(len(block.bars)))))
    axes.set_yticklabels([bar.name for bar in block.bars])
    axes.tick_params(axis="y", length=0, labelsize=8, labelcolor=BLACK)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _joints(bars: list[_Bar]) -> Iterator[tuple[int, int]]:
    """Neighbours of which the lower one begins where the upper one's piece ended: what fell away, and what was left then."""
    for position in range(1, len(bars)):
        upper, lower = bars[position - 1], bars[position]
        start = upper.start if upper.fill == "away" else upper.start + upper.length
        if upper.fill in ("left", "away") and lower.fill == "away" and lower.start + lower.length == start:
            yield position - 1, position


def _scale(axes: Axes, longest: float) -> None:
    """The x axis ends with the longest bar; right of it is room for the counts, which are no part of the scale."""
    axes.set_xlim(0, longest * _ROOM)
    axes.spines["bottom"].set_bounds(0, longest)
    ticks = MaxNLocator(4, integer=True).tick_values(0, longest)
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if 0 <= tick <= longest]))


def _percent(part: float, whole: float) -> str:
    share = 100 * part / whole
    return "<0.1%" if 0 < share < 0.05 else f"{share:.1f}%"


def _write(axes: Axes, end: float, height: float, words: str) -> None:
    axes.annotate(words, (end, height), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8, color=BLACK)

"""The page: verdict first, pictures inside, nothing that a name could break."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest

from genselect.errors import GenselectError
from genselect.plan import report as picturebook
from genselect.report.page import caption, render_page
from genselect.report.style import empty_figure, save_figure

PICTURES = [picturebook.RULES, *picturebook.DATA, *picturebook.RUN, *picturebook.EVALUATION]


def arm(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "accuracy": 0.5, "standard_error": 0.01, "shown": 2.0, "submitted": None, "follow_majority": 0.5,
            "minority_recovery": None, "majority_kept": 0.9, "recoverable_questions": 12, "exploratory": False, **more}  # fmt: skip


def hypothesis(name: str, word: str, *, exploratory: bool = False) -> dict[str, Any]:
    return {"arm": name, "against": "untrained", "exploratory": exploratory, "questions": 1234,
            "arm_accuracy": 0.61, "against_accuracy": 0.5,
            "replicates": {"note": "One training seed."}, "verdict": {"word": word, "sentence": f"The sentence about {name}."}}  # fmt: skip


def facts(**changes: Any) -> dict[str, Any]:
    """What a finished miniature would give, made up."""
    run = {"name": "formal", "kind": "formal", "seed": 1, "steps": 20, "planned": 20,
           "attempts": ["attempt 1: killed", "attempt 2: done, from step 5"],
           "verdict": (0.5, 0.8), "held_out": [0.5, 0.75], "explores": (4.0, 2.0), "worst": "alarm", "spoke": 1,
           "findings": ["step 7, alarm: kl"], "seconds": "8 min"}  # fmt: skip
    values: dict[str, Any] = {
        "name": "mini",
        "generated": "2026-01-01 00:00 UTC",
        "comparison": {
            "hypotheses": [hypothesis("formal@20", "yes"), hypothesis("late@5", "no", exploratory=True)],
            "preregistered": "2026-01-01T00:00:00+00:00",
            "settings": {"smallest_effect": 0.05},
            "waived_gates": {},
            "arms": [arm("formal@20"), arm("untrained"), arm("late@5", exploratory=True)],
        },
        "stats": {"problems_kept": 255, "problems_merged": 320, "train_rows": 153, "held_out_rows": 102, "val_rows_online": 102,
                  "judge": {"kind": "rule", "model": None, "fingerprint": "0123456789abcdef"},
                  "upstream_agreement": {"rows": 1173, "agree": 1162, "disagree": 0, "not_judged": 11}},
        "runs": [run],
        "curves": [("formal", "formal")],
        "gates": [{"name": "smoke", "kind": "smoke", "passed": True, "waived": None, "failed": [],
                   "checks": [{"check": "proof predictor_k0", "passed": True, "message": "largest std 1e-7"}]}],
        "differences": [{"run": "dear", "base": "formal", "changes": ["reward.cost_per_explore: 0.02 -> 0.2"]}],
        "pictures": picturebook,
        "times": [{"job": "train_run/formal", "seconds": 480.0, "time": "8 min", "memory": None}],
        "provenance": [{"what": "comparison.json", "when": "2026-01-01 00:00", "commit": "abcdef012345", "dirty": True, "lock": "0123",
                        "host": "node7", "cards": ["H200"], "packages": {"verl": "0.9.1"}}],
        "settings": "results: results\n",
    }  # fmt: skip
    return {**values, **changes}


@pytest.fixture
def figures(tmp_path: Path) -> Path:
    folder = tmp_path / "figures"
    for one in PICTURES:
        home = folder / "formal" if one in picturebook.RUN else folder
        save_figure(empty_figure(one.title), home / f"{one.name}.svg")
    return folder


def page(figures: Path, **changes: Any) -> str:
    output = figures.parent / "index.html"
    render_page(facts(**changes), figures, output)
    return output.read_text(encoding="utf-8")


@pytest.mark.parametrize("one", PICTURES, ids=lambda one: one.name)
def test_every_picture_has_a_caption_that_reads_as_a_paragraph(one) -> None:
    words = caption(one.name)
    assert words.startswith("<p>")
    assert len(words.striptags()) > 60
    assert "system-message" not in words


def test_a_picture_without_a_caption_is_an_error() -> None:
    with pytest.raises(GenselectError, match="the picture nothing has no caption"):
        caption("nothing")


def test_the_verdict_stands_before_every_picture(figures) -> None:
    text = page(figures)
    assert text.index("formal@20 above untrained?") < text.index("<figure>")
    assert "The sentence about formal@20." in text
    assert "1,234 held-out questions" in text


def test_every_picture_is_inside_and_can_be_had_as_svg_and_png(figures) -> None:
    text = page(figures)
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', text)
    assert len(pictures) == len(PICTURES)
    assert all(b"<svg" in base64.b64decode(coded) for coded in pictures)
    links = re.findall(r'<a href="(figures/[^"]+)"', text)
    assert len(links) == 2 * len(PICTURES)
    assert all((figures.parent / link).exists() for link in links)
    # The page needs nothing else: it can be mailed.
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', text)


def test_exploratory_comparisons_stand_apart_from_the_verdict(figures) -> None:
    text = page(figures)
    verdict = text[text.index('id="verdict"') : text.index('id="evaluation"')]
    assert "late@5" not in verdict
    assert "Exploratory: late@5 above untrained?" in text


def test_a_waived_gate_is_told_with_its_reason_beside_the_verdict(figures) -> None:
    comparison = {**facts()["comparison"], "waived_gates": {"overfit": "one seed <b>fell</b> short"}}
    gate = {"name": "overfit", "kind": "overfit", "passed": False, "waived": "one seed fell short", "failed": [1],
            "checks": [{"check": "the training verdict rises", "passed": False, "message": "+0.100, wanted +0.200"}]}  # fmt: skip
    text = page(figures, comparison=comparison, gates=[gate])
    verdict = text[text.index('id="verdict"') : text.index('id="evaluation"')]
    assert "The gate overfit was waived:" in verdict
    # Reasons are the user's text, not markup.
    assert "one seed &lt;b&gt;fell&lt;/b&gt; short" in verdict
    assert "waived,\n0 of 1 checks. Reason: one seed fell short" in text
    assert "+0.100, wanted +0.200" in text


def test_attempts_findings_and_differences_are_told(figures) -> None:
    text = page(figures)
    for words in ("attempt 1: killed; attempt 2: done, from step 5", "step 7, alarm: kl", "reward.cost_per_explore: 0.02 -&gt; 0.2",
                  "50.0 % → 80.0 %", "with uncommitted changes"):  # fmt: skip
        assert words in text


def test_without_a_formal_run_the_page_says_that_nothing_was_compared(figures) -> None:
    text = page(figures, comparison=None)
    assert "No run is formal, so nothing was compared." in text
    assert 'evaluation"' not in text


def test_a_missing_picture_is_named(figures) -> None:
    (figures / "forest.svg").unlink()
    with pytest.raises(GenselectError, match=r"forest\.svg: the picture is missing"):
        page(figures)

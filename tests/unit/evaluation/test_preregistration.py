"""What was fixed before stays fixed: edits and other settings are refused with old and new, additions are labelled."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import planted
import pytest

from genselect.errors import GenselectError
from genselect.evaluation import check, make_hypothesis, make_settings, preregister, read_preregistration
from genselect.formats import read_json, write_json
from genselect.provenance import file_sha256, read_seal, seal_path


def settings(**more: Any) -> dict[str, Any]:
    arms, questions, _ = planted.study(20)
    return planted.settings_of(arms, questions, **more)


def written(tmp_path: Path, **more: Any) -> Path:
    path = tmp_path / "preregistration.json"
    preregister(path, settings(**more), {"above_untrained": planted.MINIMUM, "above_majority": planted.MINIMUM})
    return path


def test_it_holds_what_was_fixed_and_its_time(tmp_path: Path) -> None:
    path = written(tmp_path)
    values = read_preregistration(path)
    assert values["hypotheses"][0] == {
        "name": "above_untrained", "arm": "trained", "against": "untrained", "family": "primary",
    }  # fmt: skip
    assert values["minimum_detectable"]["above_majority"]["difference"] == 0.05
    assert values["alpha"] == 0.05
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", values["written"])
    seal = read_seal(path)
    assert seal is not None
    assert seal.kind == "preregistration"
    assert seal.fingerprints["judge"] == planted.JUDGE


def test_the_same_settings_pass(tmp_path: Path) -> None:
    check(read_preregistration(written(tmp_path)), settings())


def test_every_difference_is_named_old_and_new(tmp_path: Path) -> None:
    values = read_preregistration(written(tmp_path))
    changed = settings(
        alpha=0.1, judge_fingerprint="b" * 64, seeds={"training": [1, 2], "tie_break": 3, "bootstrap": 5, "draw": 7}
    )
    changed["samples"]["trained"] = 8
    with pytest.raises(GenselectError) as caught:
        check(values, changed)
    text = str(caught.value)
    assert "4 key(s) differ, preregistered -> now" in text
    assert "alpha: 0.05 -> 0.1" in text
    assert "samples.trained: 2 -> 8" in text
    assert "seeds.training: [1] -> [1, 2]" in text
    assert "judge_fingerprint: 'aaaa" in text


def test_another_arm_in_a_hypothesis_is_a_difference(tmp_path: Path) -> None:
    values = read_preregistration(written(tmp_path))
    swapped = settings(
        hypotheses=[
            make_hypothesis("above_untrained", "trained", "first"),
            make_hypothesis("above_majority", "trained", "majority_8"),
        ]
    )
    with pytest.raises(GenselectError, match=r"hypotheses.above_untrained.against: 'untrained' -> 'first'"):
        check(values, swapped)
    dropped = settings(hypotheses=[make_hypothesis("above_untrained", "trained", "untrained")])
    with pytest.raises(GenselectError, match=r"hypotheses.above_majority: .* -> \(absent\)"):
        check(values, dropped)


def test_additions_pass_only_as_exploratory(tmp_path: Path) -> None:
    values = read_preregistration(written(tmp_path))
    arms, questions, _ = planted.study(20)
    arms["late"] = arms["trained"]
    extra = make_hypothesis("late_above", "late", "untrained")
    check(values, planted.settings_of(arms, questions, exploratory=["late"], samples=2, exploratory_hypotheses=[extra]) | {
        "samples": values["samples"]
    })  # fmt: skip
    with pytest.raises(GenselectError, match=r"arms.late: \(absent\) -> 'listed'") as caught:
        check(values, planted.settings_of(arms, questions))
    assert "belongs under exploratory" in caught.value.hint


def test_an_edited_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    values = read_json(path)
    values["smallest_effect"] = 0.001
    write_json(path, values)
    with pytest.raises(GenselectError, match="edited after it was sealed") as caught:
        read_preregistration(path)
    assert "preregister again and run the formal run anew" in caught.value.hint


def test_a_file_that_only_looks_other_is_refused_too(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text() + "\n")
    with pytest.raises(GenselectError, match="edited after it was sealed"):
        read_preregistration(path)


def test_an_edited_file_whose_checksum_was_edited_too_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    write_json(path, {**read_json(path), "alpha": 0.2})
    seal = read_json(seal_path(path))
    seal["outputs"][0]["sha256"] = file_sha256(path)
    write_json(seal_path(path), seal)
    with pytest.raises(GenselectError, match="edited after it was sealed"):
        read_preregistration(path)


def test_without_its_seal_it_is_nothing(tmp_path: Path) -> None:
    path = written(tmp_path)
    seal_path(path).unlink()
    with pytest.raises(GenselectError, match="has no seal"):
        read_preregistration(path)


def test_writing_the_same_again_keeps_the_time_and_another_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = path.read_bytes()
    written(tmp_path)
    assert path.read_bytes() == before
    with pytest.raises(GenselectError, match=r"power: 0\.8 -> 0\.9"):
        written(tmp_path, power=0.9)
    assert path.read_bytes() == before


def test_nothing_exploratory_can_be_preregistered_and_each_hypothesis_needs_its_effect(tmp_path: Path) -> None:
    minimum = {"above_untrained": planted.MINIMUM}
    with pytest.raises(GenselectError, match="above_majority"):
        preregister(tmp_path / "p.json", settings(), minimum)
    with pytest.raises(GenselectError, match="exploratory additions"):
        preregister(
            tmp_path / "p.json",
            settings(exploratory_hypotheses=[make_hypothesis("x", "first", "mean")]),
            {**minimum, "above_majority": planted.MINIMUM},
        )
    assert not (tmp_path / "p.json").exists()


def test_settings_that_make_no_sense_are_refused_together() -> None:
    good = settings()
    common = {
        name: copy.deepcopy(good[name])
        for name in ("hypotheses", "arms", "questions", "population_sha256", "samples", "seeds", "judge_fingerprint")
    }
    common["hypotheses"][0]["arm"] = "nobody"
    with pytest.raises(GenselectError) as caught:
        make_settings(**common, smallest_effect=0, test="anova")
    for problem in ("above_untrained names nobody, which is no arm", "smallest_effect is 0", "test is anova"):
        assert problem in caught.value.message

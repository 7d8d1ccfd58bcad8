"""Advice comes in order, and following it makes the run fit."""

from __future__ import annotations

import re
from dataclasses import replace

from small_model import even, settings, trained

from genselect.memory import Architecture
from genselect.memory.advice import KINDS, advise
from genselect.memory.predict import GIB, Prediction, predict
from genselect.memory.report import as_text
from genselect.memory.settings import Layout, Settings


def foresee(architecture: Architecture, chosen: Settings, card: int) -> Prediction:
    return predict(architecture, chosen, Layout(8), card, context=0, caches_kept=False, activations=even)


def test_budgets_come_first_and_offloading_last(small: Architecture) -> None:
    given = [advice.kind for advice in advise(foresee(small, settings(), 1 << 20), "formal")]
    assert given == sorted(given, key=KINDS.index)
    assert given[0] == "token budgets"
    assert given[-1] == "offload"
    assert KINDS[0] == "token budgets"
    assert KINDS[-1] == "offload"


def test_the_budget_that_is_named_fits(small: Architecture) -> None:
    chosen = settings(trained("actor"), trained("critic", budget=64 * 1024), share=0.05)
    card = 20 << 20
    over = foresee(small, chosen, card)
    assert over.worst.name == "update_critic"
    first = advise(over, "formal")[0]
    found = re.match(r"runs\.formal\.tokens\.critic_budget: (\d+) ", first.text)
    assert found, first.text
    fitting = int(found[1])
    mended = replace(chosen, models=(chosen.models[0], replace(chosen.models[1], budget=fitting)))
    assert foresee(small, mended, card).worst.total <= over.usable
    more = replace(chosen, models=(chosen.models[0], replace(chosen.models[1], budget=fitting + 2048)))
    assert foresee(small, more, card).worst.total > over.usable


def test_a_budget_below_the_longest_row_is_never_advised(small: Architecture) -> None:
    for advice in advise(foresee(small, settings(), 1 << 20), "formal"):
        if advice.kind == "token budgets":
            assert int(re.search(r"_budget: (\d+)", advice.text)[1]) >= 512  # type: ignore[index]


def test_an_engine_that_holds_no_row_asks_for_a_larger_share(small: Architecture) -> None:
    prediction = foresee(small, settings(share=0.001), 1000 << 20)
    assert not prediction.fits
    assert advise(prediction, "formal")[0].kind == "engine's share"


def test_a_run_that_fits_is_told_so_and_nothing_else(small: Architecture) -> None:
    prediction = foresee(small, settings(), GIB)
    assert prediction.fits
    assert advise(prediction, "formal") == []
    text = as_text(prediction, "formal")
    assert "\nfits: peak" in text
    assert "What to change" not in text

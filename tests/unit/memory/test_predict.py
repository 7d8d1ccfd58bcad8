"""Stages add up, and move the way that settings push them."""

from __future__ import annotations

from typing import Any

import pytest
from small_model import even, settings, trained

from genselect.errors import GenselectError
from genselect.memory import Architecture, all_weights
from genselect.memory.predict import Prediction, Stage, predict
from genselect.memory.settings import Layout, Settings

CARD = 100 * 2**20
CONTEXT = 1000


def foresee(
    architecture: Architecture, chosen: Settings | None = None, layout: str = "8", **changes: Any
) -> Prediction:
    options = {"context": CONTEXT, "activations": even, **changes}
    return predict(architecture, chosen or settings(), Layout.parse(layout), CARD, **options)


def stage(prediction: Prediction, name: str, cards: str = "train") -> Stage:
    return next(stage for stage in prediction.stages if (stage.name, stage.cards) == (name, cards))


def test_an_update_adds_up_to_what_a_hand_adds_up(small: Architecture) -> None:
    found = stage(foresee(small, caches_kept=False), "update_critic")
    weights = all_weights(small, "value", 8)
    trained_shards = sum(-(-w.shape[0] // 8) * (w.count // w.shape[0]) for w in weights if w.trained)
    shards = sum(-(-w.shape[0] // 8) * (w.count // w.shape[0]) for w in weights)
    assert found.parts["weights"] == 4 * shards
    assert found.parts["moments"] == 8 * trained_shards
    assert found.parts["gradients"] == 4 * trained_shards
    assert found.parts["activations"] == (512 + 511 + 510 + 509) * 1000  # verl must not get rows of one length
    layers = [sum(w.count for w in weights if w.group == f"layers.{n}") for n in range(4)]
    adapters = [sum(w.count for w in weights if w.group == f"layers.{n}" and w.trained) for n in range(4)]
    root = 64 + 64 + 1  # the last norm, and the head with its bias
    assert found.parts["gathered"] == 2 * (3 * max(layers) + root) + 6 * max(adapters)
    assert found.parts["contexts"] == 3 * CONTEXT  # actor and critic, predictor, engine
    assert found.total == sum(found.parts.values())


def test_the_rollout_has_the_engines_share_beside_the_models_at_rest(small: Architecture) -> None:
    prediction = foresee(small, caches_kept=False)
    found, update = stage(prediction, "rollout"), stage(prediction, "update_critic")
    assert found.parts["engine"] == CARD // 2
    at_rest = found.parts["other models"]
    assert at_rest == update.parts["weights"] + update.parts["moments"] + update.parts["other models"]


@pytest.mark.parametrize(
    "name", ["log_probs", "values", "predictions", "update_actor", "update_critic", "update_predictor"]
)
def test_more_tokens_take_more(small: Architecture, name: str) -> None:
    def of(budget: int) -> int:
        models = (trained(name, budget=budget) for name in ("actor", "critic", "predictor"))
        return stage(foresee(small, settings(*models)), name).total

    assert of(1024) < of(2048) < of(4096)


def test_a_higher_rank_takes_more_and_more_cards_take_less(small: Architecture) -> None:
    def actor(rank: int, layout: str) -> int:
        return stage(foresee(small, settings(trained("actor", rank=rank)), layout), "update_actor").total

    assert actor(8, "8") < actor(32, "8")
    assert actor(8, "8") < actor(8, "4") < actor(8, "1")
    one = foresee(small, settings(trained("actor")), "1")
    two = foresee(small, settings(trained("actor")), "2")
    # Every first dimension here divides by two, but for the value heads that an actor has not.
    assert stage(one, "update_actor").parts["weights"] == 2 * stage(two, "update_actor").parts["weights"]


def test_cards_apart_have_no_engine_beside_the_trainer(small: Architecture) -> None:
    prediction = foresee(small, layout="4+3+1")
    assert all("engine" not in s.parts for s in prediction.stages if s.cards == "train")
    assert stage(prediction, "rollout", "rollout").total == CARD // 2
    assert stage(prediction, "weight_sync", "rollout").parts["buffers"] == 2 * (1 << 20)
    assert stage(prediction, "update_actor").parts["contexts"] == 2 * CONTEXT
    assert [s.name for s in prediction.stages if s.cards == "judge"] == ["judge"]


def test_what_the_predictors_process_keeps_the_critic_cannot_have(small: Architecture) -> None:
    kept, emptied = foresee(small, caches_kept=True), foresee(small)
    predictor = stage(kept, "update_predictor")
    working = sum(predictor.parts[name] for name in ("gradients", "gathered", "activations"))
    assert stage(kept, "update_critic").parts["cached elsewhere"] == working
    assert stage(kept, "rollout").total - stage(emptied, "rollout").total == working
    # By the time the predictor learns, the critic has looked but not learnt.
    assert predictor.parts["cached elsewhere"] < stage(kept, "update_critic").parts["activations"]


def test_offloaded_models_are_not_on_the_card_when_others_compute(small: Architecture) -> None:
    away = trained("critic", offload_weights=True, offload_optimiser=True)
    prediction = foresee(small, settings(trained("actor"), away))
    actor_alone = foresee(small, settings(trained("actor")))
    assert stage(prediction, "rollout").total == stage(actor_alone, "rollout").total
    assert stage(prediction, "update_critic").parts["weights"] > 0


def test_a_row_longer_than_the_budget_is_computed_whole(small: Architecture) -> None:
    assert stage(foresee(small, settings(trained("actor", budget=100))), "update_actor").tokens == 512


@pytest.mark.parametrize("text", ["", "0", "eight", "4+", "4+0", "4+3+1+1", "-4"])
def test_a_layout_that_is_none_says_how_to_write_one(text: str) -> None:
    with pytest.raises(GenselectError, match="is not a layout"):
        Layout.parse(text)

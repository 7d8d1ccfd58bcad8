"""What to change first when a run does not fit: settings that cost nothing but smaller steps first, offloading last."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from genselect.memory.predict import GIB, Prediction, Stage
from genselect.memory.settings import TrainedModel

#: In this order. Each frees memory at a price that those before it do not have.
KINDS = ("token budgets", "engine's share", "switches", "row length", "sequence parallel", "more cards", "offload")
_ENGINE_STEP = 0.05
_TOKENS = 1024


@dataclass(frozen=True)
class Advice:
    """One change."""

    kind: str
    """Of :data:`KINDS`."""
    setting: str
    """The key that it changes."""
    value: float | None
    """What a number is to be at most; None for what is no number."""
    text: str


def advise(prediction: Prediction, run: str) -> list[Advice]:
    """Changes to ``run`` for every stage that takes too much, in the order of :data:`KINDS`; empty when all fits.

    Token budgets that would fit are computed, for activations grow evenly with tokens; each is meant by itself. Where two stages ask
    the same setting to be lowered, the lower one stands.
    """
    found: list[Advice] = []
    if prediction.engine.rows < 1:
        found += _for_rows(prediction, run)
    for stage in prediction.stages:
        if stage.cards != "judge" and stage.total > prediction.usable:
            found += _for_stage(prediction, stage, run)
    strictest: dict[str, Advice] = {}
    for advice in found:
        known = strictest.get(advice.setting)
        if known is None or (advice.value or 0) <= (known.value or 0):
            strictest[advice.setting] = advice
    return sorted(strictest.values(), key=lambda advice: KINDS.index(advice.kind))


def _for_stage(prediction: Prediction, stage: Stage, run: str) -> Iterator[Advice]:
    if stage.model and stage.tokens:
        yield from _for_model(prediction, stage, prediction.settings.model(stage.model), run)
    elif stage.name == "rollout":
        share = prediction.settings.engine.share - (stage.total - prediction.usable) / prediction.card
        fitting = math.floor(share / _ENGINE_STEP) * _ENGINE_STEP
        if fitting > 0:
            yield _engine_share(f"{fitting:.2f} (now {prediction.settings.engine.share:.2f})", run, fitting)
    if stage.cards == "train":
        key = f"runs.{run}.cards"
        yield Advice(
            "more cards", key, None, f"{key}: more than {prediction.layout.train} cut weights and moments smaller"
        )
        yield from _offload(prediction, run)


def _engine_share(text: str, run: str, value: float) -> Advice:
    key = f"runs.{run}.verl.actor_rollout_ref.rollout.gpu_memory_utilization"
    return Advice("engine's share", key, value, f"{key}: {text}")


def _for_model(prediction: Prediction, stage: Stage, model: TrainedModel, run: str) -> Iterator[Advice]:
    assert stage.tokens is not None
    fixed = stage.total - stage.per_token * stage.tokens
    fitting = math.floor((prediction.usable - fixed) / stage.per_token / _TOKENS) * _TOKENS if stage.per_token else 0
    longest = prediction.settings.longest
    key = f"runs.{run}.tokens.{model.name}_budget"
    if model.packed and longest <= fitting < model.budget:
        then = (fixed + stage.per_token * fitting) / GIB
        text = f"{key}: {fitting} (now {model.budget}; {stage.name} then takes {then:.1f} GiB)"
        yield Advice("token budgets", key, fitting, text)
    elif model.budget > longest:
        text = f"{key}: {longest} (now {model.budget}), the longest row: a lower one changes nothing, and {stage.name} needs more"
        yield Advice("token budgets", key, longest, text)
    yield from _switches(model, run)
    if fitting < longest:
        yield from _long_rows(prediction, stage, model, run, fitting)


def _switches(model: TrainedModel, run: str) -> Iterator[Advice]:
    where = "actor_rollout_ref" if model.name == "actor" else "critic"
    wanted = {
        f"runs.{run}.tokens.packing": model.packed,
        f"runs.{run}.verl.{where}.model.enable_gradient_checkpointing": model.checkpointing,
        f"runs.{run}.verl.actor_rollout_ref.model.use_fused_kernels": model.fused_head or model.head == "value",
    }
    for key, given in wanted.items():
        if not given:
            yield Advice("switches", key, None, f"{key}: true")


def _long_rows(prediction: Prediction, stage: Stage, model: TrainedModel, run: str, fitting: int) -> Iterator[Advice]:
    if fitting > 0:
        key = f"runs.{run}.tokens.response"
        text = (
            f"{key}: prompt and response of at most {fitting} tokens (now {prediction.settings.longest}): a row longer than the "
            f"budget is computed whole all the same ({stage.name})"
        )
        yield Advice("row length", key, fitting, text)
    key = f"{_engine_of(model, run)}.ulysses_sequence_parallel_size"
    text = f"{key}: {2 * model.sequence_parallel} (each row over so many cards; {stage.name})"
    yield Advice("sequence parallel", key, None, text)


def _engine_of(model: TrainedModel, run: str) -> str:
    """The predictor's is the critic's."""
    return f"runs.{run}.verl.{'actor_rollout_ref.actor.fsdp_config' if model.name == 'actor' else 'critic.fsdp'}"


def _offload(prediction: Prediction, run: str) -> Iterator[Advice]:
    offloads = {"optimizer_offload": "offload_optimiser", "param_offload": "offload_weights"}
    for option, given in offloads.items():
        for model in prediction.settings.models:
            if not getattr(model, given):
                key = f"{_engine_of(model, run)}.{option}"
                yield Advice("offload", key, None, f"{key}: true (to the host's memory and back in every stage)")


def _for_rows(prediction: Prediction, run: str) -> Iterator[Advice]:
    engine = prediction.engine
    share = math.ceil((engine.weights + engine.working + engine.row) / prediction.card / _ENGINE_STEP) * _ENGINE_STEP
    if share < 1:
        yield _engine_share(f"{share:.2f} at least: the engine's cache must hold one row of the longest length", run, 0)
    key = f"runs.{run}.tokens.response"
    yield Advice("row length", key, 0, f"{key}: shorter, so that one row fits into the engine's cache")

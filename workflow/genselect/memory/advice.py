"""What to change first when a run does not fit: settings that cost nothing but smaller steps first, offloading last."""

from __future__ import annotations

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
    text: str


def advise(prediction: Prediction, run: str) -> list[Advice]:
    """Changes to ``run`` for every stage that takes too much, in the order of :data:`KINDS`; empty when all fits.

    Token budgets that would fit are computed, for activations grow evenly with tokens; each is meant by itself.
    """
    found: list[Advice] = []
    for stage in prediction.stages:
        if stage.cards != "judge" and stage.total > prediction.usable:
            found += _for_stage(prediction, stage, run)
    if prediction.engine.rows < 1:
        found += _for_rows(prediction, run)
    unique = list(dict.fromkeys(found))
    return sorted(unique, key=lambda advice: KINDS.index(advice.kind))


def _for_stage(prediction: Prediction, stage: Stage, run: str) -> Iterator[Advice]:
    over = stage.total - prediction.usable
    if stage.model and stage.tokens:
        model = prediction.settings.model(stage.model)
        yield from _for_model(prediction, stage, model, run)
    elif stage.parts.get("engine"):
        share = prediction.settings.engine.share - over / prediction.card
        fitting = int(share / _ENGINE_STEP) * _ENGINE_STEP
        if fitting > 0:
            yield Advice(
                "engine's share",
                f"runs.{run}.verl: {{actor_rollout_ref.rollout.gpu_memory_utilization: {fitting:.2f}}} "
                f"(now {prediction.settings.engine.share:.2f}; {stage.name} on the {stage.cards} cards)",
            )
    if stage.cards == "train":
        yield Advice("more cards", f"runs.{run}.cards: more than {prediction.layout.train} cut weights and moments smaller")
        yield from _offload(prediction, stage, run)


def _for_model(prediction: Prediction, stage: Stage, model: TrainedModel, run: str) -> Iterator[Advice]:
    where = "actor_rollout_ref" if model.name == "actor" else "critic"
    assert stage.tokens is not None
    fixed = stage.total - stage.per_token * stage.tokens
    fitting = int((prediction.usable - fixed) / stage.per_token / _TOKENS) * _TOKENS if stage.per_token else 0
    longest = prediction.settings.longest
    if model.packed and longest <= fitting < model.budget:
        yield Advice(
            "token budgets",
            f"runs.{run}.tokens.{model.name}_budget: {fitting} (now {model.budget}; {stage.name} then takes "
            f"{(fixed + stage.per_token * fitting) / GIB:.1f} GiB)",
        )
    elif model.budget > longest:
        yield Advice(
            "token budgets",
            f"runs.{run}.tokens.{model.name}_budget: {longest} (now {model.budget}), the longest row; a lower one changes nothing, "
            f"and {stage.name} needs more than this",
        )
    if not model.packed:
        yield Advice("switches", f"runs.{run}.tokens.packing: true (padded rows are computed to the length of the longest)")
    if not model.checkpointing:
        yield Advice("switches", f"runs.{run}.verl: {{{where}.model.enable_gradient_checkpointing: true}}")
    if not model.fused_head and model.head == "policy":
        yield Advice("switches", f"runs.{run}.verl: {{actor_rollout_ref.model.use_fused_kernels: true}}")
    if fitting < longest:
        if fitting > 0:
            yield Advice(
                "row length",
                f"runs.{run}.tokens: prompt + response of at most {fitting} (now {longest}): a row longer than the budget is computed "
                f"whole all the same ({stage.name})",
            )
        engine = "actor_rollout_ref.actor.fsdp_config" if model.name == "actor" else "critic.fsdp"
        yield Advice(
            "sequence parallel",
            f"runs.{run}.verl: {{{engine}.ulysses_sequence_parallel_size: {2 * model.sequence_parallel}}} cuts each row over so many "
            f"cards ({stage.name})",
        )


def _offload(prediction: Prediction, stage: Stage, run: str) -> Iterator[Advice]:
    for model in prediction.settings.models:
        if model.name == "predictor":
            continue  # its settings are the critic's
        engine = "actor_rollout_ref.actor.fsdp_config" if model.name == "actor" else "critic.fsdp"
        for key, done in (("optimizer_offload", model.offload_optimiser), ("param_offload", model.offload_weights)):
            if not done:
                yield Advice(
                    "offload", f"runs.{run}.verl: {{{engine}.{key}: true}} (to the host's memory and back in every stage; last)"
                )


def _for_rows(prediction: Prediction, run: str) -> Iterator[Advice]:
    engine = prediction.engine
    need = (engine.weights + engine.working + engine.row) / prediction.card
    if need < 1:
        share = -(-need // _ENGINE_STEP) * _ENGINE_STEP
        yield Advice(
            "engine's share",
            f"runs.{run}.verl: {{actor_rollout_ref.rollout.gpu_memory_utilization: {share:.2f}}} at least: the engine's cache must "
            "hold one row of the longest length",
        )
    yield Advice("row length", f"runs.{run}.tokens.response: shorter, so that a row fits into the engine's cache")

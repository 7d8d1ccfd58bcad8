"""Bytes on each kind of card, stage by stage.

A training card holds, all the time, its cut of every trained model's weights and of Adam's moments. A stage adds what its model gathers
and computes, or the engine. What an allocator has once taken, it keeps until it is told otherwise, and another process on the card cannot
have it: verl tells the process of actor and critic once a step, before weights are sent, and nobody tells the predictor's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from genselect.memory.architecture import Architecture
from genselect.memory.engine import EngineMemory, engine_memory
from genselect.memory.settings import Layout, Settings, TrainedModel
from genselect.memory.weights import FLOAT, all_weights
from genselect.training.memory_check import Budget, row_lengths

GIB = 2**30
#: Cards by name: GiB in all, as ``nvidia-smi`` tells (143,771 and 81,559 MiB).
CARDS = {"H200": 143_771 / 1024, "H100": 81_559 / 1024}
#: Share of a card that must stay free: what the gate asks of a memory check.
FREE = 0.1
#: Share of its card that ``vllm serve`` takes unless told otherwise (0.32; the judge's server).
_JUDGE_SHARE = 0.92

#: Stages of a step on the training cards, in order, by the model they compute.
_STEP = {
    "log_probs": "actor",
    "predictions": "predictor",
    "values": "critic",
    "update_predictor": "predictor",
    "update_critic": "critic",
    "update_actor": "actor",
}
_ACTOR_CRITIC = "actor and critic"


@dataclass(frozen=True)
class Stage:
    """One stage on one kind of card."""

    name: str
    cards: str
    """``train``, ``rollout`` or ``judge``."""
    model: str | None
    """The model that computes."""
    tokens: int | None
    """In its micro-batch, on one card."""
    parts: Mapping[str, int]
    """Bytes by what they are for."""
    per_token: float = 0.0
    """Bytes that one more token would add."""

    @property
    def total(self) -> int:
        """Bytes."""
        return sum(self.parts.values())

    @property
    def process(self) -> int:
        """Bytes of the process that computes: what its allocator's peak is to be compared with."""
        return sum(size for part, size in self.parts.items() if part not in _OTHERS)


#: Not of the process that computes.
_OTHERS = ("other models", "engine", "cached elsewhere", "contexts")


@dataclass(frozen=True)
class Prediction:
    """Of a run in a layout."""

    architecture: Architecture
    settings: Settings
    layout: Layout
    card: int
    """Bytes of a card."""
    engine: EngineMemory
    stages: tuple[Stage, ...]

    @property
    def usable(self) -> int:
        """Bytes of a card that a stage may take."""
        return int(self.card * (1 - FREE))

    @property
    def worst(self) -> Stage:
        """The stage that takes most."""
        return max(self.stages, key=lambda stage: stage.total if stage.cards != "judge" else 0)

    @property
    def fits(self) -> bool:
        """Every stage leaves a tenth of its card free, and the engine holds a row of the longest length."""
        return self.worst.total <= self.usable and self.engine.rows >= 1


@dataclass(frozen=True)
class ModelMemory:
    """What one trained model takes of one card, whatever the tokens."""

    weights: int
    moments: int
    gradients: int
    gathered: int
    """Weights in the type of the computation: the layer at work, the next one, and the copy in between; and what no layer holds."""
    largest: int
    """Its largest tensor, whole, in the type that is kept: gathered when weights are sent."""


def model_memory(architecture: Architecture, model: TrainedModel, cards: int) -> ModelMemory:
    """Of ``model`` over ``cards`` cards (FSDP2 as verl wraps it: each layer, the embeddings, the head; the rest together)."""
    weights = all_weights(architecture, model.head, model.rank)
    trained = sum(weight.shard(cards) for weight in weights if weight.trained)
    groups: dict[str, int] = {}
    for weight in weights:
        # A tied head's weights are the root's, and counted as the head's.
        if not (weight.name == "embed_tokens.weight" and architecture.tie_word_embeddings and model.head == "policy"):
            groups[weight.group] = groups.get(weight.group, 0) + weight.count
    layers = {group: count for group, count in groups.items() if group not in ("root", "embed_tokens", "lm_head")}
    held = 3 * max(layers.values()) if model.reshard else sum(layers.values())
    trained_by_layer = {
        group: sum(weight.count for weight in weights if weight.trained and weight.group == group) for group in layers
    }
    # Gradients of a layer stand whole, and once more in 32 bits, while they are summed over the cards.
    summed = max(trained_by_layer.values()) * (model.computed_bytes + FLOAT)
    return ModelMemory(
        weights=model.kept_bytes * sum(weight.shard(cards) for weight in weights),
        moments=2 * model.kept_bytes * trained,
        gradients=model.kept_bytes * trained,
        gathered=model.computed_bytes * (held + groups["root"]) + summed,
        largest=model.kept_bytes * max(weight.count for weight in weights),
    )


#: Bytes of a forward and backward, and of a forward alone, of a model over rows of so many tokens.
Activations = Callable[[Architecture, TrainedModel, tuple[int, ...], bool], int]


def predict(
    architecture: Architecture,
    settings: Settings,
    layout: Layout,
    card: int,
    *,
    context: int = GIB,
    caches_kept: bool = False,
    activations: Activations | None = None,
) -> Prediction:
    """What every stage takes of every kind of card.

    Args:
        architecture: The model's.
        settings: The run's.
        layout: Which cards do what.
        card: Bytes of a card.
        context: Bytes that each process has on a card besides tensors (CUDA context, communication, workspaces). Assumed, not computed.
        caches_kept: Allocators keep what another process on the card then lacks, as in verl's own engines; ours give it back
            (``genselect.training.engines``).
        activations: Instead of torch's tracker, for tests.
    """
    card_of = _Card(architecture, settings, layout, context, caches_kept, activations or tracked)
    engines = max(1, (layout.rollout or layout.train) // settings.engine.tensor_parallel)
    engine = engine_memory(architecture, settings.engine, settings.model("actor").rank, card, engines)
    return Prediction(architecture, settings, layout, card, engine, tuple(card_of.stages(engine, card)))


def tracked(architecture: Architecture, model: TrainedModel, rows: tuple[int, ...], training: bool) -> int:
    """Activation bytes by torch's tracker (imports torch and transformers)."""
    from genselect.memory.activations import Shape, forward_activations, training_activations

    # Ulysses: each card takes its part of every row.
    rows = tuple(-(-row // model.sequence_parallel) for row in rows)
    tied = architecture.tie_word_embeddings
    shape = Shape(
        architecture,
        model.head,
        model.rank,
        rows,
        packed=model.packed,
        checkpointing=model.checkpointing,
        fused_head=model.fused_head,
        number_bytes=model.computed_bytes,
        head_bytes=model.computed_bytes if tied else model.kept_bytes,
    )
    return (training_activations if training else forward_activations)(shape).peak


@dataclass
class _Card:
    """A training card, as the step goes over it."""

    architecture: Architecture
    settings: Settings
    layout: Layout
    context: int
    caches_kept: bool
    activations: Activations
    memories: dict[str, ModelMemory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for model in self.settings.models:
            self.memories[model.name] = model_memory(self.architecture, model, self.layout.train)

    def stages(self, engine: EngineMemory, card: int) -> Iterable[Stage]:
        computed = {name: self._computed(name, _STEP[name]) for name in _STEP if _STEP[name] in self.memories}
        predictor = max((self._working(computed[name]) for name in computed if _STEP[name] == "predictor"), default=0)
        yield from self._rollout(engine, predictor)
        ours = [self._working(computed[name]) for name in computed if _STEP[name] != "predictor"]
        # verl empties the cache of actor and critic when it sends weights to an engine on the same card.
        taken = 0 if self.layout.colocated else max(ours)
        for name, parts in computed.items():
            model = self.settings.model(_STEP[name])
            mine = model.process == _ACTOR_CRITIC
            # The predictor's allocator has what its last step took; actor's and critic's what this step took so far.
            cached = predictor if mine else taken
            taken = max(taken, self._working(parts)) if mine else taken
            tokens = sum(self._rows(model))
            yield Stage(name, "train", model.name, tokens, self._whole(parts, cached), parts["activations"] / tokens)
        yield from self._weight_sync(engine, predictor)
        # Saves go from the cut weights to memory and disk, a tensor at a time.
        yield Stage("save", "train", None, None, self._whole({}, predictor))
        for _ in range(min(1, self.layout.judge)):
            yield Stage("judge", "judge", None, None, {"engine": int(_JUDGE_SHARE * card)})

    def _rows(self, model: TrainedModel) -> tuple[int, ...]:
        return tuple(row_lengths(Budget(model.budget, 1, self.settings.longest)))

    def _computed(self, stage: str, name: str) -> dict[str, int]:
        """What the stage's model has on the card, cut weights and moments included."""
        model, memory = self.settings.model(name), self.memories[name]
        training = stage.startswith("update")
        parts = {
            "weights": memory.weights,
            "moments": memory.moments if training or not model.offload_optimiser else 0,
            "gradients": memory.gradients if training else 0,
            "gathered": memory.gathered,
            "activations": self.activations(self.architecture, model, self._rows(model), training),
        }
        others = [other for other in self.settings.models if other is not model]
        parts["other models"] = sum(self._resting(other) for other in others)
        return parts

    def _resting(self, model: TrainedModel) -> int:
        memory = self.memories[model.name]
        return (0 if model.offload_weights else memory.weights) + (0 if model.offload_optimiser else memory.moments)

    @staticmethod
    def _working(parts: Mapping[str, int]) -> int:
        return parts["gradients"] + parts["gathered"] + parts["activations"]

    def _whole(self, parts: Mapping[str, int], cached: int) -> dict[str, int]:
        """With what stands on the card whatever the stage."""
        whole = dict(parts) or {"other models": sum(self._resting(model) for model in self.settings.models)}
        whole["cached elsewhere"] = cached if self.caches_kept else 0
        processes = len({model.process for model in self.settings.models}) + self.layout.colocated
        whole["contexts"] = processes * self.context
        return whole

    def _rollout(self, engine: EngineMemory, predictor: int) -> Iterable[Stage]:
        if self.layout.colocated:
            yield Stage("rollout", "train", None, None, {"engine": engine.share, **self._whole({}, predictor)})
        else:
            # vLLM's share holds its own context.
            yield Stage("rollout", "rollout", None, None, {"engine": engine.share})

    def _weight_sync(self, engine: EngineMemory, predictor: int) -> Iterable[Stage]:
        """One tensor after another is gathered and sent through a buffer; the first time all weights, for the engine starts without."""
        settings, actor = self.settings.engine, self.settings.model("actor")
        largest = self.memories["actor"].largest
        # Merged weights are cast before they are sent.
        gathered = largest + (largest * settings.number_bytes // actor.kept_bytes if settings.merged else 0)
        standing = self._whole({}, predictor)
        if self.layout.colocated:
            parts = {"engine": engine.weights, "gathered": gathered, "buffers": settings.bucket, **standing}
            yield Stage("weight_sync", "train", "actor", None, parts)
        else:
            # Two buffers, one filled while the other goes out (verl, nccl_checkpoint_engine).
            buffers = {"buffers": 2 * settings.bucket}
            yield Stage("weight_sync", "train", "actor", None, {"gathered": gathered, **buffers, **standing})
            yield Stage("weight_sync", "rollout", None, None, {"engine": engine.share, **buffers})

"""A small architecture, settings like the formal run's, and activations that need no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from genselect.memory import Architecture
from genselect.memory.settings import Engine, Layout, Settings, TrainedModel

CONFIG: dict[str, Any] = {
    "tie_word_embeddings": False,
    "text_config": {
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
}


def trained(name: str, **changes: Any) -> TrainedModel:
    model = TrainedModel(
        name=name,
        head="policy" if name == "actor" else "value",
        budget=1024,
        rank=8,
        kept_bytes=4,
        computed_bytes=2,
        checkpointing=True,
        reshard=True,
        packed=True,
        fused_head=True,
        sequence_parallel=1,
        offload_weights=False,
        offload_optimiser=False,
    )
    return replace(model, **changes)


def engine(**changes: Any) -> Engine:
    settings = Engine(
        share=0.5,
        sleeps=True,
        number_bytes=2,
        tensor_parallel=1,
        rows_at_once=256,
        batched_tokens=512,
        longest=512,
        episodes=64,
        merged=False,
        bucket=1 << 20,
    )
    return replace(settings, **changes)


def settings(*models: TrainedModel, **changes: Any) -> Settings:
    chosen = models or (trained("actor"), trained("critic", budget=2048), trained("predictor"))
    return Settings(models=chosen, engine=engine(**changes), longest=512, layout=Layout(8))


def even(_: Architecture, model: TrainedModel, rows: tuple[int, ...], training: bool) -> int:
    """A thousand bytes a token to train, a hundred to look."""
    return sum(rows) * (1000 if training else 100) // model.sequence_parallel

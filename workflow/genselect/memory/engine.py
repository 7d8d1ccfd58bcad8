"""What the rollout engine does with its share of a card: weights, working memory, and rows it holds at once.

vLLM takes ``gpu_memory_utilization`` of the card whatever is needed; what its weights and one forward leave is cache. So the question is
not what it takes but how many rows fit into what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

from genselect.memory.architecture import FULL, LINEAR, Architecture
from genselect.memory.settings import Engine
from genselect.memory.weights import adapter_weights, all_weights

_LOGIT_BYTES = 4


@dataclass(frozen=True)
class EngineMemory:
    """Bytes on a card, unless said otherwise."""

    share: int
    """All of it."""
    weights: int
    """The model's, vision tower included, and one set of adapters when those are sent instead of merged weights."""
    working: int
    """A forward of ``max_num_batched_tokens`` and the logits of ``max_num_seqs`` rows: a lower bound of what vLLM profiles."""
    row: int
    """One row of the longest length: keys and values, and the linear-attention state."""
    state: int
    """Of that, the state, whatever the row's length."""
    wanted: int
    """Rows that an engine may play at once."""

    @property
    def cache(self) -> int:
        """What is left for rows; negative when not even the weights fit."""
        return self.share - self.weights - self.working

    @property
    def rows(self) -> float:
        """Longest rows that the cache holds."""
        return max(0, self.cache) / self.row


def engine_memory(architecture: Architecture, engine: Engine, rank: int, card: int, engines: int) -> EngineMemory:
    """Of one card of an engine.

    Args:
        architecture: The model's.
        engine: The engine's settings.
        rank: Of the adapters.
        card: Bytes of the card.
        engines: Engines that share a step's episodes.
    """
    parts = engine.tensor_parallel
    numbers = sum(weight.count for weight in all_weights(architecture, "policy"))
    if rank and not engine.merged:
        numbers += adapter_weights(architecture, rank)
    state = state_bytes(architecture, engine.number_bytes) // parts
    return EngineMemory(
        share=int(engine.share * card),
        weights=engine.number_bytes * numbers // parts,
        working=_working(architecture, engine) // parts,
        row=key_value_bytes(architecture, engine.number_bytes) * engine.longest // parts + state,
        state=state,
        wanted=min(engine.rows_at_once, -(-engine.episodes // engines)),
    )


def key_value_bytes(architecture: Architecture, number_bytes: int) -> int:
    """Of one token, over the full-attention layers: a key and a value a head."""
    layers = architecture.layer_types.count(FULL)
    return layers * 2 * architecture.num_key_value_heads * architecture.head_dim * number_bytes


def state_bytes(architecture: Architecture, number_bytes: int) -> int:
    """Of one row, over the linear-attention layers: the last inputs of the convolution, and a matrix a head.

    Shapes: vLLM's ``MambaStateShapeCalculator.gated_delta_net_state_shape``.
    """
    convolution = architecture.convolved_size * (architecture.linear_conv_kernel_dim - 1) * number_bytes
    matrices = (
        architecture.linear_num_value_heads * architecture.linear_value_head_dim * architecture.linear_key_head_dim
    )
    return architecture.layer_types.count(LINEAR) * (convolution + matrices * architecture.state_bytes)


def _working(architecture: Architecture, engine: Engine) -> int:
    hidden, inner = architecture.hidden_size, architecture.intermediate_size
    forward = engine.batched_tokens * (2 * hidden + 3 * inner) * engine.number_bytes
    return forward + engine.rows_at_once * architecture.vocab_size * 2 * _LOGIT_BYTES

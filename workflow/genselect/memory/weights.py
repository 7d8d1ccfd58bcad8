"""Every weight by name and shape, which of them an adapter joins, and what FSDP leaves of them on a card.

The lists are checked against transformers' own model in ``tests/unit/memory``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from genselect.memory.architecture import LINEAR, Architecture, Vision

#: ``policy`` has an output for every token of the vocabulary, ``value`` a single one (critic and submit predictor).
Head = Literal["policy", "value"]

#: Bytes of a 32-bit float: what verl keeps weights, gradients and Adam's two moments in.
FLOAT = 4


@dataclass(frozen=True)
class Weight:
    """One tensor of weights."""

    name: str
    shape: tuple[int, ...]
    group: str
    """What FSDP gathers together: a layer, ``embed_tokens``, ``lm_head``, or ``root`` for the rest."""
    linear: bool = False
    """A linear layer's matrix (outputs, inputs), which ``target_modules: all-linear`` gives an adapter."""
    trained: bool = False

    @property
    def count(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)

    def shard(self, cards: int) -> int:
        """Numbers of it on one card: FSDP2 cuts the first dimension, and pads it."""
        return -(-self.shape[0] // cards) * math.prod(self.shape[1:])


def all_weights(architecture: Architecture, head: Head, rank: int = 0) -> list[Weight]:
    """Weights of a model, with its adapters and head.

    Args:
        architecture: The model's.
        head: Of the policy, or of a value model.
        rank: Of the adapters; 0 for none, and then everything is trained.
    """
    base = list(_base(architecture, head))
    if not rank:
        return [Weight(weight.name, weight.shape, weight.group, weight.linear, True) for weight in base]
    adapters = [adapter for weight in base if weight.linear for adapter in _adapter(weight, rank)]
    # A value model's head is new, so it is trained whole.
    return [
        *(Weight(w.name, w.shape, w.group, w.linear, w.name.startswith("score.")) for w in base),
        *adapters,
    ]


def adapter_weights(architecture: Architecture, rank: int) -> int:
    """Numbers in the adapters of one model (LoRA, Hu et al. 2021: rank × (inputs + outputs) a matrix)."""
    return sum(weight.count for weight in all_weights(architecture, "policy", rank) if weight.trained)


def save_bytes(architecture: Architecture, head: Head, rank: int) -> int:
    """Bytes of one model's save, all ranks together: the trained weights and Adam's two moments of them, in 32 bits."""
    return 3 * FLOAT * sum(weight.count for weight in all_weights(architecture, head, rank) if weight.trained)


def _adapter(weight: Weight, rank: int) -> Iterator[Weight]:
    outputs, inputs = weight.shape
    name = weight.name.removesuffix(".weight")
    yield Weight(f"{name}.lora_A.weight", (rank, inputs), weight.group, trained=True)
    yield Weight(f"{name}.lora_B.weight", (outputs, rank), weight.group, trained=True)


def _base(architecture: Architecture, head: Head) -> Iterator[Weight]:
    hidden, vocabulary = architecture.hidden_size, architecture.vocab_size
    # Tied embeddings are not a group of their own (verl, fsdp_utils._select_fsdp2_wrap_targets).
    yield Weight(
        "embed_tokens.weight", (vocabulary, hidden), "root" if architecture.tie_word_embeddings else "embed_tokens"
    )
    for number, kind in enumerate(architecture.layer_types):
        yield from _layer(architecture, kind, f"layers.{number}")
    yield Weight("norm.weight", (hidden,), "root")
    if architecture.vision:
        yield from _vision(architecture.vision)
    if head == "value":
        yield Weight("score.weight", (1, hidden), "root")
        yield Weight("score.bias", (1,), "root")
    elif not architecture.tie_word_embeddings:
        yield Weight("lm_head.weight", (vocabulary, hidden), "lm_head")


def _layer(architecture: Architecture, kind: str, name: str) -> Iterator[Weight]:
    hidden, inner = architecture.hidden_size, architecture.intermediate_size

    def linear(part: str, outputs: int, inputs: int) -> Weight:
        return Weight(f"{name}.{part}.weight", (outputs, inputs), name, linear=True)

    def other(part: str, *shape: int) -> Weight:
        return Weight(f"{name}.{part}", shape, name)

    if kind == LINEAR:
        values, heads = architecture.linear_value_size, architecture.linear_num_value_heads
        yield linear("linear_attn.in_proj_qkv", architecture.convolved_size, hidden)
        yield linear("linear_attn.in_proj_z", values, hidden)
        yield linear("linear_attn.in_proj_b", heads, hidden)
        yield linear("linear_attn.in_proj_a", heads, hidden)
        yield linear("linear_attn.out_proj", hidden, values)
        yield other("linear_attn.conv1d.weight", architecture.convolved_size, 1, architecture.linear_conv_kernel_dim)
        yield other("linear_attn.dt_bias", heads)
        yield other("linear_attn.A_log", heads)
        yield other("linear_attn.norm.weight", architecture.linear_value_head_dim)
    else:
        queries = architecture.num_attention_heads * architecture.head_dim
        keys = architecture.num_key_value_heads * architecture.head_dim
        # Half of q_proj's outputs gate the attention's.
        yield linear("self_attn.q_proj", 2 * queries, hidden)
        yield linear("self_attn.k_proj", keys, hidden)
        yield linear("self_attn.v_proj", keys, hidden)
        yield linear("self_attn.o_proj", hidden, queries)
        yield other("self_attn.q_norm.weight", architecture.head_dim)
        yield other("self_attn.k_norm.weight", architecture.head_dim)
    yield linear("mlp.gate_proj", inner, hidden)
    yield linear("mlp.up_proj", inner, hidden)
    yield linear("mlp.down_proj", hidden, inner)
    yield other("input_layernorm.weight", hidden)
    yield other("post_attention_layernorm.weight", hidden)


def _vision(vision: Vision) -> Iterator[Weight]:
    size, inner = vision.hidden_size, vision.intermediate_size
    patch = (vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    yield Weight("visual.patch_embed.proj.weight", (size, *patch), "root")
    yield Weight("visual.patch_embed.proj.bias", (size,), "root")
    yield Weight("visual.pos_embed.weight", (vision.num_position_embeddings, size), "visual.pos_embed")
    for number in range(vision.depth):
        yield from _with_biases(
            f"visual.blocks.{number}",
            f"visual.blocks.{number}",
            {
                "attn.qkv": (3 * size, size),
                "attn.proj": (size, size),
                "mlp.linear_fc1": (inner, size),
                "mlp.linear_fc2": (size, inner),
            },
            {"norm1": size, "norm2": size},
        )
    merged = size * vision.spatial_merge_size**2
    matrices = {"linear_fc1": (merged, merged), "linear_fc2": (vision.out_hidden_size, merged)}
    yield from _with_biases("visual.merger", "root", matrices, {"norm": size})


def _with_biases(
    name: str, group: str, matrices: dict[str, tuple[int, int]], norms: dict[str, int]
) -> Iterator[Weight]:
    for part, shape in matrices.items():
        yield Weight(f"{name}.{part}.weight", shape, group, linear=True)
        yield Weight(f"{name}.{part}.bias", (shape[0],), group)
    for part, size in norms.items():
        yield Weight(f"{name}.{part}.weight", (size,), group)
        yield Weight(f"{name}.{part}.bias", (size,), group)

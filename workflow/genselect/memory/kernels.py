"""Stand-ins for what runs on cards only: they make and keep the tensors that the kernels make and keep, without values.

Each follows the named source's allocations, line by line; local names live as long as there. They compute nothing, so they serve a memory
tracker alone. ``tests/unit/memory`` holds their kept bytes against hand arithmetic; on a card ``docs/benchmarks/memory_estimate.py``
holds the whole against the allocator.
"""

# torch has no types here (pyproject.toml), so its classes are Any to mypy.
# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

#: Of the gated delta rule (fla 0.5.2, ``chunk_gated_delta_rule``).
CHUNK = 64
#: Tokens whose logits verl's fused head computes at once (``FusedLinearForPPO``).
HEAD_CHUNK = 512


class GatedDeltaRule(torch.autograd.Function):
    """flash-linear-attention 0.5.2, ``fla/ops/gated_delta_rule/chunk.py``; shapes (batch, time, heads, size)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, strength: Tensor) -> Tensor:
        """Keeps normalised queries and keys, their norms, values, decay, strength, and a chunk × chunk matrix a chunk."""
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        query, query_norm = torch.empty_like(query), torch.empty_like(decay, dtype=torch.float32)
        key, key_norm = torch.empty_like(key), torch.empty_like(decay, dtype=torch.float32)
        decay = torch.empty_like(decay)
        inside = value.new_empty(*key.shape[:3], CHUNK)
        w, u = torch.empty_like(key), torch.empty_like(value)
        states, new = _states(key, value), torch.empty_like(u)
        output = torch.empty_like(new)
        ctx.save_for_backward(query, query_norm, key, key_norm, value, decay, strength, inside)
        del w, u, states
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        """Makes the states of all chunks again, and their gradients."""
        query, _, key, _, value, decay, strength, _ = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        w, u = torch.empty_like(key), torch.empty_like(value)
        states, new = _states(key, value), torch.empty_like(u)
        d_value = torch.empty_like(gradient)
        d_states, d_value = _states(key, value), torch.empty_like(d_value)
        d_query, d_key, d_w = torch.empty_like(query), torch.empty_like(key), torch.empty_like(w)
        d_decay = torch.empty_like(decay)
        again = torch.empty_like(key)
        d_value, d_strength, d_decay_again = (
            torch.empty_like(value),
            torch.empty_like(strength),
            torch.empty_like(decay),
        )
        del again, d_decay_again, states, new, d_states, d_w
        d_query, d_key = torch.empty_like(d_query), torch.empty_like(d_key)
        return d_query, d_key, d_value, d_decay, d_strength


def _states(key: Tensor, value: Tensor) -> Tensor:
    """One matrix a chunk and head (``chunk_gated_delta_rule_fwd_h``)."""
    batch, time, heads, size = key.shape
    return key.new_empty(batch, -(-time // CHUNK), heads, size, value.shape[-1])


def gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **_: Any
) -> tuple[Tensor, None]:
    """Takes the place of a layer's ``chunk_gated_delta_rule``."""
    return GatedDeltaRule.apply(query, key, value, g, beta), None


class FlashAttention(torch.autograd.Function):
    """flash-attn 2.8, ``flash_attn_varlen_func`` with grouped keys; shapes (time, heads, size)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Keeps its inputs, the output, and a number a token and head."""
        output = torch.empty_like(query)
        sums = query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, sums)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        """Sums the queries' gradient in 32 bits, and keys' and values' for every query head."""
        query, key, value, _, sums = ctx.saved_tensors
        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        rows = torch.empty_like(sums)
        summed = torch.empty_like(query, dtype=torch.float32)
        d_key_heads, d_value_heads = torch.empty_like(query), torch.empty_like(query)
        del rows, summed, d_key_heads, d_value_heads
        return d_query, d_key, d_value


def flash_attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **_: Any) -> tuple[Tensor, None]:
    """Takes the place of transformers' ``flash_attention_forward``: (batch, heads, time, size) in, (batch, time, heads, size) out."""
    rows, _, time, _ = query.shape
    flat = [part.transpose(1, 2).flatten(0, 1) for part in (query, key, value)]
    output = FlashAttention.apply(*flat)
    return output.unflatten(0, (rows, time)), None


class GatedNorm(torch.autograd.Function):
    """flash-linear-attention 0.5.2, ``fla/modules/fused_norm_gate.py``."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, gate: Tensor) -> Tensor:
        """Keeps both inputs and a number a row."""
        ctx.save_for_backward(hidden, gate, hidden.new_empty(len(hidden), dtype=torch.float32))
        return torch.empty_like(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        """A gradient for each."""
        hidden, gate, _ = ctx.saved_tensors
        return torch.empty_like(hidden), torch.empty_like(gate)


class NormStandIn(torch.nn.Module):
    """Takes the place of a layer's ``FusedRMSNormGated``."""

    def forward(self, hidden: Tensor, gate: Tensor) -> Tensor:
        """Shapes (rows, size)."""
        normed: Tensor = GatedNorm.apply(hidden.contiguous(), gate.contiguous())
        return normed


def convolution(lengths: Sequence[int]) -> Any:
    """verl's convolution of packed rows without the causal-conv1d package (``_packed_causal_conv1d_fallback``), one row after another.

    Not a stand-in: it computes. ``lengths`` are the rows', in order.
    """

    def convolve(x: Tensor, weight: Tensor, bias: Any, activation: str, seq_idx: Any = None) -> Tensor:
        channels, kernel = weight.shape
        rows = [
            functional.silu(
                functional.conv1d(row, weight.unsqueeze(1), padding=kernel - 1, groups=channels)[..., : row.shape[-1]]
            )
            for row in x.split(list(lengths), dim=-1)
        ]
        return torch.cat(rows, dim=-1)

    return convolve


class FusedHead(torch.autograd.Function):
    """verl 0.9.1's ``FusedLinearForPPOFunction`` (torch backend): the vocabulary's logits, some tokens at a time.

    Computes as there. On meta tensors one chunk stands for all: their memory is the same.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Shapes (tokens, size), (vocabulary, size), (tokens,)."""
        log_probs = hidden.new_zeros(len(hidden), dtype=torch.float32)
        entropy = hidden.new_zeros(len(hidden))
        for part in _chunks(hidden):
            # Within autocast: the products are of 16 bits even where the gathered weights have 32.
            logits = (hidden[part].to(torch.bfloat16) @ weight.to(torch.bfloat16).t()) / 1.0
            logits = logits.to(torch.float32)
            probs = logits.softmax(dim=-1)
            entropy[part] = (torch.logsumexp(logits, dim=-1) - torch.sum(probs * logits, dim=-1)).to(hidden.dtype)
            log_probs[part] = logits.log_softmax(dim=-1).gather(-1, labels[part].unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(hidden, weight, labels)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Makes a gradient of the weights for every chunk, although nobody asks for it: so does verl."""
        hidden, weight, labels = ctx.saved_tensors
        d_hidden = torch.zeros_like(hidden)
        for part in _chunks(hidden):
            logits = ((hidden[part] @ weight.t()) / 1.0).to(torch.float32)
            probs = logits.softmax(dim=-1)
            one_hot = torch.zeros_like(logits).scatter_(-1, labels[part].unsqueeze(-1), 1)
            d_logits = (0 + gradients[0][part].unsqueeze(-1) * (one_hot - probs)).to(hidden.dtype) / 1.0
            d_part = d_logits @ weight
            d_weight = d_logits.t() @ hidden[part]
            d_hidden[part] += d_part
            del d_weight
        return d_hidden, None, None


def _chunks(hidden: Tensor) -> list[slice]:
    starts = range(0, len(hidden), HEAD_CHUNK)
    return [slice(start, min(start + HEAD_CHUNK, len(hidden))) for start in (starts[:1] if hidden.is_meta else starts)]

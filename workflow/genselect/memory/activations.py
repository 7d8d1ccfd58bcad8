"""Bytes that stand on a card between a forward and its backward, read off torch's memory tracker.

transformers' own Qwen3.5 layers, with PEFT's own adapters, run on meta tensors (shapes without values) under
``torch.distributed._tools.mem_tracker.MemTracker``; only the kernels that need a card are stand-ins (:mod:`.kernels`). Two depths are
tracked, one and two repetitions of the pattern of layers, and the rest follows: each further repetition adds the same.

Left out, as small: rotary tables, ids, losses (some bytes a token), and the kernels' own workspaces.
"""

# torch has no types here (pyproject.toml), so its classes are Any to mypy.
# mypy: disable-error-code="misc"

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
import transformers.models.qwen3_5.modeling_qwen3_5 as modeling
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.models.qwen3_5 import Qwen3_5TextConfig

from genselect.memory import kernels
from genselect.memory.architecture import LINEAR, Architecture
from genselect.memory.weights import Head

#: Under this name transformers finds :func:`.kernels.flash_attention`.
_ATTENTION = "genselect_memory"
AttentionInterface.register(_ATTENTION, kernels.flash_attention)


@dataclass(frozen=True)
class Shape:
    """What a forward and backward goes over."""

    architecture: Architecture
    head: Head
    rank: int
    rows: tuple[int, ...]
    """Tokens of the rows of a micro-batch."""
    packed: bool = True
    checkpointing: bool = True
    fused_head: bool = True
    number_bytes: int = 2
    """Of a number in the forward and backward."""
    head_bytes: int = 4
    """Of a number of the gathered output weights; verl gathers them in the type that it keeps."""
    stand_ins: bool = True
    """Cards' kernels; otherwise torch's own, which a CPU runs (attention then is transformers' eager one)."""


@dataclass(frozen=True)
class Activations:
    """Bytes."""

    kept: int
    """What stands when the forward is over, and the backward needs."""
    peak: int
    """The most that stands at once: what is kept and what a layer's forward and backward make besides."""


@functools.lru_cache(maxsize=64)
def training_activations(shape: Shape) -> Activations:
    """Of a forward and backward."""
    return _deepened(shape, _track_training)


@functools.lru_cache(maxsize=64)
def forward_activations(shape: Shape) -> Activations:
    """Of a forward without gradients (log-probabilities, values, submit logits)."""
    return _deepened(shape, _track_forward)


def _deepened(shape: Shape, track: Any) -> Activations:
    layers = shape.architecture.layer_types
    period = _period(layers)
    if len(layers) <= 2 * period:
        found: Activations = track(shape)
        return found
    one, two = (
        track(replace(shape, architecture=replace(shape.architecture, layer_types=layers[: times * period])))
        for times in (1, 2)
    )
    more = len(layers) // period - 1
    return Activations(one.kept + more * (two.kept - one.kept), one.peak + more * (two.peak - one.peak))


def _period(layers: Sequence[str]) -> int:
    """Layers after which the pattern begins again; all of them when it does not."""
    fits = (
        n
        for n in range(1, len(layers))
        if len(layers) % n == 0 and list(layers) == list(layers[:n]) * (len(layers) // n)
    )
    return next(fits, len(layers))


def _track_training(shape: Shape) -> Activations:
    stack = build_stack(shape, torch.device("meta"))
    hidden = _hidden(shape).requires_grad_()
    with _Tracker(stack) as tracker:
        # Made within, so that it counts: the embedding's output, which the first layer keeps.
        outputs = stack(hidden.clone())
        kept = _standing(tracker, "current")
        outputs.backward(torch.empty_like(outputs))
        return Activations(kept, _standing(tracker, "peak"))


def _track_forward(shape: Shape) -> Activations:
    stack = build_stack(shape, torch.device("meta"))
    with _Tracker(stack) as tracker, torch.no_grad():
        stack(_hidden(shape).clone())
        return Activations(0, _standing(tracker, "peak"))


def _hidden(shape: Shape) -> Tensor:
    batch, time = (1, sum(shape.rows)) if shape.packed else (len(shape.rows), max(shape.rows))
    return torch.empty(batch, time, shape.architecture.hidden_size, dtype=_kind(shape.number_bytes), device="meta")


def _kind(number_bytes: int) -> torch.dtype:
    return torch.float32 if number_bytes == 4 else torch.bfloat16


class _NoHandle:
    def remove(self) -> None:
        pass


class _Tracker(MemTracker):
    """torch's tracker, for one module as a whole: its figures of every part of it are left out, which takes half of the time.

    It hooks the gradient of every parameter, and raises on a frozen one (torch 2.13, ``_track_module_params_and_buffers``): frozen ones
    get a hook that does nothing. Can go when it asks ``requires_grad`` first.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        for parameter in module.parameters():
            if not parameter.requires_grad:
                self._param_to_grad_hook_handles[parameter] = (_NoHandle(), _NoHandle())
        self._track_module_params_and_buffers(module)

    def _ignored(self, *_: Any) -> None:
        """Takes the place of the hooks around every part."""

    _pre_fw_hook = _post_fw_hook = _pre_bw_hook = _post_bw_hook = _ignored


def _standing(tracker: MemTracker, when: str) -> int:
    """Activations and temporary tensors; weights and their gradients are counted elsewhere, cut as FSDP cuts them."""
    by_device = tracker.get_tracker_snapshot(when)
    return sum(
        size
        for snapshot in by_device.values()
        for kind, size in snapshot.items()
        if getattr(kind, "value", kind) in ("Activation", "Temp")
    )


# The layers


def text_config(architecture: Architecture, attention: str = "eager") -> Qwen3_5TextConfig:
    """transformers' configuration of the text part."""
    config = Qwen3_5TextConfig(
        vocab_size=architecture.vocab_size,
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=len(architecture.layer_types),
        layer_types=list(architecture.layer_types),
        num_attention_heads=architecture.num_attention_heads,
        num_key_value_heads=architecture.num_key_value_heads,
        head_dim=architecture.head_dim,
        linear_conv_kernel_dim=architecture.linear_conv_kernel_dim,
        linear_num_key_heads=architecture.linear_num_key_heads,
        linear_num_value_heads=architecture.linear_num_value_heads,
        linear_key_head_dim=architecture.linear_key_head_dim,
        linear_value_head_dim=architecture.linear_value_head_dim,
    )
    config._attn_implementation = attention
    return config


def build_stack(shape: Shape, device: torch.device) -> Stack:
    """The layers of ``shape``, its norm and its head, without values on ``device`` meta."""
    attention = _ATTENTION if shape.stand_ins else "eager"
    before = torch.get_default_dtype()
    torch.set_default_dtype(_kind(shape.number_bytes))
    try:
        # The fused norm is a stand-in's matter, and its constructor wants a card.
        with device, mock.patch.object(modeling, "FusedRMSNormGated", None):
            return Stack(shape, text_config(shape.architecture, attention))
    finally:
        torch.set_default_dtype(before)


class Stack(nn.Module):
    """What a training step computes between the embedding and the loss."""

    def __init__(self, shape: Shape, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(modeling.Qwen3_5DecoderLayer(config, n) for n in range(len(config.layer_types)))
        self.norm = modeling.Qwen3_5RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.requires_grad_(shape.rank == 0)
        if shape.rank:
            targets = [name for name, part in self.named_modules() if isinstance(part, nn.Linear)]
            inject_adapter_in_model(LoraConfig(r=shape.rank, target_modules=targets), self)
        if shape.stand_ins:
            for layer in self.layers:
                _place_stand_ins(layer, shape)
        if shape.head == "value":
            self.score = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """From (rows, time, size) to one number a token."""
        batch, time, _ = hidden.shape
        turned = int(0.25 * self.shape.architecture.head_dim)  # Qwen3.5 turns a quarter of each head
        positions = (hidden.new_empty(batch, time, turned), hidden.new_empty(batch, time, turned))
        # transformers' eager attention adds one; kernels know that attention looks back.
        mask = None if self.shape.stand_ins else hidden.new_zeros(1, 1, time, time)
        for layer in self.layers:
            if self.shape.checkpointing and torch.is_grad_enabled():
                options = {"use_reentrant": False, "preserve_rng_state": False}
                hidden = checkpoint(functools.partial(_call, layer), hidden, positions, mask, **options)
            else:
                hidden = _call(layer, hidden, positions, mask)
        hidden = self.norm(hidden)
        if self.shape.head == "value":
            scores: Tensor = self.score(hidden).squeeze(-1)
            return scores
        return self._log_probs(hidden)

    def _log_probs(self, hidden: Tensor) -> Tensor:
        shape, hidden = self.shape, hidden.flatten(0, 1)
        size = (shape.architecture.vocab_size, shape.architecture.hidden_size)
        # The gathered copy lives from here until the head's backward.
        weight = hidden.new_empty(*size, dtype=_kind(shape.head_bytes))
        labels = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
        if shape.fused_head:
            log_probs: Tensor = kernels.FusedHead.apply(hidden.to(weight.dtype), weight, labels)[0]
            return log_probs
        logits = (hidden @ weight.to(hidden.dtype).t()).float()
        return logits.log_softmax(dim=-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def _call(layer: nn.Module, hidden: Tensor, positions: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
    output: Tensor = layer(hidden, position_embeddings=positions, attention_mask=mask)
    return output


def _place_stand_ins(layer: Any, shape: Shape) -> None:
    if layer.layer_type != LINEAR:
        return
    layer.linear_attn.chunk_gated_delta_rule = kernels.gated_delta_rule
    layer.linear_attn.norm = kernels.NormStandIn()
    lengths = shape.rows if shape.packed else (max(shape.rows),)
    layer.linear_attn.causal_conv1d_fn = kernels.convolution(lengths)

"""What a real model on this machine really holds: the other side of a comparison with the prediction.

A value model with adapters, as PEFT and transformers make it, goes through steps of AdamW. Weights, gradients and moments are summed over
the tensors that exist; activations are what autograd saves; peaks are an allocator's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import Tensor
from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForTokenClassification


@dataclass(frozen=True)
class Measured:
    """Bytes."""

    weights: int
    gradients: int
    moments: int
    saved: int
    """By autograd, between forward and backward; weights not counted."""
    peak: int
    """Above what stood when the step began (weights, gradients, moments)."""


class ValueModel:
    """A critic of random weights.

    Args:
        config: transformers' configuration of the whole model.
        rank: Of the adapters.
        checkpointing: Gradient checkpointing.
        device: Where it computes.
        dtype: Of weights, adapters and computation.
        attention: transformers' name of the attention.
    """

    def __init__(
        self, config: Qwen3_5Config, rank: int, checkpointing: bool, device: str, dtype: torch.dtype, attention: str
    ) -> None:
        # As verl sets them.
        config.num_labels, config.classifier_dropout = 1, 0.0
        config._attn_implementation = attention
        with torch.device(device):
            network: Any = Qwen3_5ForTokenClassification(config).to(dtype)
        if checkpointing:
            network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        network.enable_input_require_grads()
        adapters = LoraConfig(
            task_type=TaskType.TOKEN_CLS, r=rank, target_modules="all-linear", exclude_modules=["score"]
        )
        self.network = get_peft_model(network, adapters).to(dtype).train()
        trained = [weight for weight in self.network.parameters() if weight.requires_grad]
        self.optimiser = torch.optim.AdamW(trained, lr=1e-5)
        self._device = device
        self._vocabulary = config.text_config.vocab_size

    def forward(self, tokens: int) -> Tensor:
        """The mean value of a row of so many tokens."""
        ids = torch.arange(tokens, device=self._device)[None] % self._vocabulary
        values: Tensor = self.network(input_ids=ids, use_cache=False).logits
        return values.float().mean()

    def step(self, tokens: int) -> None:
        """Forward, backward, an update. Gradients stay allocated, so that a later step's peak is above them."""
        self.forward(tokens).backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=False)

    def held(self) -> dict[str, int]:
        """Bytes of weights, gradients and moments after a step."""
        weights = list(self.network.parameters())
        states = self.optimiser.state.values()
        return {
            "weights": sum(_bytes(weight) for weight in weights),
            "gradients": sum(_bytes(weight.grad) for weight in weights if weight.grad is not None),
            "moments": sum(_bytes(state[name]) for state in states for name in ("exp_avg", "exp_avg_sq")),
        }


def measure_on_cpu(model: ValueModel, tokens: int) -> Measured:
    """Everything of a step over ``tokens`` tokens on this machine."""
    model.step(tokens)
    saved = saved_bytes(model, tokens)
    return Measured(**model.held(), saved=saved, peak=allocated_peak(lambda: model.step(tokens)))


def measure_on_cuda(model: ValueModel, tokens: int) -> int:
    """The allocator's peak of a step, in bytes, weights and all."""
    model.step(tokens)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model.step(tokens)
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


def saved_bytes(model: ValueModel, tokens: int) -> int:
    """What autograd saves for the backward, each storage once."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.network.parameters()}
    storages: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        # Kept alive, or its address could be another's later.
        storages.setdefault(storage.data_ptr(), storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model.forward(tokens)
    total = sum(storage.nbytes() for address, storage in storages.items() if address not in weights)
    del loss
    return total


def allocated_peak(run: Callable[[], None]) -> int:
    """The most that stood at once during ``run``, of what it took from torch's CPU allocator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            run()
    results: Any = profile.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    standing = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        standing += event.nbytes()
        peak = max(peak, standing)
    return peak


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()

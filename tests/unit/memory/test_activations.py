"""torch's tracker against hand arithmetic, and against what real tensors take on this machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_model import CONFIG
from torch.distributed._tools.mem_tracker import MemTracker
from transformers.models.qwen3_5 import Qwen3_5Config

from genselect.base_model import gated_delta
from genselect.memory import Architecture, all_weights, architecture_from, kernels
from genselect.memory.activations import Shape, build_stack, forward_activations, training_activations
from genselect.memory.measure import ValueModel, measure_on_cpu

TOKENS = 640
HIDDEN = 64


def test_with_checkpointing_the_inputs_of_layers_are_kept_and_what_the_head_needs(small: Architecture) -> None:
    kept = training_activations(Shape(small, "value", 8, (TOKENS,))).kept
    layers = 4 * TOKENS * HIDDEN * 2
    # The last norm keeps its input in 32 bits, a number a token, and its weights plus one; the head keeps the norm's output.
    norm = TOKENS * (HIDDEN * 4 + 4 + HIDDEN * 2) + HIDDEN * 4
    positions = 2 * TOKENS * (16 // 4) * 2
    values = TOKENS * 2
    assert kept == layers + norm + positions + values


def test_each_further_repetition_of_the_layers_adds_the_same(small: Architecture) -> None:
    shape = Shape(replace(small, layer_types=small.layer_types * 4), "value", 8, (TOKENS,))
    peaks = [
        training_activations(replace(shape, architecture=replace(small, layer_types=small.layer_types * times))).peak
        for times in (2, 3, 4)
    ]
    assert peaks[1] - peaks[0] == peaks[2] - peaks[1] == 4 * TOKENS * HIDDEN * 2


def test_more_tokens_and_no_checkpointing_take_more_and_a_look_takes_less(small: Architecture) -> None:
    shape = Shape(small, "value", 8, (TOKENS,))
    peak = training_activations(shape).peak
    assert training_activations(replace(shape, rows=(TOKENS, TOKENS))).peak == pytest.approx(2 * peak, rel=0.01)
    assert training_activations(replace(shape, rank=64)).peak > peak
    assert training_activations(replace(shape, checkpointing=False)).peak > peak > forward_activations(shape).peak


def test_padded_rows_are_computed_to_the_longest(small: Architecture) -> None:
    shape = Shape(small, "value", 8, (TOKENS, TOKENS // 2))
    padded = training_activations(replace(shape, packed=False)).peak
    assert padded == pytest.approx(training_activations(shape).peak * 4 / 3, rel=0.03)


def test_the_policys_head_holds_the_vocabulary_in_chunks(small: Architecture) -> None:
    shape = Shape(replace(small, vocab_size=50_000), "policy", 8, (8 * kernels.HEAD_CHUNK,))
    chunked, whole = (forward_activations(replace(shape, fused_head=fused)).peak for fused in (True, False))
    # All logits at once: in 16 and in 32 bits, or twice in 32 for the softmax.
    assert whole > 8 * kernels.HEAD_CHUNK * 50_000 * 8
    assert chunked < whole / 3


def saved(function: torch.autograd.function.FunctionMeta, *inputs: torch.Tensor) -> int:
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: sizes.append(tensor.numel() * tensor.element_size()) or tensor, lambda tensor: tensor
    ):
        function.apply(*inputs)  # type: ignore[attr-defined]
    return sum(sizes)


def test_the_stand_ins_keep_what_the_kernels_keep() -> None:
    time, heads, size = 128, 4, 8

    def half(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.bfloat16, device="meta", requires_grad=True)

    flat = half(time, heads, size), half(time, 2, size), half(time, 2, size)
    # Queries, keys, values, output in 16 bits; a sum in 32 for each query.
    assert saved(kernels.FlashAttention, *flat) == 2 * time * size * (heads + 2 + 2 + heads) + 4 * time * heads

    row = half(1, time, heads, size)
    decay = torch.empty(1, time, heads, device="meta", requires_grad=True)
    # Queries, keys, values; their two norms and the decay in 32 bits; the strength; 64 numbers of the chunk's matrix.
    by_hand = time * heads * (3 * size * 2 + 3 * 4 + 2 + 64 * 2)
    assert saved(kernels.GatedDeltaRule, row, row, row, decay, half(1, time, heads)) == by_hand


def test_torchs_tracker_counts_weights_gradients_and_moments_as_a_hand_does(small: Architecture) -> None:
    gated_delta.install()
    shape = Shape(small, "value", 0, (64,), checkpointing=False, number_bytes=4, stand_ins=False)
    stack = build_stack(shape, torch.device("cpu"))
    optimiser = torch.optim.AdamW(stack.parameters())
    hidden = torch.randn(1, 64, HIDDEN)
    tracker = MemTracker()
    tracker.track_external(stack, optimiser)
    with tracker:
        stack(hidden).mean().backward()
        optimiser.step()
    by_kind = {
        getattr(kind, "value", kind): size
        for kind, size in tracker.get_tracker_snapshot("current")[torch.device("cpu")].items()
    }
    # The stack has neither embedding nor image.
    counts = [w.count for w in all_weights(small, "value") if w.name != "embed_tokens.weight"]
    assert by_kind["Parameter"] == 4 * sum(counts)
    assert by_kind["Gradient"] == 4 * sum(counts)
    # Adam counts its steps in a number a tensor.
    assert by_kind["Optstate"] == 8 * sum(counts) + 4 * len(counts)


@pytest.mark.parametrize(("checkpointing", "tolerance"), [(False, 0.01), (True, 0.1)])
def test_a_real_step_on_this_machine_takes_what_was_foreseen(checkpointing: bool, tolerance: float) -> None:
    gated_delta.install()
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "out_hidden_size": 64}
    config = Qwen3_5Config(**{**CONFIG, "vision_config": vision})
    architecture = architecture_from(config.to_dict(), "small")
    measured = measure_on_cpu(ValueModel(config, 8, checkpointing, "cpu", torch.float32, "eager"), 256)
    weights = all_weights(architecture, "value", 8)
    # Nobody looks through the vision tower here, so that its adapters get no gradient.
    trained = sum(w.count for w in weights if w.trained and not w.name.startswith("visual"))
    assert measured.weights == pytest.approx(4 * sum(w.count for w in weights), rel=0.001)
    # PEFT trains a copy of the head, and keeps the first.
    assert measured.gradients == 4 * trained
    assert measured.moments == 8 * trained
    shape = Shape(architecture, "value", 8, (256,), checkpointing=checkpointing, number_bytes=4, stand_ins=False)
    foreseen = training_activations(shape)
    assert foreseen.peak == pytest.approx(measured.peak, rel=tolerance)
    if not checkpointing:
        assert foreseen.kept == pytest.approx(measured.saved, rel=tolerance)

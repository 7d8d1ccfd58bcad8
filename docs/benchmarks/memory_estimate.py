#!/usr/bin/env python3
"""The memory predictor against what tensors really take.

``python docs/benchmarks/memory_estimate.py --output docs/benchmarks/memory_estimate.md`` (a minute, one core): a critic of the
miniature's size, with adapters, goes through a step of AdamW on this CPU. Weights, gradients and moments are summed over the tensors
that exist, kept activations over what autograd saves, peaks from torch's allocator.

``--device cuda`` (a card, flash-attn and flash-linear-attention; not yet run): critics shaped like Qwen3.5, of about 0.5 and 2
billion random weights, in bf16 with gradient checkpointing, three numbers of tokens each, against ``torch.cuda.max_memory_allocated``.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers.models.qwen3_5 import Qwen3_5Config

from genselect.base_model import gated_delta
from genselect.base_model.network import build_network
from genselect.base_model.tokenizer import build_tokenizer
from genselect.memory import all_weights, architecture_from
from genselect.memory.activations import Shape, training_activations
from genselect.memory.architecture import Architecture
from genselect.memory.measure import ValueModel, measure_on_cpu, measure_on_cuda

MIB, GIB = 2**20, 2**30
RANK = 32
TOKENS = (256, 512)

#: The sizes that differ from the 9B model's.
SHAPES: dict[str, dict[str, int]] = {
    "0.5 B": {
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 16,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 16,
    },
    "2 B": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 16,
    },
}
CARD_TOKENS = (8192, 16_384, 32_768)
CARD_RANK = 64


def on_cpu() -> Iterator[str]:
    gated_delta.install()
    config = build_network(build_tokenizer(["solve", "check"]), seed=1).config
    architecture = architecture_from(config.to_dict(), "the miniature's model")
    trained, whole = trained_and_whole(architecture, RANK)
    base = sum(weight.count for weight in all_weights(architecture, "value"))
    yield f"The miniature's model ({base:,} weights as a critic), adapters of rank {RANK}, fp32, torch's own kernels."
    yield ""
    yield "| tokens | checkpointing | what | predicted, MiB | measured, MiB | error |"
    yield "|---|---|---|---|---|---|"
    for checkpointing in (False, True):
        for tokens in TOKENS:
            measured = measure_on_cpu(ValueModel(config, RANK, checkpointing, "cpu", torch.float32, "eager"), tokens)
            shape = Shape(
                architecture, "value", RANK, (tokens,), checkpointing=checkpointing, number_bytes=4, stand_ins=False
            )
            activations = training_activations(shape)
            pairs = [("peak above weights and Adam", activations.peak, measured.peak)]
            if not checkpointing:
                pairs.insert(0, ("activations kept for the backward", activations.kept, measured.saved))
            if not checkpointing and tokens == TOKENS[0]:
                pairs = [
                    ("weights", 4 * whole, measured.weights),
                    ("gradients", 4 * trained, measured.gradients),
                    ("Adam's moments", 8 * trained, measured.moments),
                    *pairs,
                ]
            for what, predicted, found in pairs:
                yield row([f"{tokens}", "on" if checkpointing else "off", what], predicted, found, MIB, 3)


def trained_and_whole(architecture: Architecture, rank: int) -> tuple[int, int]:
    """Weights that get gradients here, and all. Without an image nothing looks through the vision tower; verl sends it an empty one."""
    weights = all_weights(architecture, "value", rank)
    looked_through = (weight for weight in weights if weight.trained and not weight.name.startswith("visual"))
    return sum(weight.count for weight in looked_through), sum(weight.count for weight in weights)


def on_card() -> Iterator[str]:
    if not torch.cuda.is_available():
        raise SystemExit("no card here: leave --device out to measure on the CPU")
    yield f"{torch.cuda.get_device_name()}: critics of random weights, adapters of rank {CARD_RANK}, bf16, gradient checkpointing."
    yield ""
    yield "| model | tokens | predicted peak, GiB | measured peak, GiB | error |"
    yield "|---|---|---|---|---|"
    for name, sizes in SHAPES.items():
        config = Qwen3_5Config(
            text_config=dict(sizes), vision_config={"depth": 1, "out_hidden_size": sizes["hidden_size"]}
        )
        architecture = architecture_from(config.to_dict(), name)
        model = ValueModel(config, CARD_RANK, True, "cuda", torch.bfloat16, "flash_attention_2")
        trained, whole = trained_and_whole(architecture, CARD_RANK)
        for tokens in CARD_TOKENS:
            activations = training_activations(Shape(architecture, "value", CARD_RANK, (tokens,)))
            predicted = 2 * whole + 3 * 2 * trained + activations.peak
            yield row([name, f"{tokens:,}"], predicted, measure_on_cuda(model, tokens), GIB, 2)
        del model
        torch.cuda.empty_cache()


def row(labels: list[str], predicted: int, measured: int, unit: int, digits: int) -> str:
    figures = [f"{size / unit:.{digits}f}" for size in (predicted, measured)]
    return f"| {' | '.join([*labels, *figures, f'{100 * (predicted / measured - 1):+.1f} %'])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--output", type=Path, help="write the page there as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines: list[Any] = [
        "# Predicted and measured memory",
        "",
        f"Made by `docs/benchmarks/memory_estimate.py --device {arguments.device}` on {datetime.date.today()}: "
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, torch {torch.__version__}.",
        "",
    ]
    for line in lines:
        print(line)
    for line in on_cpu() if arguments.device == "cpu" else on_card():
        print(line, flush=True)
        lines.append(line)
    lines += ["", "On a card (`--device cuda`) it has not been run." if arguments.device == "cpu" else ""]
    if arguments.output:
        arguments.output.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

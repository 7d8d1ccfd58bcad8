"""Weights are transformers' own, adapters are PEFT's, and cards share them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, TaskType, get_peft_model
from small_model import CONFIG
from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration, Qwen3_5ForTokenClassification

from genselect.errors import GenselectError
from genselect.memory import (
    adapter_weights,
    all_weights,
    architecture_from,
    model_architecture,
    read_architecture,
    save_bytes,
)
from genselect.memory.architecture import Architecture

QWEN = "Qwen/Qwen3.5-9B"


def config(**changes: Any) -> Qwen3_5Config:
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "out_hidden_size": 64}
    return Qwen3_5Config(**{**CONFIG, "vision_config": vision, **changes})


def in_transformers(config: Qwen3_5Config, value: bool) -> Any:
    config.num_labels = 1
    with torch.device("meta"):
        return (Qwen3_5ForTokenClassification if value else Qwen3_5ForConditionalGeneration)(config)


@pytest.mark.parametrize("value", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_every_weight_has_the_shape_it_has_in_transformers(value: bool, tied: bool) -> None:
    made = config(tie_word_embeddings=tied)
    ours = all_weights(architecture_from(made.to_dict(), "small"), "value" if value else "policy")
    theirs = {
        name.replace("model.language_model.", "").replace("model.visual", "visual").replace("model.", ""): tuple(
            part.shape
        )
        for name, part in in_transformers(made, value).named_parameters()
    }
    assert {weight.name: weight.shape for weight in ours} == theirs


@pytest.mark.parametrize("value", [False, True])
def test_adapters_are_those_that_peft_puts_on_all_linear_layers(value: bool) -> None:
    made = config()
    adapters = LoraConfig(
        task_type=TaskType.TOKEN_CLS if value else TaskType.CAUSAL_LM,
        r=8,
        target_modules="all-linear",
        exclude_modules=["score"] if value else None,
    )
    with torch.device("meta"):
        network = get_peft_model(in_transformers(made, value), adapters)
    theirs = sum(part.numel() for part in network.parameters() if part.requires_grad)
    ours = all_weights(architecture_from(made.to_dict(), "small"), "value" if value else "policy", 8)
    assert sum(weight.count for weight in ours if weight.trained) == theirs


def test_the_9b_models_counts_are_those_worked_out_by_hand() -> None:
    nine = model_architecture(QWEN)
    feed_forward = 3 * (4096 + 12_288)
    linear = (4096 + 8192) + (4096 + 4096) + 2 * (4096 + 32) + (4096 + 4096)
    full = (4096 + 8192) + 2 * (4096 + 1024) + (4096 + 4096)
    vision = 27 * ((1152 + 3456) + (1152 + 1152) + 2 * (1152 + 4304)) + (4608 + 4608) + (4608 + 4096)
    assert adapter_weights(nine, 64) == 64 * (24 * (linear + feed_forward) + 8 * (full + feed_forward) + vision)
    # What its card says: 8.95 billion in the text part.
    text = sum(weight.count for weight in all_weights(nine, "policy") if not weight.name.startswith("visual"))
    assert text == pytest.approx(8.95e9, rel=0.001)


def test_a_save_holds_the_trained_weights_and_their_two_moments(small: Architecture) -> None:
    adapters = adapter_weights(small, 8)
    assert save_bytes(small, "policy", 8) == 12 * adapters
    head = small.hidden_size + 1
    assert save_bytes(small, "value", 8) == 12 * (adapters + head)


def test_cards_share_a_weight_and_pad_what_does_not_divide(small: Architecture) -> None:
    weight = next(w for w in all_weights(small, "policy") if w.name == "embed_tokens.weight")
    assert weight.count == 1000 * 64
    assert weight.shard(8) == weight.count // 8
    assert weight.shard(3) == 334 * 64


def test_a_file_that_is_no_qwen_says_what_is_missing(tmp_path: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": 64}')
    with pytest.raises(GenselectError, match="linear_num_key_heads"):
        read_architecture(tmp_path)
    with pytest.raises(GenselectError, match="no such file"):
        read_architecture(tmp_path / "absent.json")
    with pytest.raises(GenselectError, match="--model-config"):
        model_architecture("Qwen/another")


def test_the_cheap_parts_bring_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, genselect.memory, genselect.memory.predict, genselect.memory.report, genselect.memory.settings\n"
        "sys.exit(', '.join({'torch', 'verl', 'ray', 'transformers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

"""The miniature's network: a Qwen3.5 of less than a million weights, whole down to its vision tower and processor files.

verl and vLLM choose their code by the architecture, so the tiny model has the real one's: the full ``qwen3_5`` configuration with
linear and full attention, and a vision tower that nobody looks through.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from genselect.base_model.tokenizer import MAX_LENGTH, token_id

#: Two of each: enough for copying, which takes two layers that look back.
LAYERS = ("linear_attention", "full_attention", "linear_attention", "full_attention")
_HIDDEN = 128
_PATCH = 16


def build_network(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3_5ForConditionalGeneration:
    """A network with random 32-bit weights drawn from ``seed``; its vision tower takes no gradient."""
    torch.manual_seed(seed)
    network = Qwen3_5ForConditionalGeneration(_configuration(tokenizer))
    network.generation_config.eos_token_id = tokenizer.eos_token_id
    network.generation_config.pad_token_id = tokenizer.pad_token_id
    for weight in network.model.visual.parameters():
        weight.requires_grad_(False)
    return network


def save_model(network: Qwen3_5ForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights (as they are), configuration, generation configuration, tokenizer and processor into ``folder``."""
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _processor(tokenizer).save_pretrained(folder)


def _configuration(tokenizer: PreTrainedTokenizerFast) -> Qwen3_5Config:
    text: dict[str, Any] = {
        # A multiple of 64: what vLLM pads to anyway.
        "vocab_size": (len(tokenizer) + 63) // 64 * 64,
        "hidden_size": _HIDDEN,
        "intermediate_size": 2 * _HIDDEN,
        "num_hidden_layers": len(LAYERS),
        "layer_types": list(LAYERS),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 1,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "max_position_embeddings": MAX_LENGTH,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "depth": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "out_hidden_size": _HIDDEN,
        "patch_size": _PATCH,
        "num_position_embeddings": 64,
    }
    whole: dict[str, Any] = {
        "text_config": text,
        "vision_config": vision,
        "image_token_id": token_id(tokenizer, "<|image_pad|>"),
        "video_token_id": token_id(tokenizer, "<|video_pad|>"),
        "vision_start_token_id": token_id(tokenizer, "<|vision_start|>"),
        "vision_end_token_id": token_id(tokenizer, "<|vision_end|>"),
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return Qwen3_5Config(**whole)


def _processor(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLProcessor:
    """The processor that verl and vLLM load for this architecture, images or none."""
    for name, token in (
        ("image_token", "<|image_pad|>"),
        ("video_token", "<|video_pad|>"),
        ("vision_start_token", "<|vision_start|>"),
        ("vision_end_token", "<|vision_end|>"),
    ):
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", token_id(tokenizer, token))
    shape = {
        "patch_size": _PATCH,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 4096, "longest_edge": 16384},
    }
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**shape),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(**shape),
        chat_template=tokenizer.chat_template,
    )

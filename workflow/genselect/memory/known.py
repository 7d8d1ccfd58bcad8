"""Architectures known without their files."""

from __future__ import annotations

from typing import Any

#: ``config.json`` of models by their name on the Hub, as far as memory goes. The model's own file is better: ``--model-config``.
KNOWN: dict[str, dict[str, Any]] = {
    # The text part is what transformers 5.9 takes by default and calls "the Qwen3.5-9B style configuration"
    # (models/qwen3_5/configuration_qwen3_5.py, Qwen3_5TextConfig), and what the model's card says: hidden 4,096, 32 layers of which
    # every fourth is full attention, 16 heads and 4 for keys and values of 256, linear attention with 16 heads for keys and 32 for
    # values of 128, intermediate 12,288, vocabulary 248,320, context 262,144.
    "Qwen/Qwen3.5-9B": {
        "tie_word_embeddings": False,
        "text_config": {
            "vocab_size": 248_320,
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "num_hidden_layers": 32,
            "full_attention_interval": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "linear_conv_kernel_dim": 4,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            # vLLM keeps the state of linear attention in this type (vllm/model_executor/models/config.py,
            # Qwen3_5ForConditionalGenerationConfig); it is the larger of the two that are in use.
            "mamba_ssm_dtype": "float32",
        },
        # transformers' Qwen3_5VisionConfig; the tower hands over vectors of the text part's size.
        "vision_config": {
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "out_hidden_size": 4096,
            "patch_size": 16,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "in_channels": 3,
            "num_position_embeddings": 2304,
        },
    },
}

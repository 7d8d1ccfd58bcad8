"""The shape of a Qwen3.5 model, from its ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genselect.config import Config
from genselect.errors import GenselectError
from genselect.memory.known import KNOWN

LINEAR = "linear_attention"
FULL = "full_attention"
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Vision:
    """The vision tower: nobody looks through it here, but its weights are loaded, sharded and given adapters."""

    depth: int
    hidden_size: int
    intermediate_size: int
    out_hidden_size: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    in_channels: int
    num_position_embeddings: int


@dataclass(frozen=True)
class Architecture:
    """Sizes, under the names of transformers' ``Qwen3_5TextConfig``."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[str, ...]
    """``linear_attention`` or ``full_attention`` for each layer."""
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_conv_kernel_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    tie_word_embeddings: bool
    vision: Vision | None
    state_bytes: int
    """Bytes of a number of the linear-attention state in the engine."""
    name: str
    """Where it was read, for the report."""

    @property
    def linear_key_size(self) -> int:
        """Keys of a linear-attention layer, over all heads."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def linear_value_size(self) -> int:
        """Values of a linear-attention layer, over all heads."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def convolved_size(self) -> int:
        """Channels of a linear-attention layer's convolution: queries, keys and values."""
        return 2 * self.linear_key_size + self.linear_value_size


def read_architecture(path: Path) -> Architecture:
    """From a model's ``config.json``, or the folder that holds it.

    Raises:
        GenselectError: There is no such file, or it is no Qwen3.5 configuration.
    """
    path = path / "config.json" if path.is_dir() else path
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise GenselectError(
            f"{path}: there is no such file",
            "--model-config names the model's config.json or the folder that holds it.",
        ) from error
    except ValueError as error:
        raise GenselectError(
            f"{path}: is not JSON: {error}", "Give the model's config.json as it is on the Hub."
        ) from error
    return architecture_from(read, str(path))


def model_architecture(repo_id: str) -> Architecture:
    """Of a model that is known without its files.

    Raises:
        GenselectError: It is not.
    """
    if repo_id not in KNOWN:
        raise GenselectError(
            f"{repo_id}: its architecture is not known here (known: {', '.join(KNOWN)})",
            "Give its config.json with --model-config; no weights are needed.",
        )
    return architecture_from(KNOWN[repo_id], f"{repo_id} (genselect/memory/known.py)")


def architecture_from(config: Mapping[str, Any], source: str) -> Architecture:
    """From the contents of a ``config.json``; ``source`` is named in errors and in the report.

    Raises:
        GenselectError: It is no Qwen3.5 configuration.
    """
    text = config.get("text_config", config)
    names = (
        "vocab_size hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim linear_conv_kernel_dim "
        "linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim"
    ).split()
    missing = [name for name in names if not isinstance(text.get(name), int)]
    if missing:
        raise GenselectError(
            f"{source}: is not the configuration of a Qwen3.5 model: {', '.join(missing)} missing",
            "Only this architecture is foreseen: linear and full attention with a dense feed-forward.",
        )
    seen = config.get("vision_config")
    fields = Vision.__dataclass_fields__
    return Architecture(
        **{name: text[name] for name in names},
        layer_types=_layer_types(text, source),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        vision=Vision(**{name: _side(seen.get(name, _VISION_DEFAULTS.get(name))) for name in fields}) if seen else None,
        state_bytes=_BYTES.get(str(text.get("mamba_ssm_dtype", "float32")), 4),
        name=source,
    )


#: What ``Qwen3_5VisionConfig`` takes when a file leaves them out.
_VISION_DEFAULTS = {"in_channels": 3, "temporal_patch_size": 2, "spatial_merge_size": 2, "patch_size": 16}


def _side(size: Any) -> int:
    """Patch sizes may be written as a list of equal sides."""
    return int(size[0] if isinstance(size, list | tuple) else size)


def _layer_types(text: Mapping[str, Any], source: str) -> tuple[str, ...]:
    types = text.get("layer_types")
    if types is None and isinstance(text.get("num_hidden_layers"), int):
        interval = int(text.get("full_attention_interval", 4))
        types = [LINEAR if (layer + 1) % interval else FULL for layer in range(text["num_hidden_layers"])]
    if not types or set(types) - {LINEAR, FULL}:
        raise GenselectError(
            f"{source}: layer_types is {types!r}",
            f"Each layer is {LINEAR} or {FULL}; without layer_types, num_hidden_layers and full_attention_interval say it.",
        )
    return tuple(types)


def architecture_of(config: Config, named: Path | None = None) -> Architecture:
    """From the named file, the model's folder of this workflow, or what is known of the model by name.

    Raises:
        GenselectError: The file is not there, is no such configuration, or nothing is known of the model.
    """
    if named:
        return read_architecture(named)
    base = config.models.base
    folder = base.path if base.source == "local" and base.path else config.results / "models" / config.dataset.name
    if (folder / "config.json").exists():
        return read_architecture(folder)
    if base.source == "hub":
        return model_architecture(base.repo_id)
    raise GenselectError(
        f"{folder / 'config.json'}: is not there yet",
        "Name the model's config.json with --model-config, or have the workflow bring the model first.",
    )

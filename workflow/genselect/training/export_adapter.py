"""The adapter of a save, as PEFT loads it: ``adapter_config.json`` and ``adapter_model.safetensors``.

Tensors are the save's own, in the 32 bits in which they were trained, so a base model with this adapter answers as the trained policy did.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peft import LoraConfig
from safetensors import safe_open
from safetensors.torch import save_file

from genselect.base_model.folder import weights_sha256
from genselect.errors import GenselectError
from genselect.formats import write_text
from genselect.provenance.saves import Saves, check_base_weights
from genselect.training.adapter_state import AdapterState, read_adapter

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

_PREFIX = "base_model.model."


def export_adapter(
    run_directory: Path, step: int, base: Path, folder: Path, *, base_name: str, base_revision: str | None
) -> dict[str, Any]:
    """Write the policy's adapter of a save into ``folder``. The same save gives the same bytes.

    Args:
        run_directory: ``results/runs/<run>``.
        step: Whose save is meant.
        base: Folder of the base model that the run started from.
        folder: Where the two files go; it exists.
        base_name: What others know the base model by.
        base_revision: Its commit, where it has one.

    Returns:
        ``rank``, ``alpha``, ``targets`` (names of the adapted layers, as PEFT matches them), ``layers`` (their number), ``parameters``.

    Raises:
        GenselectError: The save is missing, half-written or broken, or does not belong to the base model.
    """
    save = Saves(run_directory / "checkpoints").usable(step)
    check_base_weights(save, weights_sha256(base))
    adapter = read_adapter(save.path, "policy")
    shapes = _shapes(base)
    layers = adapted_layers(adapter, shapes)
    targets = target_modules(layers, shapes)
    config = LoraConfig(
        task_type=adapter.task_type,
        base_model_name_or_path=base_name,
        revision=base_revision,
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        target_modules=targets,
        inference_mode=True,
    ).to_dict()
    # PEFT keeps the names as a set, whose order differs from process to process.
    write_text(folder / CONFIG, json.dumps({**config, "target_modules": targets}, indent=2, sort_keys=True) + "\n")
    tensors = {name: value.contiguous() for name, value in adapter.tensors.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return {
        "rank": adapter.rank,
        "alpha": adapter.alpha,
        "targets": targets,
        "layers": len(layers),
        "parameters": sum(value.numel() for value in tensors.values()),
    }


def adapted_layers(adapter: AdapterState, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Names of the base model's layers that the adapter adds to, sorted.

    Args:
        adapter: Of the policy.
        shapes: Of the base model's tensors, by name.

    Raises:
        GenselectError: A tensor is no half of a plain LoRA, a half is missing, or there is no such layer of that shape.
    """
    halves: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, value in adapter.tensors.items():
        layer, found, half = name.removeprefix(_PREFIX).rpartition(".lora_")
        if not found or half not in ("A.weight", "B.weight"):
            raise GenselectError(f"{adapter.folder}: {name} is of no plain LoRA", "Other adapters are not read.")
        halves.setdefault(layer, {})[half[0]] = tuple(value.shape)
    for layer, pair in halves.items():
        if len(pair) != 2:
            raise GenselectError(
                f"{adapter.folder}: of the adapter of {layer} there is one half only",
                "The save is not whole; name another.",
            )
        if shapes.get(f"{layer}.weight") != (pair["B"][0], pair["A"][1]):
            raise GenselectError(
                f"{adapter.folder}: the base model has no layer {layer} of shape {(pair['B'][0], pair['A'][1])}",
                "The run started from another model than models.base.",
            )
    return sorted(halves)


def target_modules(layers: list[str], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """What PEFT is told to adapt: a layer's last name (``q_proj``), or its whole name where others share the last one.

    Args:
        layers: The adapted layers.
        shapes: Of the base model's tensors, by name.
    """
    # Of two axes or more: PEFT would adapt a convolution or an embedding of that name as well, and leave a norm alone.
    every = {name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) > 1}
    shared = {name.rpartition(".")[2] for name in every - set(layers)}
    return sorted({layer if (last := layer.rpartition(".")[2]) in shared else last for layer in layers})


def _shapes(base: Path) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(base.glob("*.safetensors")):
        with safe_open(path, "pt") as file:  # type: ignore[no-untyped-call]
            found |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    return found

"""A save of a run as a model that vLLM loads: the adapter added into the base model's weights.

A save holds the adapter alone (:mod:`genselect.training.trained_weights`), in 32 bits; the base weights are those of the base model's
folder. verl 0.9.1's own merger (``verl.model_merger``) reads saves of whole models, and writes base and adapter apart, both rounded to
bf16 before anything is added. Here ``W + alpha / r · B A`` is computed in 32 bits and rounded once, to the type that the base model has.
The trainer's own copy of the base weights is the same numbers in 32 bits, so this is what it hands to its rollout engine.
"""

from __future__ import annotations

import datetime
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import safe_open

from genselect.base_model.folder import weights_sha256
from genselect.errors import GenselectError
from genselect.formats import write_json
from genselect.provenance import file_sha256, write_seal
from genselect.provenance.saves import COMPLETE, Saves, check_base_weights
from genselect.training.adapter_state import AdapterState, read_adapter

_PREFIX = "base_model.model."
_LORA_A, _LORA_B = ".lora_A.weight", ".lora_B.weight"
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.seal.json", "base_model.json")

#: In a merged folder: whose weights it holds.
MERGED = "merged.json"

logger = logging.getLogger("genselect")


def merge_anchor(run_directory: Path, step: int, base: Path, output: Path, record: Path) -> dict[str, Any]:
    """Write the policy of a save as a model folder.

    Args:
        run_directory: ``results/runs/<run>``.
        step: Whose save is meant.
        base: Folder of the base model that the run started from.
        output: The model's folder; made anew.
        record: A JSON file that says what the folder is; sealed.

    Returns:
        What ``record`` holds.

    Raises:
        GenselectError: The save is missing, incomplete or broken, or does not fit the base model.
    """
    started = datetime.datetime.now(datetime.UTC)
    save = Saves(run_directory / "checkpoints").usable(step)
    check_base_weights(save, weights_sha256(base))
    adapter = read_adapter(save.path, "policy")
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(base, output, ignore=shutil.ignore_patterns(*_WEIGHTS))
    merged, moved = merge(adapter, base_weights(base))
    save_torch_state_dict(merged, output, metadata={"format": "pt"})
    found = {
        "run": run_directory.resolve().name,
        "step": step,
        "complete_sha256": file_sha256(save.path / COMPLETE),
        "world_size": save.world_size,
        "lora": {"r": adapter.rank, "lora_alpha": adapter.alpha, "task_type": adapter.task_type},
        "tensors": len(merged),
        "tensors_with_adapter": moved,
        "files": sorted(path.name for path in output.glob("*.safetensors")),
    }
    for path in (output / MERGED, record):  # in the folder it tells one set of weights from another
        write_json(path, found)
    write_seal(
        record,
        kind="merged_anchor",
        counts={"tensors": len(merged), "tensors_with_adapter": moved},
        outputs=[record],
        inputs=[save.path / COMPLETE, base / "config.json"],
        started=started,
        config={"run": found["run"], "step": step},
    )
    logger.info("%s, step %d: adapter added to %d of %d tensors", found["run"], step, moved, len(merged))
    return found


def base_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The base model's tensors by name, mapped."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:  # type: ignore[no-untyped-call]
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    return found


def merge(adapter: AdapterState, base: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], int]:
    """The base model's tensors, with the adapter added, in the base model's types.

    Args:
        adapter: Of the policy.
        base: The base model's tensors. Those without an adapter are given back as they are.

    Returns:
        The tensors, and how many of them the adapter changed.

    Raises:
        GenselectError: The adapter is not plain LoRA, or does not fit the base model.
    """
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in adapter.tensors.items():
        side = next((side for side in (_LORA_A, _LORA_B) if name.endswith(side)), None)
        if side is None:
            raise GenselectError(f"{adapter.folder}: {name} is of no plain LoRA", "Other adapters are not read.")
        pairs.setdefault(name.removeprefix(_PREFIX).removesuffix(side) + ".weight", {})[side] = value.float()
    if strange := sorted(set(pairs) - set(base)):
        raise GenselectError(
            f"{adapter.folder}: {len(strange)} adapter(s) have no place in the base model, such as that of {strange[0]}",
            "The run started from another model than models.base.",
        )
    merged = dict(base)
    for name, pair in pairs.items():
        if len(pair) != 2:
            raise GenselectError(
                f"{adapter.folder}: of the adapter of {name} there is one half only",
                "The save is not whole; name another.",
            )
        added = adapter.alpha / adapter.rank * (pair[_LORA_B] @ pair[_LORA_A])
        if added.shape != base[name].shape:
            raise GenselectError(
                f"{adapter.folder}: {name} has shape {tuple(added.shape)}, not {tuple(base[name].shape)}",
                "The run started from another model than models.base.",
            )
        merged[name] = (base[name].float() + added).to(base[name].dtype).contiguous()
    return merged, len(pairs)

"""A save of a run as a model that vLLM loads: the adapter added into the base model's weights.

verl's actor save holds, a file a rank, the whole model with the adapter beside it (``….base_layer.weight``, ``….lora_A.default.weight``,
``….lora_B.default.weight``) in 32 bits, as DTensors. verl 0.9.1's own merger (``verl.model_merger``) writes base and adapter apart, both
rounded to bf16 before anything is added. Here ``W + alpha / r · B A`` is computed in 32 bits and rounded once, to the type that the base
model has: what the trainer hands to its rollout engine.
"""

from __future__ import annotations

import datetime
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import safe_open
from torch.distributed.tensor import DTensor, Replicate, Shard

from genselect.errors import GenselectError
from genselect.formats import read_json, write_json
from genselect.provenance import file_sha256, write_seal
from genselect.provenance.saves import COMPLETE, Saves

_PREFIX = "base_model.model."
_LORA_A, _LORA_B = ".lora_A.default.weight", ".lora_B.default.weight"
_RANK = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.seal.json", "base_model.json")
#: The head of a model that ties it to its embedding: saved by the trainer, absent from the model's files.
_TIED = "lm_head.weight"

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
    saves = Saves(run_directory / "checkpoints")
    save = next((save for save in saves.all() if save.step == step), None)
    if save is None or save.state != "complete":
        what = "there is no such save" if save is None else f"it is {save.state}: {save.problem}"
        raise GenselectError(f"{saves.path(step)}: {what}", saves.existing())
    actor = save.path / "actor"
    meta = read_json(actor / "lora_train_meta.json") if (actor / "lora_train_meta.json").exists() else {}
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(base, output, ignore=shutil.ignore_patterns(*_WEIGHTS))
    merged, moved = merge(read_shards(actor), base_weights(base), meta, str(actor))
    save_torch_state_dict(merged, output, metadata={"format": "pt"})
    found = {
        "run": run_directory.resolve().name,
        "step": step,
        "complete_sha256": file_sha256(save.path / COMPLETE),
        "world_size": save.world_size,
        "lora": meta,
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


def read_shards(actor: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and whole 32-bit value of every tensor of a sharded save. Files are mapped, not read: memory holds one tensor at a time.

    Raises:
        GenselectError: There is no save, or a rank's file is missing.
    """
    files = {int(match[2]): path for path in actor.glob("model_*.pt") if (match := _RANK.fullmatch(path.name))}
    if not files or sorted(files) != list(range(len(files))):
        raise GenselectError(
            f"{actor}: holds model files of rank(s) {sorted(files) or 'none'}", "The save is not whole; name another."
        )
    # It warns about process groups, which nobody opens here.
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    # Our own run's file: it holds DTensors, which the weights-only reader does not know.
    shards = [torch.load(files[rank], map_location="cpu", mmap=True, weights_only=False) for rank in sorted(files)]
    for name in shards[0]:
        yield name, whole([shard[name] for shard in shards], name)


def whole(parts: Sequence[torch.Tensor], name: str) -> torch.Tensor:
    """One tensor out of the ranks' parts of it, by the placements that the DTensors carry.

    Raises:
        GenselectError: They are placed in a way that this code does not know.
    """
    first = parts[0]
    if not isinstance(first, DTensor):
        return first
    placement = first.placements[-1]
    if any(not isinstance(outer, Replicate) for outer in first.placements[:-1]):
        raise GenselectError(f"{name}: placed as {first.placements}", "Only FSDP's sharding over one axis is read.")
    local = [part.to_local() for part in parts if isinstance(part, DTensor)]
    if isinstance(placement, Replicate):
        return local[0]
    if not isinstance(placement, Shard):
        raise GenselectError(f"{name}: placed as {first.placements}", "Only FSDP's sharding over one axis is read.")
    # Replicated outside (ddp, fsdp): the first group of ranks holds everything.
    joined = torch.cat(local[: first.device_mesh.shape[-1]], dim=placement.dim)
    if joined.shape != first.shape:
        raise GenselectError(
            f"{name}: its parts make {tuple(joined.shape)}, not {tuple(first.shape)}", "The save is not whole."
        )
    return joined


def base_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The base model's tensors by name, mapped.

    Raises:
        GenselectError: It has no safetensors.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise GenselectError(f"{folder}: holds no *.safetensors", "Name the folder of the base model.")
    found: dict[str, torch.Tensor] = {}
    for path in files:
        with safe_open(path, "pt") as file:  # type: ignore[no-untyped-call]
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    return found


def merge(
    saved: Iterator[tuple[str, torch.Tensor]], base: Mapping[str, torch.Tensor], meta: Mapping[str, Any], where: str
) -> tuple[dict[str, torch.Tensor], int]:
    """The base model's tensors with the save's in their place, adapters added, in the base model's types.

    Tensors that the base model has and the save has not (heads that are not trained) stay as they are.

    Args:
        saved: Name and value of every saved tensor.
        base: The base model's tensors.
        meta: ``lora_train_meta.json``: ``r`` and ``lora_alpha``.
        where: The save, for messages.

    Returns:
        The tensors, and how many of them an adapter changed.

    Raises:
        GenselectError: A saved tensor has no place in the base model, or an adapter is not plain LoRA.
    """
    weights: dict[str, torch.Tensor] = {}
    adapters: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in saved:
        plain = name.removeprefix(_PREFIX)
        side = next((side for side in (_LORA_A, _LORA_B) if plain.endswith(side)), None)
        if side is not None:
            adapters.setdefault(plain.removesuffix(side) + ".weight", {})[side] = value.float()
        elif "lora_" in plain:
            raise GenselectError(f"{where}: {name} is of no plain LoRA", "Other adapters are not read.")
        else:
            weights[plain.replace(".base_layer.", ".")] = value
    weights = {name: value for name, value in weights.items() if name in base or name != _TIED}
    if strange := sorted({*weights, *adapters} - set(base)):
        raise GenselectError(
            f"{where}: {len(strange)} tensor(s) have no place in the base model, such as {strange[0]}",
            "The run started from another model than models.base.",
        )
    merged = dict(base)
    for name, value in weights.items():
        pair = adapters.get(name)
        if pair is not None:
            value = value.float() + _scale(meta, pair, where) * (pair[_LORA_B] @ pair[_LORA_A])
        if value.shape != base[name].shape:
            raise GenselectError(
                f"{where}: {name} has shape {tuple(value.shape)}, not {tuple(base[name].shape)}",
                "The run started from another model than models.base.",
            )
        merged[name] = value.to(base[name].dtype).contiguous()
    return merged, len(adapters)


def _scale(meta: Mapping[str, Any], pair: Mapping[str, torch.Tensor], where: str) -> float:
    if not {_LORA_A, _LORA_B} <= set(pair) or meta.get("r") != pair[_LORA_A].shape[0] or not meta.get("lora_alpha"):
        raise GenselectError(
            f"{where}: an adapter of rank {[tuple(side.shape) for side in pair.values()]} and lora_train_meta.json {dict(meta)} do "
            "not go together",
            "The save is not whole; name another.",
        )
    return float(meta["lora_alpha"]) / float(meta["r"])

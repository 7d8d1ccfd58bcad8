"""What training changed in a model, read from a save: the adapter, and the head of a value model.

A save holds, in each model's folder (``actor``, ``critic``, ``submit``), a file a rank with that rank's parts of every trained tensor, in
32 bits, as DTensors (:mod:`genselect.training.trained_weights`), and ``lora_train_meta.json``. Nothing here opens a process group, and
only torch is needed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from genselect.errors import GenselectError
from genselect.formats import read_json

#: The three trained models.
Model = Literal["policy", "critic", "predictor"]

#: Their folders in a save. verl names the first two.
FOLDERS: dict[Model, str] = {"policy": "actor", "critic": "critic", "predictor": "submit"}

_META = "lora_train_meta.json"
_RANK = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
#: PEFT keeps several adapters side by side; a trainer has this one.
_ADAPTER = ".default"
_HEAD = ".modules_to_save"


@dataclass(frozen=True)
class AdapterState:
    """What training changed in one model of one save."""

    model: Model
    folder: Path
    """Of the model, in the save."""
    rank: int
    """Of the adapter."""
    alpha: int
    """What the adapter adds to a weight is ``alpha / rank · B A``."""
    task_type: str
    """PEFT's: ``CAUSAL_LM``, or ``TOKEN_CLS`` of a value model."""
    tensors: dict[str, torch.Tensor]
    """Whole, gathered over the ranks, in the type they were trained in (32 bits), on the CPU; under the names of PEFT's
    ``adapter_model.safetensors``: ``base_model.model.<layer>.lora_A.weight`` (rank, inputs), ``….lora_B.weight`` (outputs, rank); of a
    value model also ``base_model.model.score.weight`` (1, hidden) and ``….score.bias`` (1), the whole head. Mapped from the files: to be
    copied, not written to."""


def read_adapter(save: Path, model: Model) -> AdapterState:
    """What training changed in a model.

    Whether the save is complete, and which base weights it belongs to, is for the caller to ask first
    (:meth:`genselect.provenance.saves.Saves.usable`, :func:`genselect.provenance.saves.check_base_weights`).

    Args:
        save: The folder ``checkpoints/global_step_<n>``.
        model: Which of the three.

    Raises:
        GenselectError: The save does not hold that model, a rank's file is missing, or what it holds is no adapter.
    """
    folder = save / FOLDERS[model]
    meta = read_json(folder / _META) if (folder / _META).is_file() else {}
    tensors = {_peft_name(name): value for name, value in _gathered(folder).items()}
    if frozen := next((name for name in tensors if ".base_layer." in name), None):
        raise GenselectError(
            f"{folder}: holds base weights, such as {frozen}: written by a version of genselect that saved whole models",
            "Read it with that version.",
        )
    ranks = {value.shape[0] for name, value in tensors.items() if name.endswith(".lora_A.weight")}
    if ranks != {meta.get("r")} or not meta.get("lora_alpha"):
        raise GenselectError(
            f"{folder}: adapters of rank {sorted(ranks) or 'none'} and {_META} {dict(meta)} do not go together",
            "The save is not whole; name another.",
        )
    return AdapterState(model, folder, meta["r"], meta["lora_alpha"], str(meta.get("task_type")), tensors)


def _peft_name(name: str) -> str:
    return name.replace(f"{_HEAD}{_ADAPTER}.", ".").replace(f"{_ADAPTER}.", ".")


def _gathered(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a sharded file, whole. Files are mapped, so memory holds what is joined and what is looked at."""
    files = {int(match[2]): path for path in folder.glob("model_*.pt") if (match := _RANK.fullmatch(path.name))}
    if not files or sorted(files) != list(range(len(files))):
        raise GenselectError(
            f"{folder}: holds model files of rank(s) {sorted(files) or 'none'}", "The save is not whole; name another."
        )
    # It warns about process groups, which nobody opens here.
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    # Our own run's files: they hold DTensors, which the weights-only reader does not know.
    shards: list[dict[str, Any]] = [
        torch.load(files[rank], map_location="cpu", mmap=True, weights_only=False) for rank in sorted(files)
    ]
    for rank, shard in enumerate(shards):
        if strange := sorted(shard.keys() ^ shards[0].keys()):
            raise GenselectError(
                f"{files[rank]}: does not hold the tensors that rank 0's file holds; one that is in one of them only: {strange[0]}",
                "The save is not whole; name another.",
            )
    return {name: whole([shard[name] for shard in shards], f"{folder}: {name}") for name in shards[0]}


def whole(parts: Sequence[torch.Tensor], name: str) -> torch.Tensor:
    """One tensor out of the ranks' parts of it, by the placements that the DTensors carry.

    Args:
        parts: In the order of the ranks.
        name: For messages.

    Raises:
        GenselectError: They are placed in a way that this code does not know.
    """
    first = parts[0]
    if not isinstance(first, DTensor):
        return first
    placement = first.placements[-1]
    known = isinstance(placement, Replicate | Shard) and all(
        isinstance(one, Replicate) for one in first.placements[:-1]
    )
    if not known:
        raise GenselectError(f"{name}: placed as {first.placements}", "Only FSDP's sharding over one axis is read.")
    local = [part.to_local() for part in parts if isinstance(part, DTensor)]
    if isinstance(placement, Replicate):
        return local[0]
    assert isinstance(placement, Shard)
    # Replicated outside (ddp, fsdp): the first group of ranks holds everything.
    joined = torch.cat(local[: first.device_mesh.shape[-1]], dim=placement.dim)
    if joined.shape != first.shape:
        raise GenselectError(
            f"{name}: its parts make {tuple(joined.shape)}, not {tuple(first.shape)}", "The save is not whole."
        )
    return joined

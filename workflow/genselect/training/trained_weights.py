"""The model's file in a save: what training changes, and none of the base model's frozen weights.

verl 0.9.1 writes every weight of every model (``FSDPCheckpointManager.save_checkpoint``): the policy, the critic and the submit predictor
are one frozen base model each, with an adapter, so a save held the same base weights three times, in 32 bits. Its ``save_lora_only``
keeps the tensors that have ``lora_`` in their name, so the head of a value model, which is trained whole, would be lost; and its load
of such a file looks for names too many, never for names that are missing. So this one file is ours, under verl's name and in its form (a
dictionary of DTensors, a file a rank); the optimiser's, the schedule's and the random numbers' stay verl's, as they were: an
optimiser has states of trained weights only.

The base weights come from the base model's folder, whose sha256 sums are in the save's ``complete.json``; the launcher refuses others
(:func:`genselect.provenance.saves.check_base_weights`).

Can go when verl's ``save_lora_only`` keeps whatever asks for gradients, ``modules_to_save`` included, and its load refuses a file that
lacks one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.fsdp_utils import fsdp_version

from genselect.errors import GenselectError

_OTHER_SAVE = (
    "The save is of another model or of other settings of the adapter (lora_rank, target modules), or a version of genselect wrote it "
    "that saved whole models. Go on with those, or give the run another name."
)


def trained_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What training may change in a model, by name, in the model's order: parameters that ask for gradients, and persistent buffers.

    The values are the model's own (detached), sharded where the model is: a rank sees its parts.
    """
    frozen = {
        name
        for name, value in model.state_dict(keep_vars=True).items()
        if isinstance(value, torch.nn.Parameter) and not value.requires_grad
    }
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


def load_trained_state(model: torch.nn.Module, saved: Mapping[str, torch.Tensor], where: str) -> None:
    """Copy a saved state into a model; its frozen weights stay.

    Args:
        model: Of the same shape and sharding as the one that was saved.
        saved: Of :func:`trained_state`, on any device.
        where: The file, for messages.

    Raises:
        GenselectError: A trained tensor is missing from the file or one too many in it, they come in another order (the optimiser's
            states go by it), or one has another shape, type or sharding. Nothing has been copied then.
    """
    current = trained_state(model)
    if missing := [name for name in current if name not in saved]:
        raise GenselectError(f"{where}: lacks {len(missing)} trained tensor(s), such as {missing[0]}", _OTHER_SAVE)
    if unexpected := [name for name in saved if name not in current]:
        raise GenselectError(
            f"{where}: holds {len(unexpected)} tensor(s) that this run does not train, such as {unexpected[0]}",
            _OTHER_SAVE,
        )
    if list(saved) != list(current):
        raise GenselectError(f"{where}: holds the trained tensors in another order", _OTHER_SAVE)
    for name, value in current.items():
        if _form(saved[name]) != _form(value):
            raise GenselectError(
                f"{where}: {name} is {_form(saved[name])}, and the model's is {_form(value)}", _OTHER_SAVE
            )
    for name, value in current.items():
        _local(value).copy_(_local(saved[name]))


def _form(value: torch.Tensor) -> str:
    """Shape, type and sharding."""
    sharding = f" {value.placements} over {tuple(value.device_mesh.shape)}" if isinstance(value, DTensor) else ""
    return f"{tuple(value.shape)} {value.dtype}{sharding}"


def _local(value: torch.Tensor) -> torch.Tensor:
    """This rank's part."""
    return value.to_local() if isinstance(value, DTensor) else value


class TrainedWeights(FSDPCheckpointManager):
    """verl's, but for the model's file.

    Raises:
        GenselectError: The model is sharded by FSDP1, whose flat parameters are no longer the model's own.
    """

    # The model's file is no longer verl's to write and to read.
    should_save_model = False
    should_load_model = False

    def __init__(self, model: Any, *arguments: Any, **options: Any) -> None:
        if fsdp_version(model) != 2:
            raise GenselectError(
                "verl's strategy is not fsdp2, and the saves of this workflow are of FSDP2's parameters",
                "Leave actor_rollout_ref.actor.strategy and critic.strategy out of the run's verl section.",
            )
        super().__init__(model, *arguments, **options)

    def save_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, global_step: int = 0, max_ckpt_to_keep: int | None = None
    ) -> None:
        """verl's, and this rank's parts of what is trained."""
        path = self._file(local_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(trained_state(self.model), path)
        # Returns when every rank has written.
        super().save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)

    def load_checkpoint(self, local_path: str, hdfs_path: str | None = None, del_local_after_load: Any = False) -> None:
        """This rank's parts of what is trained, and verl's. Nothing is deleted: saves are ours to keep.

        Raises:
            GenselectError: The file does not hold what this model trains.
        """
        path = self._file(local_path)
        # Our own run's file: it holds DTensors, which the weights-only reader does not know.
        load_trained_state(self.model, torch.load(path, map_location="cpu", weights_only=False), str(path))
        super().load_checkpoint(local_path, hdfs_path, del_local_after_load=False)

    def _file(self, folder: str) -> Path:
        return Path(folder) / f"model_world_size_{self.world_size}_rank_{self.rank}.pt"

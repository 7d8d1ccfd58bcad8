"""Weights on their way from the trainer to rollout engines elsewhere, on a machine without cards.

verl names a module like this one in ``checkpoint_engine.custom_backend_module`` and imports it in each worker. Its own engines want
cards (``nccl``) or a network of their own kind (``nixl``, ``mooncake``); a node with cards uses ``nccl``, and never sees this module.
"""

from __future__ import annotations

import asyncio
import pickle
import tempfile
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

#: The name under which verl finds it.
BACKEND = "gloo"
#: A side that waits longer for the other one fails, instead of hanging for ever.
_PATIENCE = timedelta(minutes=10)

Weights = list[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Meeting:
    """What :meth:`GlooCheckpointEngine.prepare` gives to verl for the topology: where the workers find each other."""

    file: str | None
    """Of the sender: through a file, so that no port is opened. Gloo itself listens where GLOO_SOCKET_IFNAME says, the loopback."""


@CheckpointEngineRegistry.register(BACKEND)
class GlooCheckpointEngine(CheckpointEngine):
    """Broadcasts from the trainer's first worker to every rollout worker of this machine.

    Args:
        bucket_size: Bytes sent at once, at least a tensor.
        is_master: This worker sends.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._bucket_size = bucket_size
        self._file: str | None = None
        if is_master:
            self._file = str(Path(tempfile.mkdtemp(prefix="genselect-weights-")) / "meeting")
        self._group: Any = None

    def prepare(self) -> Meeting:
        """Before each round of sending."""
        return Meeting(self._file)

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """verl's arguments of :meth:`init_process_group` for the trainer's workers and for the rollout's."""
        size = 1 + rollout_world_size
        ranks = [0] + [-1] * (actor_wg_world_size - 1), list(range(1, size))
        trainer, rollout = (
            {"rank": side, "size": [size] * len(side), "file": [metadata[0].file] * len(side)} for side in ranks
        )
        return trainer, rollout

    def init_process_group(self, rank: int, size: int, file: str) -> None:
        """Meet the others; once, for the group lasts. A ``rank`` of −1 takes no part."""
        if rank >= 0 and self._group is None:
            # Not torch's default group, which is the trainer's own.
            self._group = dist.ProcessGroupGloo(dist.FileStore(file, size), rank, size, _PATIENCE)

    def finalize(self) -> None:
        """After each round: nothing is held in between."""

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Send all of ``weights``. On a worker without a part in it, only produce them: that takes all of the trainer's workers."""
        bucket: Weights = []
        held = 0
        for name, weight in weights:
            if self._group is None:
                continue
            if bucket and held + weight.nbytes > self._bucket_size:
                await self._send(bucket)
                bucket, held = [], 0
            bucket.append((name, weight.detach().contiguous()))
            held += weight.nbytes
        if self._group is not None:
            await self._send(bucket)
            await self._send([])  # no more

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:  # type: ignore[override]
        """The weights that the sender sends."""
        while bucket := await self._receive():
            for entry in bucket:
                yield entry

    async def _send(self, bucket: Weights) -> None:
        header = torch.frombuffer(
            bytearray(pickle.dumps([(name, weight.dtype, tuple(weight.shape)) for name, weight in bucket])),
            dtype=torch.uint8,
        )
        await self._broadcast(torch.tensor([header.numel()]))
        await self._broadcast(header)
        for _, weight in bucket:
            await self._broadcast(_as_bytes(weight))

    async def _receive(self) -> Weights:
        length = torch.zeros(1, dtype=torch.int64)
        await self._broadcast(length)
        header = torch.empty(int(length), dtype=torch.uint8)
        await self._broadcast(header)
        bucket = [
            (name, torch.empty(shape, dtype=dtype)) for name, dtype, shape in pickle.loads(header.numpy().tobytes())
        ]
        for _, weight in bucket:
            await self._broadcast(_as_bytes(weight))
        return bucket

    async def _broadcast(self, tensor: torch.Tensor) -> None:
        """From the sender to the rest. In a thread: the worker's event loop has the rollout engine to talk to."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        if tensor.numel():
            await asyncio.to_thread(lambda: self._group.broadcast([tensor], options).wait())


def _as_bytes(weight: torch.Tensor) -> torch.Tensor:
    """The same memory, shape (bytes,): gloo does not know every type."""
    return weight.view(-1).view(torch.uint8)

"""verl's own manager and workers sync weights over our gloo engine; only Ray's worker groups are stand-ins, threads of this process."""

from __future__ import annotations

import asyncio
import types
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from verl.checkpoint_engine import base
from verl.checkpoint_engine.base import CheckpointEngineManager, CheckpointEngineWorker
from verl.workers.config import CheckpointEngineConfig
from verl.workers.engine_workers import ActorRolloutRefWorker

from genselect.training.gloo_engine import BACKEND, GlooCheckpointEngine

THREADS = ThreadPoolExecutor(8)


class Group:
    """Calls verl's methods on each worker, all at once, as Ray does: lists are one value a worker."""

    def __init__(self, workers: list[Any], verls: type) -> None:
        self.workers, self._verls = workers, verls

    @property
    def world_size(self) -> int:
        return len(self.workers)

    def execute_checkpoint_engine(self, method: list[str] | None = None, **arguments: Any) -> list[Future[Any]]:
        return [
            THREADS.submit(
                self._verls.execute_checkpoint_engine,
                worker,
                **{"method": (method or [])[number], **{key: value[number] for key, value in arguments.items()}},
            )
            for number, worker in enumerate(self.workers)
        ]

    def update_weights(self, **arguments: Any) -> list[Future[Any]]:
        return [
            THREADS.submit(lambda w=worker: asyncio.run(self._verls.update_weights(w, **arguments)))
            for worker in self.workers
        ]


class Trainer:
    """A trainer's worker: what verl's method reads of one. Its engine produces the weights of ``step``."""

    def __init__(self, master: bool) -> None:
        self.checkpoint_engine = GlooCheckpointEngine(256, is_master=master)
        self.actor = types.SimpleNamespace(engine=self)
        self.config = None
        self.step = 0

    def get_per_tensor_param(self) -> tuple[Any, None]:
        return ((f"layer.{number}", torch.full((4, 8), float(self.step + number))) for number in range(5)), None


class Engine:
    """A rollout engine's worker, and the replica that it is."""

    def __init__(self) -> None:
        self.checkpoint_engine = GlooCheckpointEngine(256)
        self.server_adapter = self
        self.workers = [self]
        self.seen: list[tuple[int, dict[str, torch.Tensor]]] = []
        self.calls: list[str] = []

    async def update_weights(self, weights: Any, global_steps: int, wire_format: str) -> None:
        assert wire_format == "named_tensors"
        self.seen.append((global_steps, {name: weight async for name, weight in weights}))
        self.calls.append("weights")

    async def _called(self, name: str) -> None:
        self.calls.append(name)

    def __getattr__(self, name: str) -> Any:
        if name in ("abort_all_requests", "release_kv_cache", "resume_kv_cache", "resume_generation"):
            return lambda **options: self._called(name)
        raise AttributeError(name)


@pytest.mark.timeout(120)
def test_after_each_step_every_engine_has_the_trainers_weights_and_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(base.ray, "get", lambda futures: [future.result(60) for future in futures])
    monkeypatch.setattr(
        base, "RayWorkerGroup", lambda worker_handles, **options: Group(worker_handles, CheckpointEngineWorker)
    )
    trainers, engines = [Trainer(master=True), Trainer(master=False)], [Engine() for _ in range(3)]
    manager = CheckpointEngineManager(
        CheckpointEngineConfig(backend=BACKEND),
        Group(trainers, ActorRolloutRefWorker),
        engines,
    )
    for step in (0, 1, 2):  # once at the start, then after each step
        for trainer in trainers:
            trainer.step = step
        manager.update_weights(step)
    for engine in engines:
        assert [step for step, _ in engine.seen] == [0, 1, 2]
        for step, weights in engine.seen:
            assert {name: float(weight[0, 0]) for name, weight in weights.items()} == {
                f"layer.{number}": step + number for number in range(5)
            }
        # Nothing is played while weights change.
        assert engine.calls[:5] == [
            "abort_all_requests", "release_kv_cache", "weights", "resume_kv_cache", "resume_generation"
        ]  # fmt: skip

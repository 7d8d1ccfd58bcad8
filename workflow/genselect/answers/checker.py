r"""Run stage 2 in worker processes that can be killed, so that one hostile pair costs its time limit and no more."""

from __future__ import annotations

import logging
import math
import multiprocessing
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from genselect.answers.library import quiet_library
from genselect.answers.symbolic import SymbolicVerdict, symbolic_verdict

__all__ = ["SymbolicChecker"]

Pair = tuple[str, str]
_BATCH = 64
_MEMORY_BYTES = 8 * 2**30


class SymbolicChecker:
    """Pool of killable workers that answer ``symbolic_verdict``. Use as a context manager.

    Args:
        workers: Number of processes.
        timeout_s: Limit for one pair, in seconds. A pair over it, or one that kills its worker, gets ``TIMEOUT``.

    Pairs travel in batches under the limit of a single pair; a batch that fails is asked again pair by pair. So the
    verdict on a pair does not depend on its neighbours or on the order.
    """

    def __init__(self, workers: int = 2, timeout_s: float = 5.0) -> None:
        if workers < 1 or timeout_s <= 0:
            raise ValueError("workers and timeout_s must be positive")
        self.workers, self.timeout_s = workers, timeout_s
        self._pool: ProcessPool | None = None

    def __enter__(self) -> Self:
        # A fresh interpreter per worker: forking a process that holds threads or a GPU context can deadlock.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPool(max_workers=self.workers, context=context, initializer=_prepare_worker)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop() if kind else pool.close()
            pool.join()

    def check(self, gold: str, pred: str) -> SymbolicVerdict:
        """Verdict on one pair of bare answers."""
        return self.check_many([(gold, pred)])[0]

    def check_many(self, pairs: Iterable[Pair]) -> list[SymbolicVerdict]:
        """Verdicts in the order of ``pairs``. Raises RuntimeError outside the ``with`` block."""
        pending = list(pairs)
        size = max(1, min(_BATCH, math.ceil(len(pending) / (4 * self.workers))))
        batches = [pending[start : start + size] for start in range(0, len(pending), size)]
        futures = [self._submit(batch) for batch in batches]
        verdicts: list[SymbolicVerdict] = []
        for batch, future in zip(batches, futures, strict=True):
            verdicts.extend(self._collect(batch, future))
        return verdicts

    def _submit(self, batch: list[Pair]) -> ProcessFuture:
        if self._pool is None:
            raise RuntimeError("SymbolicChecker is used outside its 'with' block")
        return self._pool.schedule(_check_batch, args=[batch], timeout=self.timeout_s)

    def _collect(self, batch: list[Pair], future: ProcessFuture) -> list[SymbolicVerdict]:
        try:
            return [SymbolicVerdict(value) for value in future.result()]
        except (TimeoutError, ProcessExpired, MemoryError):
            if len(batch) == 1:
                return [SymbolicVerdict.TIMEOUT]
            futures = [self._submit([pair]) for pair in batch]
            return [self._collect([pair], single)[0] for pair, single in zip(batch, futures, strict=True)]


def _check_batch(batch: list[Pair]) -> list[str]:
    return [symbolic_verdict(gold, pred).value for gold, pred in batch]


def _prepare_worker() -> None:
    logging.disable(logging.CRITICAL)
    quiet_library()
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(_MEMORY_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))  # a pair may not take the machine down with it
    except (ImportError, ValueError, OSError):
        pass  # no such limit on this system: the time limit still holds

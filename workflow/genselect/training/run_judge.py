"""The judge on a card of a run's own (``layout.judge``): which cards are whose, and the server that lives as long as the attempt."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from genselect.config import Judge
from genselect.config.training import Run
from genselect.errors import GenselectError
from genselect.judge.server import VllmServer

VISIBLE = "CUDA_VISIBLE_DEVICES"
_LOOK_S = 2.0

logger = logging.getLogger("genselect")


@dataclass(frozen=True)
class Asked:
    """What the trainer is to know of the judge."""

    judge: Judge
    """Whom to ask: the run's own server shows as an endpoint."""
    environment: dict[str, str] = field(default_factory=dict)
    """The trainer's further environment: its cards, without the judge's."""


def split_cards(run: Run, visible: str | None, present: int) -> tuple[list[str], list[str]]:
    """Names of the cards that train and roll out, and of those that judge: the last ones.

    Args:
        run: Resolved.
        visible: ``CUDA_VISIBLE_DEVICES``, such as a scheduler sets; None where nobody has.
        present: Cards of the machine.

    Raises:
        GenselectError: The run takes more cards than it may see.
    """
    names = [name for name in visible.split(",") if name] if visible is not None else list(map(str, range(present)))
    if len(names) < run.cards:
        raise GenselectError(
            f"the run takes {run.cards} cards ({run.layout.judge} of them for the judge), and sees {len(names)}",
            "Lower runs.<name>.cards or change its layout, or ask the scheduler for more cards.",
        )
    names = names[: run.cards]
    ours = run.cards - run.layout.judge
    return names[:ours], names[ours:]


@contextlib.contextmanager
def own_judge(judge: Judge, run: Run, cards: int, log: Path, stop: Path) -> Iterator[Asked]:
    """The judge that the run asks. With cards kept for it and ``judge.kind: vllm``, a server on them, ended with the block.

    A server that ends before would leave submissions without a verdict, so the run is asked to save and stop; started again, it
    resumes with a new server.

    Args:
        judge: The configuration's.
        run: Resolved.
        cards: Cards of the machine; 0 for none, where the server runs on the CPU.
        log: The server's.
        stop: Made when the server has ended, to stop the run at its next step boundary.

    Raises:
        GenselectError: Too few cards, or the server does not start; the message holds the end of its log.
    """
    if not run.layout.judge:
        yield Asked(judge)
        return
    ours, its = split_cards(run, os.environ.get(VISIBLE), cards) if cards else ([], [])
    environment = {VISIBLE: ",".join(ours)} if ours else {}
    if judge.kind != "vllm":  # servers that already run; the card is theirs
        yield Asked(judge, environment)
        return
    with VllmServer(_on_cards(judge, its), log) as server:
        server.wait_until_ready()
        with _watched(server, stop):
            yield Asked(judge.model_copy(update={"kind": "endpoints", "endpoints": [server.url]}), environment)


def _on_cards(judge: Judge, cards: Sequence[str]) -> Judge:
    """``judge``, its server on ``cards``; a larger model is spread over several."""
    if not cards:
        return judge
    spread = ["--tensor-parallel-size", str(len(cards))] if len(cards) > 1 else []
    server = judge.server.model_copy(
        update={
            "env": {**judge.server.env, VISIBLE: ",".join(cards)},
            # The configuration's own come last, and win.
            "args": [*spread, *judge.server.args],
        }
    )
    return judge.model_copy(update={"server": server})


@contextlib.contextmanager
def _watched(server: VllmServer, stop: Path) -> Iterator[None]:
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_S):
            try:
                server.check()
            except GenselectError as error:
                logger.error("stopping at the next step boundary, for its submissions would have no verdict: %s", error)
                stop.touch()
                return

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()

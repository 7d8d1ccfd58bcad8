"""What the cards did while something ran: ``gpu_watch.jsonl``, one line a look, from NVIDIA's management library (NVML).

For whoever asks afterwards whether the cards were busy, how near to full their memory came, or when one throttled. It never
gets in the way: without a card nothing is written, and a card that stops answering ends the watch with one warning.
"""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

GPU_WATCH = "gpu_watch.jsonl"
#: Seconds between two looks.
EVERY_S = 15.0

logger = logging.getLogger(__name__)


@contextmanager
def gpu_watch(path: Path, marks: Mapping[str, Any] | None = None, *, every_s: float = EVERY_S) -> Iterator[None]:
    """Append a line to ``path`` every ``every_s`` seconds while the block runs, the first at once; nothing without a card.

    A line: ``time`` (UTC), the ``marks``, and ``cards``, for each its ``index``, ``utilisation`` (per cent of the time since the last
    look in which a kernel ran), ``memory_used`` and ``memory_total`` (MiB, all processes), ``power`` (W), ``temperature`` (°C).
    What a card does not tell is null.

    Args:
        path: The file; it is appended to, so several attempts share it.
        marks: Written into every line, such as the attempt's number.
        every_s: Seconds between two looks.
    """
    handles = _open()
    if not handles:
        yield
        return
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(path, dict(marks or {}), handles, every_s, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(timeout=every_s)


def _open() -> list[Any]:
    """A handle for each card that this process may use; empty without library, driver or card."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # whatever is missing means that there is nothing to watch
        return []


def _watch(path: Path, marks: dict[str, Any], handles: list[Any], every_s: float, over: threading.Event) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            while True:
                now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
                cards = [_look(index, handle) for index, handle in enumerate(handles)]
                file.write(orjson.dumps({"time": now, **marks, "cards": cards}) + b"\n")
                file.flush()
                if over.wait(every_s):
                    return
    except Exception as error:  # a full disk, a card that fell off the bus: no reason to end what is being watched
        logger.warning("%s: the cards are no longer watched: %s", path, error)


def _look(index: int, handle: Any) -> dict[str, Any]:
    import pynvml

    def ask(question: Any, *arguments: Any) -> Any:
        try:
            return question(handle, *arguments)
        except pynvml.NVMLError:  # MIG slices and some boards do not tell everything
            return None

    memory = ask(pynvml.nvmlDeviceGetMemoryInfo)
    busy = ask(pynvml.nvmlDeviceGetUtilizationRates)
    power = ask(pynvml.nvmlDeviceGetPowerUsage)
    return {
        "index": index,
        "utilisation": None if busy is None else busy.gpu,
        "memory_used": None if memory is None else round(memory.used / 2**20),
        "memory_total": None if memory is None else round(memory.total / 2**20),
        "power": None if power is None else round(power / 1000),
        "temperature": ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
    }

"""The watch over the cards, with a stand-in for NVIDIA's library: no card is at hand where the tests run."""

from __future__ import annotations

import json
import logging
import sys
import time
import types
from pathlib import Path

import pytest

from genselect.provenance.gpu_watch import gpu_watch


class NVMLError(Exception):
    pass


def library(cards: int, **changes: object) -> types.ModuleType:
    """As nvidia-ml-py's module looks to the watch."""
    module = types.ModuleType("pynvml")
    answers = {
        "NVMLError": NVMLError,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: cards,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda card: types.SimpleNamespace(used=(card + 1) * 2**30, total=141 * 2**30),
        "nvmlDeviceGetUtilizationRates": lambda card: types.SimpleNamespace(gpu=90 + card),
        "nvmlDeviceGetPowerUsage": lambda card: 612_345,
        "nvmlDeviceGetTemperature": lambda card, sensor: 61,
        **changes,
    }
    for name, value in answers.items():
        setattr(module, name, value)
    return module


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_look_at_every_card_is_a_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library(2))
    path = tmp_path / "run" / "gpu_watch.jsonl"
    with gpu_watch(path, {"attempt": 3}, every_s=0.05):
        time.sleep(0.3)
    found = lines(path)
    assert len(found) >= 3
    assert found[0]["attempt"] == 3
    assert found[0]["cards"] == [
        {"index": 0, "utilisation": 90, "memory_used": 1024, "memory_total": 144384, "power": 612, "temperature": 61},
        {"index": 1, "utilisation": 91, "memory_used": 2048, "memory_total": 144384, "power": 612, "temperature": 61},
    ]


def test_the_next_attempt_goes_on_in_the_same_file_and_nothing_is_written_after_the_end(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library(1))
    path = tmp_path / "gpu_watch.jsonl"
    for attempt in (1, 2):
        with gpu_watch(path, {"attempt": attempt}, every_s=0.05):
            pass
    assert [line["attempt"] for line in lines(path)] == [1, 2]
    time.sleep(0.15)
    assert len(lines(path)) == 2


def test_without_a_card_there_is_no_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library(0))
    with gpu_watch(tmp_path / "gpu_watch.jsonl", every_s=0.05):
        time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []


def test_what_a_card_does_not_tell_is_null(tmp_path, monkeypatch) -> None:
    def refuse(card: int) -> None:
        raise NVMLError("Not Supported")

    monkeypatch.setitem(sys.modules, "pynvml", library(1, nvmlDeviceGetUtilizationRates=refuse))
    with gpu_watch(tmp_path / "gpu_watch.jsonl", every_s=0.05):
        pass
    card = lines(tmp_path / "gpu_watch.jsonl")[0]["cards"][0]
    assert card["utilisation"] is None
    assert card["memory_used"] == 1024


def test_a_watch_that_fails_does_not_end_what_it_watches(
    tmp_path, monkeypatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "gpu_watch.jsonl").mkdir()
    monkeypatch.setitem(sys.modules, "pynvml", library(1))
    with caplog.at_level(logging.WARNING), gpu_watch(tmp_path / "gpu_watch.jsonl", every_s=0.05):
        reached = True
    assert reached
    assert "the cards are no longer watched" in caplog.text

"""The worker pool: hostile pairs cost their time limit, the rest is answered, and order does not matter."""

from __future__ import annotations

import importlib

import pytest

from genselect.answers import SymbolicChecker, SymbolicVerdict, checker

EASY = [("1/2", "0.5"), ("1/2", "1/3"), ("20", "20%"), (r"\frac{1", "1"), ("x^2-1", "(x-1)(x+1)")]
EXPECTED = ["equal", "different", "guarded", "unparsable", "equal"]


# What a worker runs must be importable in a fresh process, so it is a module of its own.
HOSTILE = """
import os, time
from genselect.answers.symbolic import symbolic_verdict

def check_batch(batch):
    if any(gold == "sleep" for gold, _ in batch):
        time.sleep(60)
    if any(gold == "die" for gold, _ in batch):
        os._exit(9)
    return [symbolic_verdict(gold, pred).value for gold, pred in batch]
"""


@pytest.fixture(scope="module")
def pool():
    with SymbolicChecker(workers=2, timeout_s=3) as running:
        yield running


def test_verdicts_come_back_in_order_whatever_the_batch(pool):
    assert pool.check_many(EASY) == EXPECTED
    assert pool.check_many(EASY[::-1] * 30) == EXPECTED[::-1] * 30
    assert [pool.check(*pair) for pair in EASY] == EXPECTED
    assert pool.check_many([]) == []


def test_a_pair_over_its_time_and_a_dying_worker_do_not_disturb_the_others(monkeypatch, tmp_path):
    (tmp_path / "hostile_batches.py").write_text(HOSTILE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(checker, "_check_batch", importlib.import_module("hostile_batches").check_batch)
    pairs = [*EASY, ("sleep", "1"), *EASY, ("die", "1"), *EASY] * 2
    with SymbolicChecker(workers=2, timeout_s=1.5) as running:
        verdicts = running.check_many(pairs)
        assert running.check("1/2", "0.5") is SymbolicVerdict.EQUAL
    assert verdicts == [*EXPECTED, "timeout", *EXPECTED, "timeout", *EXPECTED] * 2


def test_use_outside_the_with_block_is_refused():
    with pytest.raises(RuntimeError, match="outside"):
        SymbolicChecker().check("1", "1")
    with pytest.raises(ValueError, match="positive"):
        SymbolicChecker(timeout_s=0)

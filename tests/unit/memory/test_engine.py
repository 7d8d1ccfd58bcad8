"""The engine's share: what is left for rows, and how many it holds."""

from __future__ import annotations

from small_model import engine

from genselect.memory import Architecture, adapter_weights, all_weights, model_architecture
from genselect.memory.engine import engine_memory, key_value_bytes, state_bytes

CARD = 100 * 2**20


def test_a_token_of_the_9b_model_takes_32_kib_of_keys_and_values() -> None:
    nine = model_architecture("Qwen/Qwen3.5-9B")
    # Eight layers, a key and a value for each of four heads of 256, two bytes each.
    assert key_value_bytes(nine, 2) == 8 * 2 * 4 * 256 * 2 == 32 * 1024
    # 24 layers: three past inputs of 8,192 channels, and 32 matrices of 128 by 128 in 32 bits.
    assert state_bytes(nine, 2) == 24 * (8192 * 3 * 2 + 32 * 128 * 128 * 4)


def test_what_weights_leave_is_for_rows(small: Architecture) -> None:
    found = engine_memory(small, engine(), rank=8, card=CARD, engines=8)
    weights = sum(weight.count for weight in all_weights(small, "policy"))
    assert found.share == CARD // 2
    assert found.weights == 2 * (weights + adapter_weights(small, 8))
    assert found.cache == found.share - found.weights - found.working
    assert found.row == key_value_bytes(small, 2) * 512 + state_bytes(small, 2)
    assert found.rows == found.cache / found.row
    assert found.wanted == 8  # 64 episodes over eight engines


def test_merged_weights_need_no_room_for_adapters_and_a_larger_share_holds_more(small: Architecture) -> None:
    adapters = engine_memory(small, engine(), 8, CARD, 8)
    merged = engine_memory(small, engine(merged=True), 8, CARD, 8)
    assert adapters.weights - merged.weights == 2 * adapter_weights(small, 8)
    assert engine_memory(small, engine(share=0.9), 8, CARD, 8).rows > adapters.rows
    assert engine_memory(small, engine(share=0.001), 8, CARD, 8).rows == 0

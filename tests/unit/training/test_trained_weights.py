"""A save holds what is trained, and gives it back to the last bit: two processes over gloo, sharded by FSDP2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from genselect.errors import GenselectError
from genselect.provenance.saves import Saves
from genselect.training.adapter_state import read_adapter
from genselect.training.trained_weights import TrainedWeights

PROGRAM = Path(__file__).with_name("two_ranks.py")


@dataclass(frozen=True)
class Seen:
    """What the two processes wrote."""

    saves: Saves
    ranks: list[dict[str, Any]]
    whole: dict[str, torch.Tensor]
    """Every trained tensor at the save, gathered by torch."""

    @property
    def critic(self) -> Path:
        return self.saves.path(2) / "critic"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Seen:
    folder = tmp_path_factory.mktemp("two_ranks")
    environment = {**os.environ, "PYTHONPATH": str(repository / "workflow"), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(PROGRAM), str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank)], env=environment, stderr=subprocess.PIPE, text=True) for rank in (0, 1)
    ]
    try:
        said = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    saves = Saves(folder / "checkpoints")
    saves.mark_complete(2, world_size=2, attempt=1, base_weights={"model.safetensors": "a" * 64})
    written = [json.loads((folder / f"seen_{rank}.json").read_text()) for rank in (0, 1)]
    return Seen(saves, written, torch.load(folder / "whole.pt"))


def test_a_save_holds_adapters_and_head_and_no_frozen_weight(seen: Seen) -> None:
    for rank, found in enumerate(seen.ranks):
        names = found["saved"]
        assert len(names) == 2 * 7 * 2 + 2, "two halves of an adapter on seven matrices of two layers, and the head"
        assert all("lora_" in name or "score.modules_to_save" in name for name in names)
        size = (seen.critic / f"model_world_size_2_rank_{rank}.pt").stat().st_size
        # Names and placements take most of so small a file.
        assert 4 * found["numbers"] < size < 4 * found["all_numbers"]


def test_another_model_that_loads_it_is_the_saved_one_and_goes_on_alike(seen: Seen) -> None:
    for found in seen.ranks:
        assert any("lora_A" in name for name in found["fresh"]), "it did not begin alike"
        assert found["loaded"] == [], "weights, moments, learning rate"
        assert found["went_on"] == [], "the next update draws and changes the same"


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            "missing",
            "file.pt: lacks 1 trained tensor(s), such as base_model.model.model.layers.0.self_attn.q_proj.lora_A",
        ),
        ("unexpected", "holds 1 tensor(s) that this run does not train, such as base_model.model.other.weight"),
        ("order", "holds the trained tensors in another order"),
        ("type", "torch.float64 (Shard(dim=0),) over (2,), and the model's is (1,) torch.float32"),
        ("sharding", "torch.float32, and the model's is (1,) torch.float32 (Shard(dim=0),) over (2,)"),
        (
            "rank",
            "lora_A.default.weight is (3, 24) torch.float32 (Shard(dim=0),) over (2,), and the model's is (4, 24)",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused_and_changes_nothing(seen: Seen, fault: str, says: str) -> None:
    for found in seen.ranks:
        message, changed = found["refusals"][fault]
        assert says in message
        assert changed == []


def test_the_ranks_parts_are_read_as_what_torch_gathers(seen: Seen) -> None:
    found = read_adapter(seen.saves.path(2), "critic")
    assert (found.rank, found.alpha, found.task_type) == (3, 6, "TOKEN_CLS")
    assert found.tensors["base_model.model.score.weight"].shape == (1, 24)
    plain = {name.replace(".modules_to_save", "").replace(".default", ""): value for name, value in seen.whole.items()}
    assert found.tensors.keys() == plain.keys()
    assert all(torch.equal(found.tensors[name], value) for name, value in plain.items())


def test_another_number_of_ranks_or_other_base_weights_are_refused(seen: Seen) -> None:
    ours = {"model.safetensors": "a" * 64}
    assert seen.saves.last_complete_save(2, ours) is not None
    with pytest.raises(GenselectError, match=r"saved by 2 rank\(s\), and this attempt has 1"):
        seen.saves.last_complete_save(1, ours)
    with pytest.raises(GenselectError, match=rf"model\.safetensors had sha256 {'a' * 64} then, and has {'b' * 64}"):
        seen.saves.last_complete_save(2, {"model.safetensors": "b" * 64})


def test_a_model_that_is_not_sharded_by_fsdp2_is_refused() -> None:
    with pytest.raises(GenselectError, match="strategy is not fsdp2"):
        TrainedWeights(torch.nn.Linear(2, 2))

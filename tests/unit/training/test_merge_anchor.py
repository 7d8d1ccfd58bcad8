"""An anchor's merged weights answer as base and adapter together do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from genselect.base_model.folder import weights_sha256
from genselect.base_model.network import build_network, save_model
from genselect.base_model.tokenizer import build_tokenizer
from genselect.errors import GenselectError
from genselect.provenance import check_seal, file_sha256
from genselect.provenance.saves import Saves
from genselect.training.adapter_state import read_adapter
from genselect.training.merge_anchor import merge_anchor
from genselect.training.trained_weights import trained_state

RANK, ALPHA, STEP = 4, 8, 5

#: Cuts a save into two ranks' DTensors, as FSDP2 does; in a process of its own, for it opens a (fake) process group.
SHARD = """
import sys, torch, torch.distributed as dist
from pathlib import Path
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
folder, rank = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
whole = torch.load(folder / "whole.pt")
cut = {}
for name, value in whole.items():
    parts = value.chunk(2)
    local = parts[rank] if rank < len(parts) else value[:0]
    cut[name] = DTensor.from_local(local.clone(), mesh, [Shard(0)], run_check=False, shape=value.shape, stride=value.stride())
torch.save(cut, folder / f"model_world_size_2_rank_{rank}.pt")
"""


class Anchor:
    """A base model, and a run's save of it with an adapter that changes much."""

    def __init__(self, folder: Path) -> None:
        self.base, self.run = folder / "base", folder / "run"
        self.actor = self.run / "checkpoints" / f"global_step_{STEP}" / "actor"
        self.actor.mkdir(parents=True)
        tokenizer = build_tokenizer(["solve"])
        save_model(build_network(tokenizer, 1), tokenizer, self.base)
        network = get_peft_model(
            load(self.base),
            LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", exclude_modules=["lm_head"]),
        )
        torch.manual_seed(2)
        for name, weight in network.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.2)
        self.logits = answer(network)
        self.network = network
        self.saved = {name: value.clone() for name, value in trained_state(network).items()}
        (self.actor / "lora_train_meta.json").write_text(
            json.dumps({"r": RANK, "lora_alpha": ALPHA, "task_type": "CAUSAL_LM"})
        )
        torch.save(self.saved, self.actor / "model_world_size_1_rank_0.pt")

    def complete(self, world_size: int = 1) -> None:
        Saves(self.run / "checkpoints").mark_complete(
            STEP, world_size=world_size, attempt=1, base_weights=weights_sha256(self.base)
        )

    def merge(self, output: Path, step: int = STEP) -> dict:
        return merge_anchor(self.run, step, self.base, output, output.with_suffix(".json"))


@pytest.fixture
def anchor(tmp_path: Path) -> Anchor:
    return Anchor(tmp_path)


def load(folder: Path):
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


def answer(network) -> torch.Tensor:
    ids = torch.randint(10, 120, (3, 40), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return network.eval()(input_ids=ids).logits


def test_merged_weights_give_the_logits_of_base_and_adapter(anchor: Anchor, tmp_path: Path) -> None:
    anchor.complete()
    found = anchor.merge(tmp_path / "merged")
    logits = answer(load(tmp_path / "merged"))
    torch.testing.assert_close(logits, anchor.logits, atol=1e-4, rtol=1e-4)
    assert (logits - answer(load(anchor.base))).abs().max() > 1
    assert found["tensors_with_adapter"] > 20
    assert (tmp_path / "merged" / "chat_template.jinja").exists()
    assert check_seal(tmp_path / "merged.json") is not None


def test_the_parts_of_several_ranks_give_the_same_weights(anchor: Anchor, tmp_path: Path) -> None:
    anchor.complete()
    anchor.merge(tmp_path / "one")
    (anchor.actor / "model_world_size_1_rank_0.pt").rename(anchor.actor / "whole.pt")
    for rank in range(2):
        subprocess.run([sys.executable, "-c", SHARD, str(anchor.actor), str(rank)], check=True)
    (anchor.actor / "whole.pt").unlink()
    anchor.complete(world_size=2)
    assert anchor.merge(tmp_path / "two")["world_size"] == 2
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_save_that_is_not_whole_or_not_there_is_refused(anchor: Anchor, tmp_path: Path) -> None:
    with pytest.raises(GenselectError, match="it is incomplete"):
        anchor.merge(tmp_path / "merged")
    anchor.complete()
    with pytest.raises(GenselectError, match="there is no such save") as caught:
        anchor.merge(tmp_path / "merged", step=7)
    assert "Saved steps there: 5" in caught.value.hint
    Saves(anchor.run / "checkpoints").mark_broken(STEP, "no call at all")
    with pytest.raises(GenselectError, match="it is broken: no call at all"):
        anchor.merge(tmp_path / "merged")


def test_a_save_that_belongs_to_other_base_weights_is_refused(anchor: Anchor, tmp_path: Path) -> None:
    anchor.complete()
    (weights,) = anchor.base.glob("*.safetensors")
    before = file_sha256(weights)
    tensors = load_file(weights)
    save_file({name: value + 1 for name, value in tensors.items()}, weights)
    with pytest.raises(GenselectError, match=rf"{weights.name} had sha256 {before} then, and has") as caught:
        anchor.merge(tmp_path / "merged")
    assert file_sha256(weights) in caught.value.message
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "other.lora_A.default.weight",
            r"1 adapter\(s\) have no place in the base model, such as that of other\.weight",
        ),
        ("other.lora_magnitude_vector.default.weight", "is of no plain LoRA"),
        ("other.base_layer.weight", "by a version of genselect that saved whole models"),
    ],
)
def test_a_save_of_another_kind_is_refused(anchor: Anchor, tmp_path: Path, name: str, says: str) -> None:
    saved = {**anchor.saved, f"base_model.model.{name}": torch.ones(RANK, 2)}
    torch.save(saved, anchor.actor / "model_world_size_1_rank_0.pt")
    anchor.complete()
    with pytest.raises(GenselectError, match=says):
        anchor.merge(tmp_path / "merged")


def test_an_adapter_is_read_under_pefts_own_names_in_the_trainers_type(anchor: Anchor) -> None:
    found = read_adapter(anchor.actor.parent, "policy")
    assert (found.rank, found.alpha, found.task_type) == (RANK, ALPHA, "CAUSAL_LM")
    theirs = get_peft_model_state_dict(anchor.network)
    assert found.tensors.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(found.tensors[name], value)
        assert found.tensors[name].dtype == torch.float32
    with pytest.raises(GenselectError, match=r"critic: holds model files of rank\(s\) none"):
        read_adapter(anchor.actor.parent, "critic")


def test_an_adapter_of_another_rank_than_its_settings_say_is_refused(anchor: Anchor, tmp_path: Path) -> None:
    (anchor.actor / "lora_train_meta.json").write_text(json.dumps({"r": 2, "lora_alpha": ALPHA}))
    anchor.complete()
    with pytest.raises(GenselectError, match="do not go together"):
        anchor.merge(tmp_path / "merged")

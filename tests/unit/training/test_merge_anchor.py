"""An anchor's merged weights answer as base and adapter together do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForImageTextToText

from genselect.base_model.network import build_network, save_model
from genselect.base_model.tokenizer import build_tokenizer
from genselect.errors import GenselectError
from genselect.provenance import check_seal
from genselect.provenance.saves import Saves
from genselect.training.merge_anchor import merge_anchor

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
        self.saved = {name: value.detach().clone() for name, value in network.state_dict().items()}
        (self.actor / "lora_train_meta.json").write_text(json.dumps({"r": RANK, "lora_alpha": ALPHA}))
        torch.save(self.saved, self.actor / "model_world_size_1_rank_0.pt")

    def complete(self, world_size: int = 1) -> None:
        Saves(self.run / "checkpoints").mark_complete(STEP, world_size=world_size, attempt=1)

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


def test_a_save_of_another_model_is_refused(anchor: Anchor, tmp_path: Path) -> None:
    torch.save(
        {**anchor.saved, "base_model.model.other.weight": torch.ones(2)}, anchor.actor / "model_world_size_1_rank_0.pt"
    )
    anchor.complete()
    with pytest.raises(GenselectError, match=r"1 tensor\(s\) have no place in the base model, such as other\.weight"):
        anchor.merge(tmp_path / "merged")


def test_an_adapter_of_another_rank_than_its_settings_say_is_refused(anchor: Anchor, tmp_path: Path) -> None:
    (anchor.actor / "lora_train_meta.json").write_text(json.dumps({"r": 2, "lora_alpha": ALPHA}))
    anchor.complete()
    with pytest.raises(GenselectError, match="do not go together"):
        anchor.merge(tmp_path / "merged")

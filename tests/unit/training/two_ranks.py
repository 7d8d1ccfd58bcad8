"""One of two processes that train, save and load a small value model with an adapter, sharded by FSDP2 over gloo.

python two_ranks.py FOLDER RANK

Writes what it saw to ``FOLDER/seen_<rank>.json``; rank 0 the trained tensors, whole, to ``FOLDER/whole.pt``.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import LoraConfig, TaskType, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForTokenClassification

from genselect.errors import GenselectError
from genselect.training.trained_weights import TrainedWeights, load_trained_state, trained_state

#: Three rows over two ranks: neither gets as many as the other. Of the head's one output, the second gets nothing.
RANK = 3


class Trained:
    """A model with optimiser, schedule and checkpoint manager, as an engine of verl's has them.

    Args:
        mesh: Of both ranks.
        seed: Of adapter and head; the frozen weights are always the same.
        rank: Of the adapter.
    """

    def __init__(self, mesh: Any, seed: int, rank: int = RANK) -> None:
        torch.manual_seed(0)
        settings = LlamaConfig(
            vocab_size=300,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            num_labels=1,
        )
        network = LlamaForTokenClassification(settings)
        torch.manual_seed(seed)
        adapter = LoraConfig(
            task_type=TaskType.TOKEN_CLS, r=rank, lora_alpha=6, target_modules="all-linear", exclude_modules=["score"]
        )
        self.model: Any = get_peft_model(network, adapter)
        torch.nn.init.normal_(self.model.base_model.model.score.modules_to_save.default.weight)
        for layer in self.model.base_model.model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))
        self.manager = TrainedWeights(self.model, self.optimizer, self.schedule, None, None)

    def step(self) -> None:
        """An update on tokens that the process's generator draws."""
        ids = torch.randint(0, 300, (2, 9))
        self.model.eval()(input_ids=ids).logits.square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of this rank's parts of everything: weights, moments, learning rate."""
        found = {name: value.to_local().clone() for name, value in self.model.state_dict().items()}
        for number, moments in self.optimizer.state_dict()["state"].items():
            found |= {f"{number}.{name}": local(value).clone() for name, value in moments.items()}
        return {**found, "rate": torch.tensor(self.schedule.get_last_lr())}


def local(value: Any) -> torch.Tensor:
    """This rank's part."""
    return value.to_local() if hasattr(value, "to_local") else value


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """Names of what is not the same to the last bit."""
    return sorted(
        name
        for name in one.keys() | other.keys()
        if name not in one or name not in other or not torch.equal(one[name], other[name])
    )


def refusals(trained: Trained, saved: dict[str, torch.Tensor]) -> Iterator[tuple[str, str, list[str]]]:
    """For each fault in a file: its name, what loading it says, and what it changed all the same."""
    first, *_, last = saved
    faults: dict[str, dict[str, Any]] = {
        "missing": {name: value for name, value in saved.items() if name != first},
        "unexpected": {**saved, "base_model.model.other.weight": saved[first]},
        "order": dict(reversed(saved.items())),
        "type": {**saved, last: saved[last].double()},
        "sharding": {**saved, last: local(saved[last])},
    }
    for name, file in faults.items():
        yield name, *refusal(trained, lambda file=file: load_trained_state(trained.model, file, "file.pt"))


def refusal(trained: Trained, load: Callable[[], None]) -> tuple[str, list[str]]:
    """What loading says, and what it changed all the same."""
    before = trained.state()
    try:
        load()
    except GenselectError as error:
        return error.message, differing(trained.state(), before)
    return "", differing(trained.state(), before)


def main(folder: Path, rank: int) -> None:
    """Train, save, go on; load into another model, go on; and load what does not fit."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=60),
    )
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    save = folder / "checkpoints" / "global_step_2" / "critic"
    whole = Trained(mesh, seed=1)
    for _ in range(2):
        whole.step()
    saved = whole.state()
    whole.manager.save_checkpoint(str(save), None, 2)
    kept = trained_state(whole.model)
    tensors = {name: value.full_tensor().clone() for name, value in kept.items()}
    if rank == 0:
        torch.save(tensors, folder / "whole.pt")
    file = torch.load(save / f"model_world_size_2_rank_{rank}.pt", weights_only=False)
    whole.step()

    resumed = Trained(mesh, seed=2)
    fresh = differing(resumed.state(), saved)
    resumed.manager.load_checkpoint(str(save))
    loaded = differing(resumed.state(), saved)
    resumed.step()
    seen = {
        "saved": sorted(file),
        "fresh": fresh,
        "loaded": loaded,
        "went_on": differing(resumed.state(), whole.state()),
        "numbers": sum(value.to_local().numel() for value in file.values()),
        "all_numbers": sum(value.to_local().numel() for value in resumed.model.state_dict().values()),
        "refusals": {name: [message, changed] for name, message, changed in refusals(resumed, file)},
    }
    wider = Trained(mesh, seed=3, rank=RANK + 1)
    seen["refusals"]["rank"] = refusal(wider, lambda: wider.manager.load_checkpoint(str(save)))
    (folder / f"seen_{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

"""A base model, and a run's save of a policy whose adapter changes much."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForImageTextToText

from genselect.base_model.folder import weights_sha256
from genselect.base_model.network import build_network, save_model
from genselect.base_model.tokenizer import build_tokenizer
from genselect.formats import write_json
from genselect.provenance.saves import Saves
from genselect.training.trained_weights import trained_state

RANK, ALPHA, STEP = 4, 8, 20


class AdapterSave:
    """``results/`` with ``models/mini`` and one save of the run ``formal``; ``logits`` are the trained policy's."""

    def __init__(self, results: Path, targets: str | list[str] = "all-linear") -> None:
        self._lies_in(results)
        self.actor.mkdir(parents=True)
        tokenizer = build_tokenizer(["solve"])
        save_model(build_network(tokenizer, 1), tokenizer, self.base)
        torch.manual_seed(2)
        network = get_peft_model(
            load(self.base), LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, exclude_modules=["lm_head"])
        )
        for name, weight in network.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.2)
        self.logits = answer(network)
        meta = {"r": RANK, "lora_alpha": ALPHA, "task_type": "CAUSAL_LM"}
        (self.actor / "lora_train_meta.json").write_text(json.dumps(meta))
        torch.save(
            {name: value.clone() for name, value in trained_state(network).items()},
            self.actor / "model_world_size_1_rank_0.pt",
        )
        write_json(self.run / "manifest.json", {"fingerprint": "f" * 64, "provenance": {"git_commit": "c" * 40}})

    def _lies_in(self, results: Path) -> None:
        self.results, self.base, self.run = results, results / "models" / "mini", results / "runs" / "formal"
        self.saves = Saves(self.run / "checkpoints")
        self.actor = self.saves.path(STEP) / "actor"

    def copy(self, results: Path) -> AdapterSave:
        """The same, elsewhere."""
        other = copy.copy(self)
        other._lies_in(shutil.copytree(self.results, results))
        return other

    def complete(self) -> None:
        self.saves.mark_complete(STEP, world_size=1, attempt=1, base_weights=weights_sha256(self.base))


def load(folder: Path):
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


def answer(network) -> torch.Tensor:
    ids = torch.randint(10, 120, (3, 40), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return network.eval()(input_ids=ids).logits

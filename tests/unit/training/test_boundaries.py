"""Packed rows of a value model do not see each other, once its forward names their boundaries."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForTokenClassification
from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

from genselect.base_model import gated_delta
from genselect.base_model.network import build_network, save_model
from genselect.base_model.tokenizer import build_tokenizer
from genselect.training.boundaries import name_boundaries

LENGTHS = (17, 40, 23)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(["solve"])
    save_model(build_network(tokenizer, seed=1), tokenizer, target)
    return target


@pytest.fixture
def value_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A value model as verl loads it for packed rows, with the delta rule of machines without cards."""
    from verl.models.transformers.monkey_patch import apply_monkey_patch

    monkeypatch.setattr(modeling, "torch_chunk_gated_delta_rule", gated_delta.chunk_gated_delta_rule)
    for name in ("Model", "DecoderLayer", "GatedDeltaNet", "ForConditionalGeneration"):
        # verl patches the classes themselves: what other tests of this process build must be transformers' own again.
        network = getattr(modeling, f"Qwen3_5{name}")
        monkeypatch.setattr(network, "forward", network.forward)
    config = AutoConfig.from_pretrained(folder)
    config.num_labels = 1
    config.classifier_dropout = 0.0
    torch.manual_seed(0)
    model = AutoModelForTokenClassification.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="sdpa"
    )
    apply_monkey_patch(model=model, use_remove_padding=True, ulysses_sp_size=1)
    return model.eval()


def values(model: Any, boundaries: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Each row's values on its own, and from the packed sequence."""
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(20, 400, (length,), generator=generator) for length in LENGTHS]
    ends = torch.tensor([0, *LENGTHS]).cumsum(0)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    options = {"cu_seqlens": ends, "cu_seqlens_cpu": ends} if boundaries else {}
    with torch.no_grad():
        alone = [
            model(
                input_ids=row[None], attention_mask=None, position_ids=torch.arange(len(row))[None], use_cache=False
            ).logits[0]
            for row in rows
        ]
        packed = model(
            input_ids=torch.cat(rows)[None], attention_mask=None, position_ids=positions, use_cache=False, **options
        ).logits[0]
    return alone, list(packed.split(LENGTHS))


def test_verl_sees_that_the_forward_takes_boundaries(value_model: Any) -> None:
    # This is how verl decides whether to pass them (FSDPEngine._build_model_optimizer).
    assert "cu_seqlens" not in inspect.signature(value_model.forward).parameters
    name_boundaries(value_model)
    assert "cu_seqlens" in inspect.signature(value_model.forward).parameters
    assert name_boundaries(value_model) is value_model


def test_with_boundaries_packed_equals_padded(value_model: Any) -> None:
    alone, packed = values(name_boundaries(value_model), boundaries=True)
    for first, second in zip(alone, packed, strict=True):
        assert torch.allclose(first, second, atol=1e-5)


def test_without_boundaries_state_leaks_into_the_later_rows(value_model: Any) -> None:
    # The fault that the study lost days to: were it gone upstream, this test would say so.
    alone, packed = values(value_model, boundaries=False)
    assert torch.allclose(alone[0], packed[0], atol=1e-5)
    assert (alone[1] - packed[1]).abs().max() > 1e-3

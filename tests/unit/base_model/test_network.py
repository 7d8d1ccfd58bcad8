"""The network is the real architecture, and its faster linear attention is the same function."""

from __future__ import annotations

import pytest
import torch
import transformers.models.qwen3_5.modeling_qwen3_5 as modeling
from transformers import AutoConfig, AutoModelForTokenClassification
from transformers.models.qwen3_5 import Qwen3_5ForConditionalGeneration

from genselect.base_model import gated_delta
from genselect.base_model.network import LAYERS, build_network, save_model

# Kept before any test installs ours.
UPSTREAM = modeling.torch_chunk_gated_delta_rule


@pytest.fixture
def _upstream_afterwards(monkeypatch):
    monkeypatch.setattr(modeling, "torch_chunk_gated_delta_rule", UPSTREAM)


def inputs(time, *, batch=2, heads=3, key=16, value=24, dtype=torch.float32):
    generator = torch.Generator().manual_seed(time)
    shaped = [(batch, time, heads, size) for size in (key, key, value)]
    query, keys, values = (torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shaped)
    g = (-torch.rand(batch, time, heads, generator=generator)).requires_grad_()
    beta = torch.rand(batch, time, heads, generator=generator).requires_grad_()
    return [query, keys, values, g, beta]


@pytest.mark.parametrize("time", [1, 31, 32, 33, 64, 65, 200])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("with_state", [True, False])
def test_the_faster_rule_equals_upstreams_with_its_gradients(time, normalised, with_state):
    scale = 1.0 if normalised else 0.3  # unnormalised keys of this size make the rule unstable in any implementation
    state = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(7)) if with_state else None
    results = []
    for rule in (UPSTREAM, gated_delta.chunk_gated_delta_rule):
        given = inputs(time)
        query, key, *others = given
        output, last = rule(
            query * scale,
            key * scale,
            *others,
            initial_state=state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=normalised,
        )
        (output.square().sum() + last.sin().sum()).backward()
        results.append([output, last, *(each.grad for each in given)])
    for ours, theirs in zip(results[1], results[0], strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-4)


def test_it_keeps_the_type_and_leaves_the_state_out_unless_asked():
    output, state = gated_delta.chunk_gated_delta_rule(*inputs(40, dtype=torch.bfloat16), use_qk_l2norm_in_kernel=True)
    assert (output.dtype, output.shape, state) == (torch.bfloat16, (2, 40, 3, 24), None)


@pytest.mark.usefixtures("_upstream_afterwards")
def test_an_installed_rule_is_the_one_that_new_models_use(tokenizer):
    ids = torch.randint(20, 300, (2, 50), generator=torch.Generator().manual_seed(1))
    before = build_network(tokenizer, 1)
    gated_delta.install()
    after = build_network(tokenizer, 1)
    assert after.model.language_model.layers[0].linear_attn.chunk_gated_delta_rule is gated_delta.chunk_gated_delta_rule
    with torch.no_grad():
        theirs, ours = (
            network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits for network in (before, after)
        )
    assert ours.shape == (2, 50, before.config.text_config.vocab_size)
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_the_seed_decides_the_weights(tokenizer):
    one, same, other = (build_network(tokenizer, seed).lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_saved_model_loads_as_policy_and_as_value_model(tokenizer, tmp_path):
    network = build_network(tokenizer, 1)
    save_model(network, tokenizer, tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.model_type, config.architectures) == ("qwen3_5", ["Qwen3_5ForConditionalGeneration"])
    assert tuple(config.text_config.layer_types) == LAYERS
    ids = torch.tensor([[20, 30, 40]])
    with torch.no_grad():
        loaded = Qwen3_5ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32)
        assert all(torch.equal(weight, loaded.state_dict()[name]) for name, weight in network.state_dict().items())
        assert torch.allclose(loaded(input_ids=ids).logits, network(input_ids=ids).logits, atol=1e-6)
        critic = AutoModelForTokenClassification.from_pretrained(tmp_path, dtype=torch.float32, num_labels=1)
        assert critic(input_ids=ids).logits.shape == (1, 3, 1)

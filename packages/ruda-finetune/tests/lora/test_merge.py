"""Merged models answer like the live adapter."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from ruda_finetune import (
    AdapterError,
    LoRALinear,
    NF4Linear,
    inject_lora,
    merge_lora,
    quantize_nf4,
)


def llama(tied=False):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=61,
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
        )
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "proj" in name:
                parameter.mul_(3)
    return model


def adapt(model, size, targets="all-linear"):
    inject_lora(model, targets, rank=8, alpha=16.0)
    torch.manual_seed(2)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, LoRALinear):
                module.lora_B.normal_(std=size)


IDS = torch.arange(3, 23)[None]


@pytest.mark.parametrize("size", [0.0005, 0.005, 0.05])
@pytest.mark.parametrize("base", ["nf4", "dense"])
def test_merge_keeps_the_adapters_effect(base, size, device):
    """Quantising the sum again would lose most of the smallest of these."""
    model = llama()
    if base == "nf4":
        quantize_nf4(model)
    adapt(model, size)
    model.to(device)
    ids = IDS.to(device)
    with torch.no_grad():
        live = model(ids).logits
        layers = [m for m in model.modules() if isinstance(m, LoRALinear)]
        scaling = [m.scaling for m in layers]
        for module in layers:
            module.scaling = 0.0
        plain = model(ids).logits
        for module, value in zip(layers, scaling):
            module.scaling = value
        names = merge_lora(model)
        merged = model(ids).logits
    assert len(names) == 14
    effect = (live - plain).norm()
    assert (merged - live).norm() < 0.01 * effect
    kinds = {type(module) for module in model.modules()}
    assert NF4Linear not in kinds
    assert LoRALinear not in kinds


def test_dense_merge_keeps_keys_parameters_and_dtype():
    model = llama().to(torch.bfloat16)
    keys = list(model.state_dict())
    parameter = model.model.layers[0].self_attn.q_proj.weight
    adapt(model, 0.1)
    update = model.model.layers[0].self_attn.q_proj.delta()
    wanted = (parameter.detach().float() + update).to(torch.bfloat16)
    merge_lora(model)
    assert list(model.state_dict()) == keys
    assert model.model.layers[0].self_attn.q_proj.weight is parameter
    assert torch.equal(parameter, wanted)


def test_nf4_merge_dtype():
    model = llama()
    quantize_nf4(model)
    adapt(model, 0.1)
    merge_lora(model, dtype=torch.bfloat16)
    assert model.model.layers[0].self_attn.q_proj.weight.dtype == torch.bfloat16
    dense = llama()
    adapt(dense, 0.1)
    with pytest.raises(AdapterError, match="for NF4 bases"):
        merge_lora(dense, dtype=torch.bfloat16)


def test_tied_weight_is_refused():
    model = llama(tied=True)
    adapt(model, 0.1, ["lm_head", "q_proj"])
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(AdapterError, match=r"'lm_head' is tied to model\.embed_tokens\.weight"):
        merge_lora(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_overflow_names_the_layer():
    model = llama().half()
    adapt(model, 1e6, ["q_proj"])
    with pytest.raises(AdapterError, match=r"layers\.0\.self_attn\.q_proj' is not finite"):
        merge_lora(model)


def test_shared_module_merges_once():
    model = nn.Module()
    model.first = nn.Linear(4, 4)
    model.second = model.first
    weight = model.first.weight.detach().clone()
    adapt(model, 0.5)
    update = model.first.delta()
    assert merge_lora(model) == ["first"]
    assert model.first is model.second
    torch.testing.assert_close(model.first.weight, weight + update)


def test_nothing_to_merge():
    with pytest.raises(AdapterError, match="no adapters"):
        merge_lora(llama())

"""Training NF4 + LoRA equals training LoRA on the dequantised weights as dense modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from ruda_finetune import NF4Linear, adapter_state_dict, fuse_model, inject_lora, quantize_nf4
from ruda_finetune.targets import replace_module

STEPS = 10


def quantised_llama():
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=131,
            hidden_size=96,
            intermediate_size=168,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "proj" in name:
                parameter.mul_(3)
            elif "embed" in name:
                parameter.mul_(8)
    quantize_nf4(model)
    return model


def dense_copy(model):
    for layer in [m for m in model.modules() if isinstance(m, NF4Linear)]:
        dense = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        dense.weight = nn.Parameter(layer.dequantize())
        replace_module(model, layer, dense)
    return model


def batches():
    """Left-padded rows of a task that can be learned: each token is the last one plus three."""
    generator = torch.Generator().manual_seed(4)
    for _ in range(STEPS):
        start = torch.randint(3, 128, (4, 1), generator=generator)
        ids = 3 + (start + 3 * torch.arange(20)) % 128
        mask = torch.ones_like(ids)
        mask[0, :7] = 0
        mask[2, :1] = 0
        yield ids, mask


def train(model, device):
    torch.manual_seed(1)
    inject_lora(model, rank=8, alpha=16.0)
    model.to(device).train()
    adapters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=2e-2, weight_decay=0.01)
    losses = []
    for ids, mask in batches():
        loss = model(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            labels=ids.masked_fill(mask == 0, -100).to(device),
            use_cache=False,
        ).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach().cpu()))
    return losses, {k: t.cpu() for k, t in adapter_state_dict(model).items()}


@pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])
def test_nf4_training_equals_dense_training(device, fused):
    wanted, wanted_adapter = train(dense_copy(quantised_llama()), torch.device("cpu"))
    model = quantised_llama()
    if fused:
        fuse_model(model)
    losses, adapter = train(model, device)
    assert wanted[-1] < wanted[0] - 0.5  # it does learn
    for step, (got, value) in enumerate(zip(losses, wanted)):
        assert abs(got - value) <= 1e-3 * value, f"step {step}: {got} against {value}"
    for key, tensor in wanted_adapter.items():
        error = (adapter[key] - tensor).norm()
        assert error <= 1e-2 * tensor.norm(), key

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from ruda_finetune import (
    CausalLMFinetuner,
    LRSchedule,
    SFTCollator,
    SFTTrainer,
    TrainingBatches,
    inject_lora,
)

VOCABULARY = 61


@pytest.fixture(params=["cpu", "ruda:0"])
def device(request):
    if request.param != "cpu":
        import ruda_torch  # noqa: F401 - registers the device
    return torch.device(request.param)


def make_rows(count=10, seed=0):
    """Pretokenised rows of very different lengths, each with a masked beginning."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for index in range(count):
        length = 3 + (index * 7) % 23
        ids = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        masked = 1 + index % (length - 1)
        rows.append({"input_ids": ids, "labels": [-100] * masked + ids[masked:]})
    return rows


def tiny_llama():
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def make_optimizer(parameters, device, **options):
    if device.type == "cpu":
        return torch.optim.AdamW(parameters, **options)
    import ruda_torch

    return ruda_torch.AdamW(parameters, **options)


def make_model(device="cpu", rank=4, dropout=0.0, **options):
    """A tiny Llama with LoRA on every linear layer, on the device, as a CausalLMFinetuner."""
    model = tiny_llama()
    inject_lora(model, rank=rank, alpha=2.0 * rank, dropout=dropout)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # B starts at zero, and the gradient of A with it
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return CausalLMFinetuner.from_model(model.to(device), **options)


def make_run(
    device="cpu",
    *,
    rank=4,
    dropout=0.2,
    seed=3,
    rows=None,
    base_id="base",
    batch_size=2,
    accumulation=2,
    total=8,
    weight_decay=0.01,
    scheduler=True,
    max_grad_norm=1.0,
    fused=None,
    collator=None,
    **options,
):
    """A whole run, made from nothing: model, optimiser, schedule, data, trainer."""
    device = torch.device(device)
    torch.manual_seed(seed)
    model = make_model(device, rank, dropout)
    parameters = [value for value in model.parameters() if value.requires_grad]
    settings = {"lr": 1e-2, "weight_decay": weight_decay}
    if device.type == "ruda" and fused is not False:
        settings |= {"fused_step": True, "max_grad_norm": max_grad_norm}
    optimizer = make_optimizer(parameters, device, **settings)
    data = TrainingBatches(
        make_rows() if rows is None else rows,
        collator or SFTCollator(pad_token_id=0),
        batch_size,
        accumulation,
        seed=seed,
    )
    return SFTTrainer(
        model,
        optimizer,
        base_id,
        {"seed": seed, "lora": {"rank": rank, "dropout": dropout}},
        scheduler=LRSchedule(optimizer, "cosine", total, 2) if scheduler else None,
        max_grad_norm=max_grad_norm,
        data=data,
        **options,
    )


def weights(trainer):
    """Copies of everything that is trained, by name."""
    return {
        name: value.detach().cpu().clone()
        for name, value in trainer.model.named_parameters()
        if value.requires_grad
    }


class Toy(nn.Module):
    """A model of one matrix, for tests of files and loops that need no language model."""

    def __init__(self, width=4):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.embedding.weight.requires_grad_(False)
        self.linear = nn.Linear(width, VOCABULARY)

    def forward(self, input_ids, labels, attention_mask=None, reduction="sum"):
        logits = self.linear(self.embedding(input_ids))[:, :-1]
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
        )


def make_toy(seed=0, **options):
    torch.manual_seed(seed)
    model = Toy()
    optimizer = torch.optim.AdamW(
        [value for value in model.parameters() if value.requires_grad], lr=1e-2
    )
    data = TrainingBatches(make_rows(), SFTCollator(pad_token_id=0), 2, 2)
    return SFTTrainer(model, optimizer, "toy", {"seed": seed}, data=data, **options)


@pytest.fixture
def kit():
    """The builders above; test files cannot import this module."""
    return SimpleNamespace(
        make_rows=make_rows,
        tiny_llama=tiny_llama,
        make_model=make_model,
        make_optimizer=make_optimizer,
        make_run=make_run,
        make_toy=make_toy,
        weights=weights,
        vocabulary=VOCABULARY,
    )

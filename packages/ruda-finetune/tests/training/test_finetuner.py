from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM

from ruda_finetune import CausalLMFinetuner, FinetuneError, SFTCollator
from ruda_finetune.training.finetuner import right_padded


def test_loss_is_the_models_own(kit, device):
    model = kit.tiny_llama()
    batch = SFTCollator(pad_token_id=0)(kit.make_rows(4))
    own = model(**batch).loss  # mean over shifted labels
    finetuner = CausalLMFinetuner.from_model(model.to(device))
    moved = {name: tensor.to(device) for name, tensor in batch.items()}
    loss = finetuner(**moved)
    torch.testing.assert_close(loss.detach().cpu(), own.detach(), rtol=1e-5, atol=1e-6)
    total = finetuner(**moved, reduction="sum")
    count = (batch["labels"][:, 1:] != -100).sum()
    torch.testing.assert_close(total.detach().cpu() / count, own.detach(), rtol=1e-5, atol=1e-6)


def test_nothing_is_copied_and_ties_stay(kit):
    model = kit.tiny_llama()
    finetuner = CausalLMFinetuner.from_model(model)
    assert finetuner.backbone is model.model and finetuner.head is model.lm_head
    assert finetuner.head.weight is finetuner.backbone.embed_tokens.weight
    assert finetuner.checkpointed == ["layers.0", "layers.1"]


def test_mask_is_left_out_only_for_right_padding(kit):
    finetuner = CausalLMFinetuner.from_model(kit.tiny_llama())
    batch = SFTCollator(pad_token_id=0)(kit.make_rows(4))
    device = torch.device("cpu")
    assert set(finetuner.prepare_batch(batch, device)) == {"input_ids", "labels"}
    left = {name: tensor.flip(1) for name, tensor in batch.items()}
    assert set(finetuner.prepare_batch(left, device)) == set(batch)
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    with torch.no_grad():
        with_mask, without = (
            finetuner(**inputs) for inputs in (batch, finetuner.prepare_batch(batch, device))
        )
    torch.testing.assert_close(with_mask, without, rtol=1e-5, atol=1e-6)


def test_right_padded():
    rows = {(1, 1, 1): True, (1, 1, 0): True, (0, 0, 0): True, (0, 1, 1): False, (1, 0, 1): False}
    for row, expected in rows.items():
        assert right_padded(torch.tensor([[1, 1, 1], row])) is expected


def test_plain_modules_serve_as_backbone(kit):
    torch.manual_seed(0)
    backbone = nn.Embedding(kit.vocabulary, 8)
    finetuner = CausalLMFinetuner(
        backbone, nn.Linear(8, kit.vocabulary), activation_checkpointing=False
    )
    batch = SFTCollator(pad_token_id=0)(kit.make_rows(3))
    assert finetuner(batch["input_ids"], batch["labels"]).item() > 0
    with pytest.raises(FinetuneError, match="takes no attention_mask"):
        finetuner(**batch)


def test_checkpointing_halves_the_logits_too():
    head = nn.Linear(8, 49_152, bias=False, device="meta")

    def chunk(**options: object) -> int | None:
        blocks = nn.Sequential(nn.ModuleList([nn.Linear(8, 8)]))
        return CausalLMFinetuner(blocks, head, **options).token_chunk_size

    assert chunk() == 24 * 2**20 // (4 * 49_152)
    assert chunk(token_chunk_size=7) == 7
    assert chunk(activation_checkpointing=False) is None


def test_models_that_change_their_logits_are_refused():
    config = Gemma2Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    with pytest.raises(FinetuneError, match="final_logit_softcapping = 30"):
        CausalLMFinetuner.from_model(Gemma2ForCausalLM(config))
    with pytest.raises(FinetuneError, match="Linear is not a causal language model"):
        CausalLMFinetuner.from_model(nn.Linear(2, 2))

"""The number of threads changes no gradient; torch's setting is the one that counts."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import ruda_runtime
from ruda_finetune import CausalLMFinetuner, fuse_model, inject_lora, quantize_nf4

TOKENS = (2, 96)


def gradients(dtype: torch.dtype, checkpointing: bool) -> dict[str, torch.Tensor]:
    """The loss and every gradient of one step, large enough for loops of many parts."""
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=2000,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    quantize_nf4(model, "all-linear")
    model = model.to(device="ruda:0", dtype=dtype)
    fuse_model(model)
    inject_lora(model, rank=8, alpha=16.0)
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # B starts at zero, and the gradient of A with it
        for name, value in trained.items():
            if "lora_B" in name:
                value.copy_(torch.randn(value.shape, generator=generator) * 0.1)
    finetuner = CausalLMFinetuner.from_model(model, activation_checkpointing=checkpointing)
    ids = torch.randint(0, 2000, TOKENS, generator=generator).to("ruda:0")
    loss = finetuner(ids, ids)
    loss.backward()
    return {"loss": loss.detach().cpu()} | {n: v.grad.cpu() for n, v in trained.items()}


@pytest.fixture
def restored_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_one_and_two_threads_give_equal_gradients(restored_threads, dtype, checkpointing):
    import ruda_torch  # noqa: F401 - registers the device

    runs = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        assert ruda_runtime.get_num_threads() == count
        runs.append(gradients(dtype, checkpointing))
    one = runs[0]
    assert len(one) == 1 + 2 * 7 * 2 and all(value.abs().sum() > 0 for value in one.values())
    for other in runs[1:]:
        assert [name for name in one if not torch.equal(one[name], other[name])] == []

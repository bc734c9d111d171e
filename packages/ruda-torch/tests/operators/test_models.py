"""Tiny random models of transformers: training and generation on ruda equal to the CPU's, with no
operator missing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import ruda_torch

transformers = pytest.importorskip("transformers")

D = "ruda"
VOCABULARY = 97


def llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=64,
            tie_word_embeddings=True,
        )
    )  # fmt: skip


def qwen3():
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=3, head_dim=16, max_position_embeddings=64,
        )
    )  # fmt: skip


def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_positions=64, attn_pdrop=0.0,
            resid_pdrop=0.0, embd_pdrop=0.0, bos_token_id=1, eos_token_id=None,
        )
    )  # fmt: skip


MODELS = {"llama": llama, "qwen3": qwen3, "gpt2": gpt2}
transformers.logging.set_verbosity_error()


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    torch.manual_seed(0)
    made = MODELS[request.param]()
    made.generation_config.pad_token_id = 0
    made.generation_config.eos_token_id = None
    return made


def batch() -> dict[str, Tensor]:
    """Three rows, two of them left-padded."""
    ids = torch.randint(1, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    mask[2, :1] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def on_ruda(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(D) for name, tensor in tensors.items()}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("fused", [None, True])
def test_training(model, attention: str, fused: bool | None) -> None:
    ours, theirs = copy.deepcopy(model).to(D).train(), copy.deepcopy(model).train()
    for each in (ours, theirs):
        each.set_attn_implementation(attention)
    inputs = batch()
    inputs["labels"] = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2, fused=fused) for m in (ours, theirs)]
    for step in range(3):
        losses = [ours(**on_ruda(inputs)).loss, theirs(**inputs).loss]
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
        torch.testing.assert_close(losses[0].cpu(), losses[1], rtol=2e-5, atol=0)
        if step == 0:
            pairs = zip(ours.named_parameters(), theirs.parameters(), strict=True)
            for (name, one), other in pairs:
                error = (one.grad.cpu() - other.grad).norm() / other.grad.norm()
                assert error < 1e-5, (name, error)
        norms = [torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0) for m in (ours, theirs)]
        torch.testing.assert_close(norms[0].cpu(), norms[1], rtol=1e-4, atol=0)
        for optimizer in optimizers:
            optimizer.step()
    assert losses[0] < 4.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_in_half_types(model, dtype: torch.dtype) -> None:
    twin = copy.deepcopy(model).double()
    ours = copy.deepcopy(model).to(dtype).to(D).train()
    inputs = batch()
    inputs["labels"] = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    loss, wanted = ours(**on_ruda(inputs)).loss, twin(**inputs).loss
    loss.backward()
    wanted.backward()
    torch.testing.assert_close(loss.cpu().float(), wanted.float(), rtol=1e-2, atol=0)
    for (name, one), other in zip(ours.named_parameters(), twin.parameters(), strict=True):
        error = (one.grad.cpu().double() - other.grad).norm() / other.grad.norm()
        assert error < 0.1, (name, error)


def test_training_under_autocast(model) -> None:
    ours = copy.deepcopy(model).to(D).train()
    inputs = on_ruda(batch())
    with torch.autocast(D):
        loss = ours(**inputs, labels=inputs["input_ids"]).loss
    plain = ours(**inputs, labels=inputs["input_ids"]).loss
    torch.testing.assert_close(loss.float(), plain, rtol=2e-2, atol=0)
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in ours.parameters())


def test_gradient_checkpointing(model) -> None:
    ours = copy.deepcopy(model).to(D).train()
    inputs = on_ruda(batch())
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            ours.activation_checkpointing_enable({"use_reentrant": False})
        ours.zero_grad()
        ours(**inputs, labels=inputs["input_ids"], use_cache=False).loss.backward()
        gradients.append([p.grad.clone() for p in ours.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_generation(model, use_cache: bool) -> None:
    ours = copy.deepcopy(model).to(D).eval()
    options = {"max_new_tokens": 8, "do_sample": False, "use_cache": use_cache}
    inputs = batch()
    result = ours.generate(**on_ruda(inputs), **options)
    assert result.device.type == D
    assert torch.equal(result.cpu(), model.eval().generate(**inputs, **options))
    # A padded row is what it is alone.
    alone = inputs["input_ids"][1:2, 4:].to(D)
    single = ours.generate(alone, attention_mask=torch.ones_like(alone), **options)
    assert torch.equal(single[0, -8:], result[1, -8:])


@pytest.mark.parametrize("use_cache", [True, False])
def test_sampling(model, use_cache: bool) -> None:
    ours = copy.deepcopy(model).to(D).eval()
    inputs = on_ruda(batch())
    options = {
        "max_new_tokens": 8, "do_sample": True, "use_cache": use_cache, "temperature": 0.8,
        "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1,
    }  # fmt: skip
    results = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        results.append(ours.generate(**inputs, **options))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    assert results[0].shape == (3, 19)


def test_beams_and_static_cache(model) -> None:
    ours = copy.deepcopy(model).to(D).eval()
    inputs = batch()
    for options in (
        {"num_beams": 3, "do_sample": False},
        {"do_sample": False, "cache_implementation": "static"},
    ):
        result = ours.generate(**on_ruda(inputs), max_new_tokens=6, **options)
        wanted = model.eval().generate(**inputs, max_new_tokens=6, **options)
        assert torch.equal(result.cpu(), wanted)


def test_a_step_leaves_no_memory_behind(model) -> None:
    ours = copy.deepcopy(model).to(D).train()
    inputs = on_ruda(batch())

    def step() -> int:
        ours(**inputs, labels=inputs["input_ids"]).loss.backward()
        return torch.ruda.memory_allocated()

    step()
    assert step() == step()
    assert ruda_torch.execution_stats()["transfers_to_host"] >= 0


def test_dropout_model_trains_reproducibly() -> None:
    torch.manual_seed(0)
    config = gpt2().config
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.1
    ours = transformers.GPT2LMHeadModel(config).to(D).train()
    inputs = on_ruda(batch())
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(ours(**inputs, labels=inputs["input_ids"]).loss.item())
    assert losses[0] == losses[1] != losses[2]

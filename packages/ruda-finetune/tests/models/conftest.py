"""Tiny random models of the five families, and of some that are not fused."""

from __future__ import annotations

import pytest
import torch

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# name -> model type and what differs from SIZES
CASES = {
    "llama": ("llama", {"attention_bias": True, "tie_word_embeddings": False}),
    "llama_tied": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama3_rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "qwen2": ("qwen2", {}),
    "qwen2_window": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
        },
    ),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral_window": ("mistral", {"sliding_window": 5}),
    "gemma": ("gemma", {"num_key_value_heads": 1}),
}


def make_model(case: str, seed: int = 0):
    """A tiny model in evaluation mode whose norms and biases are not at their trivial start."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, changes = CASES[case]
    config = AutoConfig.for_model(model_type, **{**SIZES, **changes})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif "embed" not in name and "lm_head" not in name:
                parameter.mul_(3)  # the default start is so small that attention is uniform
    return model.eval()


@pytest.fixture(scope="session")
def build():
    return make_model


@pytest.fixture(params=["cpu", "ruda:0"])
def device(request):
    if request.param != "cpu":
        import ruda_torch  # noqa: F401 - registers the device
    return torch.device(request.param)

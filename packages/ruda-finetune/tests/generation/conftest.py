"""A tiny model with a byte-level tokenizer, so that every text is readable."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
import torch
import transformers

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(params=["cpu", "ruda:0"])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param != "cpu":
        import ruda_torch  # noqa: F401 - registers the device
    return torch.device(request.param)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """One token a byte, two control tokens and <|endoftext|>; no padding token."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={t: i for i, t in enumerate([*names, *alphabet])}, merges=[])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(names)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", chat_template=TEMPLATE
    )


@pytest.fixture(params=["llama", "qwen3", "gemma"])
def model(request: pytest.FixtureRequest, tokenizer: Any, device: torch.device) -> Any:
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(
        request.param,
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    built = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # far from uniform, so that the likeliest token is never a near tie
        for name, parameter in built.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(8 if "lm_head" in name else 4)
        readable = [
            len(tokenizer.decode([i])) == 1 and tokenizer.decode([i]).isascii()
            for i in range(len(tokenizer))
        ]
        built.lm_head.weight.mul_(torch.tensor(readable)[:, None])  # no halves of characters
    return built.to(device).eval()

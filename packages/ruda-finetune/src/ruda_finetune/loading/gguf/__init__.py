"""GGUF files: the reader, the block formats, and what the files mean to transformers."""

from __future__ import annotations

from .container import GGUFFile, GGUFTensor, open_gguf
from .quants import SUPPORTED_TYPES, dequantize

__all__ = ["SUPPORTED_TYPES", "GGUFFile", "GGUFTensor", "dequantize", "open_gguf"]

"""Asking a model: batched greedy decoding and sampling."""

from __future__ import annotations

from .batched import GenerationProgress, generate, generate_tokens, stop_token_ids

__all__ = ["GenerationProgress", "generate", "generate_tokens", "stop_token_ids"]

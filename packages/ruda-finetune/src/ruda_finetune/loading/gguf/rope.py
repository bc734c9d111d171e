"""Rotary parameters of a GGUF file as transformers' `rope_parameters`."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ...errors import ModelFileError
from .container import GGUFFile

_DEFAULT_THETA = 10000.0
# Llama 3.1 to 3.3 were all made with these; the factor is read off the frequencies.
_LLAMA3_BANDS = ((1.0, 4.0),)
_LLAMA3_CONTEXTS = (8192, 4096, 16384, 32768)


def rope_parameters(file: GGUFFile, head_dim: int) -> dict[str, Any]:
    """`{"rope_type": …, "rope_theta": …, …}` for a head of `head_dim` rotated dimensions.

    Understands the scaling types `none`, `linear` and `yarn`, the older `rope.scale_linear`, and a
    `rope_freqs.weight` tensor (factors by which each frequency is divided): as `llama3` where the
    factors are Llama 3's, else as `longrope` with these factors at every length. Other types are a
    `ModelFileError`.
    """

    def get(key: str, default: Any = None) -> Any:
        return file.metadata.get(f"{file.architecture}.rope.{key}", default)

    parameters: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": float(get("freq_base", _DEFAULT_THETA)),
    }
    kind = get("scaling.type") or "linear"  # as llama.cpp reads a factor without a type
    factor = float(get("scaling.factor") or get("scale_linear") or 1.0)
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:
        if kind != "none" and factor != 1.0:
            raise ModelFileError(
                f"[load_gguf] {file.path}: both rope_freqs.weight and rope scaling {kind!r} by "
                f"{factor} are present; this combination is not supported"
            )
        return parameters | _from_factors(file, parameters["rope_theta"], head_dim)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return parameters
    if kind == "linear":
        return parameters | {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return parameters | _yarn(file, get, factor)
    raise ModelFileError(
        f"[load_gguf] {file.path}: rope scaling {kind!r} is not supported; supported: none, "
        "linear, yarn, and factors in rope_freqs.weight"
    )


def _yarn(file: GGUFFile, get: Any, factor: float) -> dict[str, Any]:
    original = get("scaling.original_context_length")
    if not original:
        raise ModelFileError(
            f"[load_gguf] {file.path}: rope scaling 'yarn' needs "
            f"{file.architecture}.rope.scaling.original_context_length"
        )
    parameters = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": int(original),
    }
    attention = get("scaling.attn_factor", get("scaling.yarn_attn_factor"))
    if attention is not None:
        # llama.cpp multiplies its own 1 + 0.1 ln(factor) by this; transformers' value replaces it
        parameters["attention_factor"] = float(attention) * (0.1 * math.log(factor) + 1.0)
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if (value := get(f"scaling.{key}")) is not None:
            parameters[name] = float(value)
    return parameters


def _from_factors(file: GGUFFile, theta: float, head_dim: int) -> dict[str, Any]:
    tensor = file.tensors["rope_freqs.weight"]
    factors = tensor.dequantize().reshape(-1)
    if factors.size != head_dim // 2 or not (np.isfinite(factors).all() and (factors > 0).all()):
        raise ModelFileError(
            f"[load_gguf] {file.path}: rope_freqs.weight must hold {head_dim // 2} positive "
            f"factors: got {factors.size}"
        )
    if (factors == 1).all():
        return {}
    factor = float(factors.max())
    for (low, high), context in itertools.product(_LLAMA3_BANDS, _LLAMA3_CONTEXTS):
        if np.allclose(factors, llama3_factors(theta, head_dim, factor, low, high, context), 1e-5):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": context,
            }
    values = [float(value) for value in factors]
    return {
        "rope_type": "longrope",
        "short_factor": values,
        "long_factor": values,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": int(
            file.metadata.get(f"{file.architecture}.context_length", 1)
        ),
    }


def llama3_factors(
    theta: float, head_dim: int, factor: float, low: float, high: float, context: int
) -> np.ndarray:
    """By what Llama 3 divides each of its `head_dim / 2` frequencies: 1 for wavelengths under
    `context / high`, `factor` over `context / low`, interpolated in the frequency between."""
    frequencies = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    wavelengths = 2 * math.pi / frequencies
    smooth = np.clip((context / wavelengths - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)

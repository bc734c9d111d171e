"""Streaming a safetensors checkpoint into NF4 layers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..targets import ALL_LINEAR
from .architecture import build_on_meta, read_config, read_generation_config, resolve_device
from .materialize import materialize
from .report import LoadReport
from .shards import SafetensorsSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_nf4_safetensors(
    model_on_meta: nn.Module,
    directory: str | os.PathLike[str],
    target_modules: str | Sequence[str],
    device: str | torch.device = "ruda:0",
    dtype: torch.dtype = torch.bfloat16,
    parameter_dtypes: Mapping[str, torch.dtype] | None = None,
    buffer_dtypes: Mapping[str, torch.dtype] | None = None,
    *,
    block_size: int = 64,
    tile_rows: int = 128,
) -> LoadReport:
    """Fill a model constructed on the meta device from a safetensors checkpoint, in place.

    model_on_meta: any module whose parameters are on the meta device; its names and shapes must be
        exactly the file's, where parameters that are one tensor (tied) may appear under any of
        their names.
    directory: holds `model.safetensors`, or `model.safetensors.index.json` and its shards, all of
        them inside the directory.
    target_modules: the layers that become `NF4Linear`, see `resolve_targets`.
    dtype: of the other parameters; `parameter_dtypes` and `buffer_dtypes` are exceptions by name.
        What the model lists in `_keep_in_fp32_modules` stays float32.

    One tensor is read at a time. Buffers that are not part of checkpoints are computed by the model
    (transformers) or must have real values. Raises `ModelFileError` listing the tensors that are
    missing, unexpected, of another shape or wrongly tied, before anything has changed; and
    `TargetModuleError` for targets that do not exist, are not linear, or are tied.
    """
    operator = "load_nf4_safetensors"
    return materialize(
        model_on_meta,
        SafetensorsSource(directory, operator),
        operator=operator,
        target_modules=target_modules,
        device=resolve_device(device, operator),
        dtype=dtype,
        parameter_dtypes=parameter_dtypes,
        buffer_dtypes=buffer_dtypes,
        block_size=block_size,
        tile_rows=tile_rows,
    )


def load_hf_nf4_model(
    directory: str | os.PathLike[str],
    target_modules: str | Sequence[str] = ALL_LINEAR,
    device: str | torch.device = "ruda:0",
    dtype: torch.dtype = torch.bfloat16,
    rank: int = 16,
    alpha: float = 16.0,
    auto_class: Any = None,
    *,
    adapter_dtype: torch.dtype = torch.float32,
    block_size: int = 64,
    tile_rows: int = 128,
    parameter_dtypes: Mapping[str, torch.dtype] | None = None,
    buffer_dtypes: Mapping[str, torch.dtype] | None = None,
    attn_implementation: str | None = None,
) -> PreTrainedModel:
    """A local Hugging Face model with an NF4 base and fresh LoRA adapters on the same layers.

    The architecture is built from the directory's `config.json` with `auto_class` (default
    `AutoModelForCausalLM`); nothing is downloaded and no code of the directory is run. Ties and
    `_keep_in_fp32_modules` are respected. See `load_nf4_safetensors` for the loading and
    `inject_lora` for rank, alpha and adapter_dtype.
    """
    from ..lora import inject_lora

    operator = "load_hf_nf4_model"
    config = read_config(directory, operator)
    source = SafetensorsSource(directory, operator)
    where = resolve_device(device, operator)
    model = build_on_meta(config, dtype, operator, auto_class, attn_implementation)
    materialize(
        model,
        source,
        operator=operator,
        target_modules=target_modules,
        device=where,
        dtype=dtype,
        parameter_dtypes=parameter_dtypes,
        buffer_dtypes=buffer_dtypes,
        block_size=block_size,
        tile_rows=tile_rows,
    )
    if model.can_generate():
        model.generation_config = read_generation_config(source.path, config)
    inject_lora(model, target_modules, rank, alpha, adapter_dtype)
    return model

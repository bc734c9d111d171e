"""`load_model`: a causal language model from a directory or a GGUF file, in one call."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..errors import ModelFileError, TargetModuleError
from ..targets import ALL_LINEAR
from .architecture import (
    build_on_meta,
    default_dtype,
    read_config,
    read_generation_config,
    read_tokenizer,
    resolve_device,
)
from .gguf.architectures import config_of
from .gguf.container import open_gguf
from .gguf.source import GGUFSource
from .gguf.tokenizer import has_gguf_tokenizer, load_gguf_tokenizer
from .materialize import materialize
from .report import LoadReport
from .shards import SafetensorsSource
from .sources import WeightSource, file_sha256

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class SourceInfo:
    """Where a model came from.

    sha256: of the weights: the file's own, or for several files the hash of their names and hashes.
    """

    path: Path
    format: Literal["gguf", "safetensors"]
    architecture: str
    name: str
    sha256: str
    files: dict[str, str] = field(default_factory=dict)
    nbytes: int = 0


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be adapted, trained or asked.

    model: the transformers model in evaluation mode, on its device, `generation_config` set.
    tokenizer: None only where there are no tokenizer files, or no tokenizer in the GGUF file.
    dtype: that of the weights that are not NF4, and of the computation.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    config: PretrainedConfig
    dtype: torch.dtype
    device: torch.device
    source: SourceInfo
    report: LoadReport


def load_model(
    path: str | os.PathLike[str],
    *,
    quantize: Literal["nf4", "none"] = "nf4",
    target_modules: str | Sequence[str] | None = ALL_LINEAR,
    device: str | torch.device = "ruda:0",
    dtype: torch.dtype | None = None,
    block_size: int = 64,
    tile_rows: int = 128,
    parameter_dtypes: Mapping[str, torch.dtype] | None = None,
    buffer_dtypes: Mapping[str, torch.dtype] | None = None,
    attn_implementation: str | None = None,
    auto_class: Any = None,
) -> LoadedModel:
    """Load a causal language model from disk. Never uses the network, never runs a model's code.

    path: a `.gguf` file, or a Hugging Face directory with `config.json` and safetensors.
    quantize: `"nf4"` packs the layers that `target_modules` selects while they are read;
        `"none"` keeps them dense (the targets are still checked and reported).
    target_modules: `"all-linear"` or a list of names, see `resolve_targets`; None, with
        `quantize="none"`, for a model that will not be adapted.
    dtype: of the other weights; None takes the fast one, float32 on the host.
    block_size, tile_rows: of the NF4 layers, see `NF4Linear`.
    parameter_dtypes, buffer_dtypes: exceptions by state-dict name.
    attn_implementation: as in transformers; None takes its default.
    auto_class: the transformers auto class to build with, `AutoModelForCausalLM` by default.

    Peak memory is the result and one tensor: weights are read one at a time, large ones in pieces.
    Tied weights stay one tensor. Raises `ModelFileError` for whatever is wrong with the files and
    `TargetModuleError` for the targets.
    """
    path = Path(path)
    if quantize not in ("nf4", "none"):
        raise ModelFileError(f"[load_model] quantize must be 'nf4' or 'none': got {quantize!r}")
    if target_modules is None and quantize == "nf4":
        raise TargetModuleError(
            f"[load_model] quantize='nf4' needs target_modules: {ALL_LINEAR!r} or a list of names"
        )
    if dtype is not None and dtype not in _DTYPES:
        raise ModelFileError(
            f"[load_model] dtype must be one of {', '.join(map(str, _DTYPES))} or None: got {dtype}"
        )
    if not path.exists():
        raise ModelFileError(f"[load_model] {path} does not exist; models are never downloaded")
    if path.suffix == ".safetensors":
        raise ModelFileError(
            f"[load_model] {path} is one file of a model: give its directory, which holds "
            "config.json too"
        )
    where = resolve_device(device, "load_model")
    compute = default_dtype(where) if dtype is None else dtype
    opened = _open_directory(path) if path.is_dir() else _open_gguf(path)
    tokenizer = opened.tokenizer()  # before the weights, so that its errors come at once
    model = build_on_meta(opened.config, compute, "load_model", auto_class, attn_implementation)
    report = materialize(
        model,
        opened.source,
        operator="load_model",
        target_modules=target_modules,
        quantize=quantize == "nf4",
        device=where,
        dtype=compute,
        parameter_dtypes=parameter_dtypes,
        buffer_dtypes=buffer_dtypes,
        block_size=block_size,
        tile_rows=tile_rows,
    )
    report.skipped.update(opened.skipped)
    model.generation_config = read_generation_config(
        path if path.is_dir() else None, opened.config, opened.stops
    )
    info = _source_info(opened, path)
    return LoadedModel(model, tokenizer, model.config, compute, where, info, report)


def load_gguf(path: str | os.PathLike[str], **options: Any) -> LoadedModel:
    """`load_model` for a GGUF file, with the same options; a directory is a `ModelFileError`."""
    if Path(path).is_dir():
        raise ModelFileError(f"[load_gguf] {path} is a directory: name the .gguf file in it")
    return load_model(path, **options)


@dataclass(frozen=True)
class _Opened:
    """What the two formats have in common."""

    source: WeightSource
    config: PretrainedConfig
    format: Literal["gguf", "safetensors"]
    name: str
    tokenizer: Callable[[], PreTrainedTokenizerBase | None]
    stops: tuple[int, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)


def _open_directory(path: Path) -> _Opened:
    config = read_config(path, "load_model")
    source = SafetensorsSource(path, "load_model")
    return _Opened(
        source, config, "safetensors", path.name, lambda: read_tokenizer(path, "load_model")
    )


def _open_gguf(path: Path) -> _Opened:
    file = open_gguf(path)
    config = config_of(file)
    source = GGUFSource(file, config)
    # In a chat, a turn ends with a token that need not be the end of the sequence.
    stops = tuple(
        int(value)
        for key in ("eot_token_id", "eom_token_id")
        if (value := file.metadata.get(f"tokenizer.ggml.{key}")) is not None
    )
    return _Opened(
        source,
        config,
        "gguf",
        str(file.metadata.get("general.name", path.stem)),
        lambda: load_gguf_tokenizer(file) if has_gguf_tokenizer(file) else None,
        stops,
        dict.fromkeys(source.derived, "rotary frequencies, taken into the config"),
    )


def _source_info(opened: _Opened, path: Path) -> SourceInfo:
    files = {file.name: file_sha256(file) for file in opened.source.files}
    digest = next(iter(files.values()))
    if len(files) > 1:
        listing = "".join(f"{name} {value}\n" for name, value in sorted(files.items()))
        digest = hashlib.sha256(listing.encode()).hexdigest()
    nbytes = sum(file.stat().st_size for file in opened.source.files)
    return SourceInfo(
        path, opened.format, opened.config.model_type, opened.name, digest, files, nbytes
    )

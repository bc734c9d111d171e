"""`load_model`: a causal language model from a directory or a GGUF file, in one call."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import torch
from torch import nn

from .._files import readable
from ..errors import ModelFileError, TargetModuleError
from ..targets import ALL_LINEAR
from . import cache as packed_cache
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
from .gguf.tokenizer import check_gguf_tokenizer, has_gguf_tokenizer, load_gguf_tokenizer
from .hashes import file_sha256
from .materialize import materialize
from .quick_import import collector_paused
from .report import LoadReport
from .shards import SafetensorsSource
from .sources import WeightSource

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
    dtype: that of the weights that are not NF4, and of the computation.
    """

    model: PreTrainedModel
    config: PretrainedConfig
    dtype: torch.dtype
    device: torch.device
    source: SourceInfo
    report: LoadReport
    _read_tokenizer: Callable[[], PreTrainedTokenizerBase | None] = field(repr=False, compare=False)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer, built at the first use; None where the files hold none.

        Raises `ModelFileError` for one that is damaged. What can be seen without building it has
        been checked by `load_model`.
        """
        return self._read_tokenizer()


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
    cache: bool = True,
    inspect: Callable[[PreTrainedModel], None] | None = None,
) -> LoadedModel:
    """Load a causal language model from disk. Never uses the network, never runs a model's code.

    path: a `.gguf` file, or a Hugging Face directory with `config.json` and safetensors.
    quantize: `"nf4"` packs the layers that `target_modules` selects while they are read;
        `"none"` keeps them dense (the targets are still checked and reported).
    target_modules: `"all-linear"` or a list of names, see `resolve_targets`; None, with
        `quantize="none"`, for a model that will not be adapted.
    dtype: of the other weights; None takes the fast one: float32 on the host, bfloat16 on a
            GPU that has it.
    block_size, tile_rows: of the NF4 layers, see `NF4Linear`.
    parameter_dtypes, buffer_dtypes: exceptions by state-dict name.
    attn_implementation: as in transformers; None takes its default.
    auto_class: the transformers auto class to build with, `AutoModelForCausalLM` by default.
    cache: keep the packed weights, and the files' hashes, in the cache's folder (`RUDA_CACHE_DIR`)
        and take them from there, see cache.py. A cache that cannot be used is one warning.

    inspect: called with the model on the meta device, before a weight is read: what it raises ends
        the load.

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
    if path.is_dir() and readable(str(path)) != str(path):
        raise ModelFileError(
            f"[load_model] {path} is a path that is not UTF-8 in this locale, which the libraries "
            "that read Hugging Face directories do not open: rename it, or name a link to it"
        )
    where = resolve_device(device, "load_model")
    compute = default_dtype(where) if dtype is None else dtype
    targets = target_modules if cache and quantize == "nf4" else None
    with collector_paused():
        opening = _open_directory if path.is_dir() else _open_gguf
        opened = opening(path, lambda files: _Fetch(path, files, targets, block_size, cache))
        model = build_on_meta(opened.config, compute, "load_model", auto_class, attn_implementation)
        if inspect is not None:
            inspect(model)
        hashes, packed = opened.fetch.result()
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
            packed=packed,
        )
    report.skipped.update(opened.skipped)
    model.generation_config = read_generation_config(
        path if path.is_dir() else None, opened.config, opened.stops
    )
    info = _source_info(opened, path, hashes)
    if targets is not None and not report.cached:
        key = packed_cache.CacheKey.of(info.sha256, block_size, targets, path.name)
        packed_cache.write_packed(key, packed_weights(model, report))
    return LoadedModel(model, model.config, compute, where, info, report, opened.tokenizer)


def load_gguf(path: str | os.PathLike[str], **options: Any) -> LoadedModel:
    """`load_model` for a GGUF file, with the same options; a directory is a `ModelFileError`."""
    if Path(path).is_dir():
        raise ModelFileError(f"[load_gguf] {path} is a directory: name the .gguf file in it")
    return load_model(path, **options)


def packed_weights(model: nn.Module, report: LoadReport) -> packed_cache.Packed:
    """The codes and scales of the layers that were quantised, by the layers' names."""
    found: packed_cache.Packed = {}
    for name in report.quantized:
        layer: Any = model.get_submodule(name)
        found[name] = (layer.packed, layer.scales)
    return found


Result = TypeVar("Result")


class _Background(Generic[Result]):
    """A function's result, computed in a thread from now on."""

    def __init__(self, compute: Callable[[], Result]) -> None:
        self._compute = compute
        self._thread = threading.Thread(target=self._run, name="ruda-loading", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._compute()
        except BaseException as error:  # raised where the result is asked for
            self._error: BaseException | None = error
        else:
            self._error = None

    def result(self) -> Result:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value


class _Fetch(_Background[tuple[dict[str, str], packed_cache.Packed | None]]):
    """The files' hashes and the cache's entry, while the main thread imports and builds."""

    def __init__(
        self,
        path: Path,
        files: Sequence[Path],
        targets: str | Sequence[str] | None,
        block_size: int,
        remember: bool,
    ) -> None:
        def fetch() -> tuple[dict[str, str], packed_cache.Packed | None]:
            hashes = {file.name: file_sha256(file, remember) for file in files}
            if targets is None:
                return hashes, None
            key = packed_cache.CacheKey.of(_whole_hash(hashes), block_size, targets, path.name)
            return hashes, packed_cache.read_packed(key)

        super().__init__(fetch)


@dataclass(frozen=True)
class _Opened:
    """What the two formats have in common."""

    source: WeightSource
    config: PretrainedConfig
    format: Literal["gguf", "safetensors"]
    name: str
    tokenizer: Callable[[], PreTrainedTokenizerBase | None]
    fetch: _Fetch
    stops: tuple[int, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)


def _open_directory(path: Path, start: Callable[[Sequence[Path]], _Fetch]) -> _Opened:
    config = read_config(path, "load_model")
    source = SafetensorsSource(path, "load_model")
    return _Opened(
        source,
        config,
        "safetensors",
        path.name,
        lambda: read_tokenizer(path, "load_model"),
        start(source.files),
    )


def _open_gguf(path: Path, start: Callable[[Sequence[Path]], _Fetch]) -> _Opened:
    file = open_gguf(path)
    fetch = start([path])  # before transformers is imported for the config
    config = config_of(file)
    source = GGUFSource(file, config)
    has_tokenizer = has_gguf_tokenizer(file)
    if has_tokenizer:
        check_gguf_tokenizer(file)
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
        lambda: load_gguf_tokenizer(file) if has_tokenizer else None,
        fetch,
        stops,
        dict.fromkeys(source.derived, "rotary frequencies, taken into the config"),
    )


def _whole_hash(files: Mapping[str, str]) -> str:
    if len(files) == 1:
        return next(iter(files.values()))
    listing = "".join(f"{name} {value}\n" for name, value in sorted(files.items()))
    return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()


def _source_info(opened: _Opened, path: Path, files: dict[str, str]) -> SourceInfo:
    nbytes = sum(file.stat().st_size for file in opened.source.files)
    digest = _whole_hash(files)
    return SourceInfo(
        path, opened.format, opened.config.model_type, opened.name, digest, files, nbytes
    )

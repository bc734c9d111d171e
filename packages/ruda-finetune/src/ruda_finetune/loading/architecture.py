"""Building the transformers model that a config describes, without weights and without network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..errors import ModelFileError
from .quick_import import import_transformers, quick_import

if TYPE_CHECKING:
    from transformers import (
        GenerationConfig,
        PretrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "tekken.json",
)


def resolve_device(device: str | torch.device, operator: str) -> torch.device:
    """A device with its index; `ruda` is registered by importing ruda_torch."""
    text = str(device)
    if text.split(":")[0] == "ruda":
        import ruda_torch  # noqa: F401 - registers the device
    try:
        resolved = torch.device(text)
    except RuntimeError as error:
        raise ModelFileError(f"[{operator}] {text!r} is no device: {error}") from error
    if resolved.type == "meta":
        raise ModelFileError(f"[{operator}] weights cannot be loaded to the meta device")
    if resolved.index is None and resolved.type != "cpu":
        resolved = torch.device(resolved.type, 0)
    try:
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ModelFileError(f"[{operator}] {text!r} cannot be used: {reason}") from error
    return resolved


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU that computes with it; float32 elsewhere.

    On a CPU half precision saves no time, and float16 wants its loss scaled.
    """
    if device.type != "ruda":
        return torch.float32
    import ruda_runtime

    found = ruda_runtime.devices()[device.index or 0]
    on_gpu = found.target == "cuda" and "bf16" in found.capabilities
    return torch.bfloat16 if on_gpu else torch.float32


def read_config(directory: str | os.PathLike[str], operator: str) -> PretrainedConfig:
    """The config of a local model directory.

    Raises `ModelFileError` for a directory without a readable `config.json`, for one that needs
    code of its own (which is never run), and for weights that are quantised already.
    """
    import_transformers()
    from transformers import AutoConfig

    path = Path(directory)
    if not path.is_dir():
        raise ModelFileError(f"[{operator}] {path} is not a directory")
    if not (path / "config.json").is_file():
        raise ModelFileError(f"[{operator}] {path} has no config.json")
    try:
        config = AutoConfig.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=False
        )
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise ModelFileError(
            f"[{operator}] {path / 'config.json'} is no config of a model that the installed "
            f"transformers knows (code from a model directory is never run): {error}"
        ) from error
    quantized = getattr(config, "quantization_config", None)
    if quantized:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        raise ModelFileError(
            f"[{operator}] {path} holds weights that are quantised already ({method}): load the "
            "original checkpoint, it is quantised to NF4 while it is read"
        )
    return config


class _NoInitialValues(TorchFunctionMode):
    """Tensors on the meta device are not given random values, which they do not hold.

    There, torch computes them through its Python decompositions, which take their time.
    """

    _RANDOM = frozenset(
        (
            nn.init.uniform_,
            nn.init.normal_,
            nn.init.trunc_normal_,
            nn.init.xavier_uniform_,
            nn.init.xavier_normal_,
            nn.init.kaiming_uniform_,
            nn.init.kaiming_normal_,
        )
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._RANDOM:
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


def build_on_meta(
    config: PretrainedConfig,
    dtype: torch.dtype,
    operator: str,
    auto_class: Any = None,
    attn_implementation: str | None = None,
) -> PreTrainedModel:
    """The model of a config on the meta device, its weights tied, in evaluation mode."""
    import_transformers()
    if auto_class is None:
        from transformers import AutoModelForCausalLM

        auto_class = AutoModelForCausalLM
    options = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    try:
        with quick_import(), torch.device("meta"), _NoInitialValues():
            model = auto_class.from_config(config, dtype=dtype, trust_remote_code=False, **options)
    except (ValueError, KeyError, ImportError) as error:
        raise ModelFileError(
            f"[{operator}] no {auto_class.__name__} can be built for model type "
            f"{config.model_type!r}: {error}"
        ) from error
    model.tie_weights()
    return model.eval()


def read_generation_config(
    directory: Path | None, config: PretrainedConfig, extra_stops: tuple[int, ...] = ()
) -> GenerationConfig:
    """The directory's generation config, or one made from the model's config.

    `extra_stops`: token ids that end an answer besides the config's end of sequence.
    """
    from transformers import GenerationConfig

    if directory is not None and (directory / "generation_config.json").is_file():
        found = GenerationConfig.from_pretrained(str(directory), local_files_only=True)
    else:
        found = GenerationConfig.from_model_config(config)
    if extra_stops:
        eos = found.eos_token_id
        known = eos if isinstance(eos, list) else [] if eos is None else [eos]
        found.eos_token_id = list(dict.fromkeys([*known, *extra_stops]))
    return found


def read_tokenizer(directory: Path, operator: str) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a model directory, or None where there are no tokenizer files."""
    from transformers import AutoTokenizer

    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # tokenizers raises bare Exceptions for damaged files
        raise ModelFileError(
            f"[{operator}] the tokenizer in {directory} cannot be read: {error}"
        ) from error

"""NF4 and LoRA fine-tuning of causal language models on `ruda:0`, on a CPU or a GPU.

Importing this package imports neither torch nor transformers: every public name is loaded from its
subpackage at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import _abi as _abi
from ._version import __version__
from .errors import (
    AdapterError,
    CheckpointError,
    DataError,
    FinetuneError,
    ModelFileError,
    QuantizationError,
    TargetModuleError,
    TemplateError,
)

if TYPE_CHECKING:  # the same names for type checkers; a test holds the two lists together
    from .lora import LoRALinear as LoRALinear
    from .lora import adapter_state_dict as adapter_state_dict
    from .lora import inject_lora as inject_lora
    from .lora import load_adapter as load_adapter
    from .lora import load_adapter_state_dict as load_adapter_state_dict
    from .lora import merge_lora as merge_lora
    from .lora import save_adapter as save_adapter
    from .models import FusionReport as FusionReport
    from .models import fuse_model as fuse_model
    from .quantization import NF4Linear as NF4Linear
    from .quantization import pack_nf4 as pack_nf4
    from .quantization import quantize_nf4 as quantize_nf4
    from .targets import TargetReport as TargetReport
    from .targets import resolve_targets as resolve_targets

# public name -> subpackage that defines it
_EXPORTS: dict[str, str] = {
    "NF4Linear": "quantization",
    "pack_nf4": "quantization",
    "quantize_nf4": "quantization",
    "LoRALinear": "lora",
    "TargetReport": "targets",
    "adapter_state_dict": "lora",
    "inject_lora": "lora",
    "load_adapter": "lora",
    "load_adapter_state_dict": "lora",
    "merge_lora": "lora",
    "resolve_targets": "targets",
    "save_adapter": "lora",
    "FusionReport": "models",
    "fuse_model": "models",
}

__all__ = [
    "__version__",
    "AdapterError",
    "CheckpointError",
    "DataError",
    "FinetuneError",
    "ModelFileError",
    "QuantizationError",
    "TargetModuleError",
    "TemplateError",
    *_EXPORTS,
]


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})

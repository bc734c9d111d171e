"""LoRA adapters: the layer, injection, exchange in PEFT's format, merging."""

from __future__ import annotations

from .inject import inject_lora
from .layer import LoRALinear
from .merge import merge_lora
from .peft_format import load_adapter, save_adapter
from .state import adapter_state_dict, load_adapter_state_dict

__all__ = [
    "LoRALinear",
    "adapter_state_dict",
    "inject_lora",
    "load_adapter",
    "load_adapter_state_dict",
    "merge_lora",
    "save_adapter",
]

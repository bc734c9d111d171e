"""`torch.ruda`: what PyTorch and its users ask of the device, named as in `torch.cuda`."""

from __future__ import annotations

import sys
from types import ModuleType

import torch

from .. import _native
from . import _utils
from ._utils import device, device_of
from .memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from .properties import (
    DeviceProperties,
    get_device_capability,
    get_device_name,
    get_device_properties,
    is_bf16_supported,
)
from .random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    record_stream,
    set_stream,
    stream,
    synchronize,
)

__all__ = [
    "DeviceProperties",
    "Event",
    "Stream",
    "StreamContext",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "execution_stats",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "record_stream",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


def is_available() -> bool:
    """Whether tensors can be made on the device. Never raises; the host target needs no GPU."""
    return not _native.in_bad_fork()


def device_count() -> int:
    """The number of devices: 1."""
    return 1


def current_device() -> int:
    """The index of the current device: 0."""
    return 0


def set_device(device: int | str | torch.device) -> None:
    """Make `device` the current one. Raises ValueError unless it is `ruda:0`."""
    _utils._get_device_index(device)


def init() -> None:
    """Take the device into use, as the first tensor on it does."""
    _native.initialize()


_lazy_init = init


def is_initialized() -> bool:
    """Whether the device has been used in this process."""
    return bool(_native.is_initialized())


def _is_in_bad_fork() -> bool:
    return bool(_native.in_bad_fork())


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast("ruda", dtype)` takes; the first is its default."""
    return [torch.bfloat16, torch.float16]


def execution_stats() -> dict[str, int]:
    """What the device has done since the process started.

    Keys: `native_launches` (RUDA's own kernels), `library_calls` (ATen kernels on ruda memory),
    `transfers` between CPU and device, and its parts `transfers_to_device`, `transfers_to_host`,
    `bytes_to_device`, `bytes_to_host`.
    """
    counts: dict[str, int] = _native.execution_counts()
    counts["transfers"] = counts["transfers_to_device"] + counts["transfers_to_host"]
    return counts


class _DeviceModule(ModuleType):
    """A module whose `_initialized` is live.

    Activation checkpointing reads this attribute to decide whether to save the device's random
    state. A value copied at import would stay False, and the recomputed dropout masks would differ
    from the first ones, silently.
    """

    @property
    def _initialized(self) -> bool:
        return is_initialized()


sys.modules[__name__].__class__ = _DeviceModule

"""What the device is."""

from __future__ import annotations

from dataclasses import dataclass

import ruda_runtime

from ._utils import OptionalDevice, _get_device_index


@dataclass(frozen=True)
class DeviceProperties:
    """Facts about a device.

    Attributes:
        name: for people.
        target: `host` or `cuda`.
        total_memory: bytes.
        multi_processor_count: of the GPU; CPUs this process may use, on the host target.
        warp_size: 1 on the host target.
    """

    name: str
    target: str
    total_memory: int
    multi_processor_count: int
    warp_size: int


def _device(device: OptionalDevice) -> ruda_runtime.Device:
    return ruda_runtime.devices()[_get_device_index(device, optional=True)]


def get_device_properties(device: OptionalDevice = None) -> DeviceProperties:
    """Name, target, memory and size of the device."""
    found = _device(device)
    return DeviceProperties(
        name=found.name,
        target=found.target,
        total_memory=found.memory_total,
        multi_processor_count=found.multiprocessors,
        warp_size=found.warp_size,
    )


def get_device_name(device: OptionalDevice = None) -> str:
    """The device's name."""
    return _device(device).name


def get_device_capability(device: OptionalDevice = None) -> tuple[int, int]:
    """The compute capability of an NVIDIA GPU; (0, 0) on the host target, which has none."""
    return _device(device).compute_capability or (0, 0)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 can be used.

    On a GPU from compute capability 8.0, in units of its own; on the host as storage with float32
    arithmetic, which is emulation.
    """
    found = _device(None)
    if found.target == "cuda":
        return "bf16" in found.capabilities
    return including_emulation

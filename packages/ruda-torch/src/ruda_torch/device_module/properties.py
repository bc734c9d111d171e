"""What the device is."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from ._utils import OptionalDevice, _get_device_index
from .memory import mem_get_info


@dataclass(frozen=True)
class DeviceProperties:
    """Facts about a device. On the host target a CPU core counts as a multiprocessor."""

    name: str
    target: str
    total_memory: int
    multi_processor_count: int


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def get_device_properties(device: OptionalDevice = None) -> DeviceProperties:
    """Name, target, memory in bytes and number of cores of the device."""
    _get_device_index(device, optional=True)
    return DeviceProperties(
        name=get_device_name(device),
        target="host",
        total_memory=mem_get_info(device)[1],
        multi_processor_count=len(os.sched_getaffinity(0)),
    )


def get_device_name(device: OptionalDevice = None) -> str:
    """The device's name, with its target."""
    _get_device_index(device, optional=True)
    return f"{_cpu_name()} (host)"


def get_device_capability(device: OptionalDevice = None) -> tuple[int, int]:
    """The compute capability of an NVIDIA GPU; (0, 0) on the host target, which has none."""
    _get_device_index(device, optional=True)
    return (0, 0)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 tensors can be used: yes; the arithmetic is done in float32."""
    return including_emulation

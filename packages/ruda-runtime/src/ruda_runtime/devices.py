"""Devices and the choice of the target.

``RUDA_TARGET=auto|cuda|host`` is read once, at the first use of this module's functions. This build
has the host target; there is no cuda target in it.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

from ruda_runtime import _native
from ruda_runtime.errors import DeviceError, RudaValueError

_TARGETS = ("auto", "cuda", "host")
_CPU_LEVELS = {0: "baseline", 1: "x86-64-v3"}

_lock = threading.Lock()
_chosen: str | None = None


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        name: for people, for example the CPU's model name.
        target: ``"host"``.
        index: number within the target.
        compute_capability: ``(major, minor)`` of a GPU, ``None`` on the host.
        multiprocessors: CPUs this process may use on the host.
        shared_memory_per_block: bytes; ``None`` on the host, which has no such memory.
        warp_size: 1 on the host.
        capabilities: names of what the device can do. Host: ``"fp16"`` and ``"bf16"`` (storage;
            arithmetic is float32) and the instruction level of the kernels, ``"baseline"`` or
            ``"x86-64-v3"``.
    """

    name: str
    target: str
    index: int
    compute_capability: tuple[int, int] | None
    multiprocessors: int
    shared_memory_per_block: int | None
    warp_size: int
    capabilities: frozenset[str]

    @property
    def max_threads(self) -> int:
        """Threads of a parallel loop on the host, see ``get_num_threads``."""
        return _native.num_threads()

    @property
    def memory_total(self) -> int:
        """Bytes of memory, within the control group's limit and RUDA_MEMORY_LIMIT."""
        total = _native.system_memory_total()
        return min(total, _native.memory_limit) if _native.memory_limit else total

    @property
    def memory_free(self) -> int:
        """Bytes the system can give now; memory the pool keeps for reuse comes on top."""
        free = _native.system_memory_free()
        if not _native.memory_limit:
            return free
        rest = _native.memory_limit - _native.memory_stats()["reserved"]
        return max(0, min(free, rest))

    def __str__(self) -> str:
        return f"{self.target}:{self.index}"


def devices() -> list[Device]:
    """All devices of the chosen target: one on the host.

    Raises:
        RudaValueError: RUDA_TARGET is none of auto, cuda, host.
        DeviceError: RUDA_TARGET=cuda; this build has no cuda target.
    """
    _target()
    return [_host()]


def device_of(value: Device | str | None = None) -> Device:
    """The device that ``value`` names: a Device, ``"host"``, ``"host:0"`` or ``None``.

    Raises:
        DeviceError: there is no such device.
    """
    found = devices()
    for device in found:
        if value is None or value == device or value in (device.target, str(device)):
            return device
    names = ", ".join(str(device) for device in found)
    raise DeviceError(f"[device] got {value!r}, wanted one of: {names}")


def synchronize() -> None:
    """Wait until all work on all streams is done; raises the error of work that failed."""
    _target()
    _native.synchronize(-1)


def _target() -> str:
    global _chosen
    if _chosen is not None:
        return _chosen
    asked = os.environ.get("RUDA_TARGET") or "auto"
    with _lock:
        if _chosen is not None:
            return _chosen
        _chosen = chosen = _choose(asked)
    # After the choice is kept: where warnings are errors, this call fails and no other does.
    if asked == "auto":
        warnings.warn(
            "RUDA_TARGET=auto chose the host target: this build has no cuda target. "
            "Set RUDA_TARGET=host to choose it without this message",
            RuntimeWarning,
            stacklevel=_caller_level(),
        )
    return chosen


def _choose(asked: str) -> str:
    if asked not in _TARGETS:
        raise RudaValueError(f"[RUDA_TARGET] got {asked!r}, wanted one of: {', '.join(_TARGETS)}")
    if asked == "cuda":
        raise DeviceError(
            "[RUDA_TARGET] got 'cuda', but this build of ruda-runtime has no cuda target: only the "
            "host target is built. Set RUDA_TARGET=host or leave it unset"
        )
    return "host"


def _caller_level() -> int:
    """The stacklevel, seen from the caller, of the first frame outside this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        level, frame = level + 1, frame.f_back
    return level


@functools.cache
def _host() -> Device:
    level = _native.cpu_level()
    return Device(
        name=_cpu_name(),
        target="host",
        index=0,
        compute_capability=None,
        multiprocessors=_native.cpu_count(),
        shared_memory_per_block=None,
        warp_size=1,
        capabilities=frozenset({"fp16", "bf16", _CPU_LEVELS[level]}),
    )


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()

"""Devices and the choice of the target.

``RUDA_TARGET=auto|cuda|host`` is read once, at the first use of this module's functions. A process
uses one GPU, the first that CUDA_VISIBLE_DEVICES shows, through its primary context.
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
        name: for people: the CPU's or the GPU's model; the driver double says what it is.
        target: ``"host"`` or ``"cuda"``.
        index: number within the target.
        compute_capability: ``(major, minor)`` of a GPU, ``None`` on the host.
        multiprocessors: of the GPU; on the host the CPUs this process may use.
        shared_memory_per_block: bytes that a kernel can ask for; ``None`` on the host.
        warp_size: 1 on the host.
        capabilities: names of what the device can do. Host: ``"fp16"`` and ``"bf16"`` (storage;
            arithmetic is float32) and the instruction level of the kernels, ``"baseline"`` or
            ``"x86-64-v3"``. GPU: ``"fp16"``, ``"tensor_cores"``, ``"bf16"`` (from 8.0), ``"fp8"``
            (from 8.9), ``"cooperative_launch"``.
        driver_version: the CUDA version that the GPU's driver supports, ``"13.0"``; ``None`` on the
            host.
    """

    name: str
    target: str
    index: int
    compute_capability: tuple[int, int] | None
    multiprocessors: int
    shared_memory_per_block: int | None
    warp_size: int
    capabilities: frozenset[str]
    driver_version: str | None = None

    @property
    def max_threads(self) -> int:
        """Threads of a block on a GPU; of a parallel loop on the host, see ``get_num_threads``."""
        if self.target == "cuda":
            return int(_native.cuda_device()["max_threads"])
        return _native.num_threads()

    @property
    def memory_total(self) -> int:
        """Bytes of memory, within RUDA_MEMORY_LIMIT and, on the host, the control group's limit."""
        if self.target == "cuda":
            total = int(_native.cuda_device()["memory_total"])
        else:
            total = _native.system_memory_total()
        return min(total, _native.memory_limit) if _native.memory_limit else total

    @property
    def memory_free(self) -> int:
        """Bytes the device can give now; memory the pool keeps for reuse comes on top."""
        on_gpu = self.target == "cuda"
        free = _native.cuda_memory_free() if on_gpu else _native.system_memory_free()
        if not _native.memory_limit:
            return free
        rest = _native.memory_limit - _native.memory_stats()["reserved"]
        return max(0, min(free, rest))

    def __str__(self) -> str:
        return f"{self.target}:{self.index}"


def devices() -> list[Device]:
    """All devices of the chosen target: the host, or the process's GPU.

    Raises:
        RudaValueError: RUDA_TARGET is none of auto, cuda, host.
        DeviceError: RUDA_TARGET=cuda and the driver or the GPU cannot be used.
    """
    return [_device(_target())]


def device_of(value: Device | str | None = None) -> Device:
    """The device that ``value`` names: a Device, ``"host"``, ``"cuda:0"`` or ``None``.

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
        chosen, why = _choose(asked)
        _chosen = chosen
    # After the choice is kept: where warnings are errors, this call fails and no other does.
    if why:
        warnings.warn(
            f"RUDA_TARGET=auto chose the host target: {why}. "
            "Set RUDA_TARGET=host to choose it without this message",
            RuntimeWarning,
            stacklevel=_caller_level(),
        )
    return chosen


def _choose(asked: str) -> tuple[str, str]:
    """The target, and where auto took the host, why."""
    if asked not in _TARGETS:
        raise RudaValueError(f"[RUDA_TARGET] got {asked!r}, wanted one of: {', '.join(_TARGETS)}")
    driver = os.environ.get("RUDA_CUDA_DRIVER") or ""
    if driver not in ("", "double"):
        raise RudaValueError(
            f"[RUDA_CUDA_DRIVER] got {driver!r}, wanted 'double', or nothing for the system's"
        )
    if asked == "cuda":
        if driver == "double":
            from ruda_runtime.testing import load_driver_double

            load_driver_double()
        if missing := _start_cuda():
            raise DeviceError(f"[RUDA_TARGET] got 'cuda', but {missing}")
        return "cuda", ""
    if asked == "host":
        return "host", ""
    missing = _start_for_auto(driver)
    return ("host", missing) if missing else ("cuda", "")


def _start_for_auto(driver: str) -> str:
    """Start the cuda target if it is usable; what is missing otherwise."""
    if driver == "double":
        return "the driver double is used with RUDA_TARGET=cuda only"
    missing, is_double = _native.cuda_probe()
    if missing:
        return missing
    if is_double:
        return "the CUDA driver in this process is the double, used with RUDA_TARGET=cuda only"
    return _start_cuda()


def _start_cuda() -> str:
    missing = _native.cuda_start()
    if not missing:  # native code looks for device kernels by name
        import ruda_runtime.kernel  # noqa: F401
    return missing


def _caller_level() -> int:
    """The stacklevel, seen from the caller, of the first frame outside RUDA's packages."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__package__")).startswith("ruda_"):
        level, frame = level + 1, frame.f_back
    return level


@functools.cache
def _device(target: str) -> Device:
    return _gpu() if target == "cuda" else _host()


def _gpu() -> Device:
    found = _native.cuda_device()
    capability = found["compute_capability"]
    capabilities = {"fp16", "tensor_cores"}
    if capability >= (8, 0):
        capabilities.add("bf16")
    if capability >= (8, 9):
        capabilities.add("fp8")
    if found["cooperative_launch"]:
        capabilities.add("cooperative_launch")
    name = found["name"]
    if found["is_double"] and "double" not in name.lower():
        name = f"driver double of {name}"
    return Device(
        name=name,
        target="cuda",
        index=0,
        compute_capability=capability,
        multiprocessors=found["multiprocessors"],
        shared_memory_per_block=found["shared_memory_per_block"],
        warp_size=found["warp_size"],
        capabilities=frozenset(capabilities),
        driver_version="{}.{}".format(*divmod(found["driver_version"] // 10, 100)),
    )


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

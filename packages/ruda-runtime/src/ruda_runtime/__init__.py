"""Devices, memory, threads, streams, tensors and the kernel registry under the RUDA packages.

Importing this package starts no thread, touches no device and imports neither torch nor NumPy.
"""

from __future__ import annotations

from pathlib import Path

from ruda_runtime import _native
from ruda_runtime._abi import PROVIDES, REQUIRES
from ruda_runtime._version import __version__
from ruda_runtime.abi import check_abi

check_abi("ruda-runtime", __version__, PROVIDES, REQUIRES, _native.abi_version)

from ruda_runtime.errors import RudaValueError  # noqa: E402

if _native.environment_error:
    raise RudaValueError(_native.environment_error)

from ruda_runtime.devices import Device, device_of, devices, synchronize  # noqa: E402
from ruda_runtime.errors import (  # noqa: E402
    AbiMismatch,
    DeviceError,
    OutOfMemoryError,
    RudaError,
    RudaRuntimeError,
    RudaTypeError,
    UnsupportedError,
)
from ruda_runtime.graphs import Graph  # noqa: E402
from ruda_runtime.kernels import KernelInfo, kernels, launch_count  # noqa: E402
from ruda_runtime.memory import (  # noqa: E402
    empty_cache,
    memory_stats,
    pinned_empty,
    reset_peak_memory_stats,
)
from ruda_runtime.streams import (  # noqa: E402
    Event,
    Stream,
    current_stream,
    default_stream,
    stream,
)
from ruda_runtime.tensor import Tensor, empty, from_dlpack  # noqa: E402
from ruda_runtime.threads import get_num_threads, set_num_threads  # noqa: E402


def get_include() -> str:
    """The folder of the C and C++ headers (``<ruda/abi.h>``, ``<ruda/entry.hpp>``, ...)."""
    return str(Path(__file__).resolve().parent / "include")


__all__ = [
    "__version__",
    # devices
    "Device", "devices", "device_of", "synchronize",
    # tensors and memory
    "Tensor", "empty", "from_dlpack", "memory_stats", "reset_peak_memory_stats", "empty_cache",
    "pinned_empty",
    # streams
    "Stream", "Event", "stream", "current_stream", "default_stream", "Graph",
    # threads and kernels
    "get_num_threads", "set_num_threads", "KernelInfo", "kernels", "launch_count",
    # building on the runtime
    "check_abi", "get_include",
    # errors
    "RudaError", "RudaValueError", "RudaTypeError", "UnsupportedError", "RudaRuntimeError",
    "OutOfMemoryError", "DeviceError", "AbiMismatch",
]  # fmt: skip

"""What a measured choice depends on besides its operation: the environment."""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

from ruda_runtime import _native
from ruda_runtime._version import __version__
from ruda_runtime.devices import Device
from ruda_runtime.inventory import cpu_features, package_version

TAGS = {
    "driver_tag": "RUDA_AUTOTUNE_DRIVER_TAG",
    "build_tag": "RUDA_AUTOTUNE_BUILD_TAG",
    "context_tag": "RUDA_AUTOTUNE_CONTEXT_TAG",
}
"""Variables whose text is added to the fingerprint: for what the process cannot see, such as a
driver's patch level, a build made from edited sources, or another program on the device."""


@functools.cache
def _constant() -> dict[str, Any]:
    """What does not change while the process lives."""
    packages = {"ruda-runtime": __version__}
    for name in ("ruda-blas", "ruda-dnn", "triton", "cuda-bindings"):
        version = package_version(name)
        if version is not None:
            packages[name] = version
    return {
        "packages": packages,
        "python": f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}",
        "machine": platform.machine(),
        "cpu_features": cpu_features(),
    }


def fingerprint(device: Device, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The environment of a tune on ``device``, as JSON values.

    Versions of the packages that compute, Python, the device (name, target, compute capability,
    multiprocessors, capabilities), its driver where it has one, the processor's instruction sets,
    the number of threads, whether dispatch is asynchronous, and the three tags.
    """
    given = os.environ if environment is None else environment
    return {
        **_constant(),
        "target": device.target,
        "device": device.name,
        "compute_capability": list(device.compute_capability or ()),
        "multiprocessors": device.multiprocessors,
        "capabilities": sorted(device.capabilities),
        "driver": str(getattr(device, "driver_version", None) or ""),
        "threads": _native.num_threads(),
        "asynchronous": _native.asynchronous(),
        **{name: given.get(variable, "") for name, variable in TAGS.items()},
    }

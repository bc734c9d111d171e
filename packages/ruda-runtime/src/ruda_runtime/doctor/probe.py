"""Imports the packages one after the other and says what it finds, a JSON line a step.

`ruda_runtime.doctor` runs the text of this file in a process of its own: an import that fails, or
that kills the process, is a finding and not the end of the report. Arguments: the caller's module
search path and the packages to import, both as JSON.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import traceback
import warnings
from typing import Any

MARK = "@ruda-doctor "


def say(step: str, **facts: Any) -> None:
    print(MARK + json.dumps({"step": step, **facts}), flush=True)


def one_line(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip().replace("\n", " ")


def import_package(name: str) -> None:
    module = name.replace("-", "_")
    say("import", package=name)
    error = None
    try:
        importlib.import_module(module)
    except BaseException as caught:
        error = {"type": type(caught).__name__, "text": str(caught) or one_line(caught)}
    native = sys.modules.get(f"{module}._native")
    say("imported", package=name, error=error, native_abi=getattr(native, "abi_version", None))


def describe_device(device: Any) -> dict[str, Any]:
    names = ("name", "target", "index", "compute_capability", "multiprocessors", "max_threads",
             "memory_total", "memory_free", "driver_version")  # fmt: skip
    found = {name: getattr(device, name, None) for name in names}
    return {**found, "capabilities": sorted(getattr(device, "capabilities", ()))}


def describe_target() -> None:
    import ruda_runtime

    asked = os.environ.get("RUDA_TARGET") or "auto"
    chosen, devices, error = None, [], None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            devices = [describe_device(device) for device in ruda_runtime.devices()]
            chosen = devices[0]["target"]
        except Exception as failure:
            error = str(failure)
    if error is not None:
        why = error
    elif caught:
        why = str(caught[0].message)
    elif asked == "auto":
        why = f"RUDA_TARGET is not set, and {chosen} is usable"
    else:
        why = f"RUDA_TARGET={asked} asks for it"
    say("target", chosen=chosen, why=why, error=error, devices=devices)
    say("threads", threads=ruda_runtime.get_num_threads())


def describe_driver() -> None:
    """The CUDA driver, by its own functions: one that is there but not usable shows, too."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        say("driver", library=None, version=None, error=str(error), gpus=[])
        return
    number = ctypes.c_int()
    version = None
    if driver.cuDriverGetVersion(ctypes.byref(number)) == 0:
        version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    status = driver.cuInit(0)
    count = ctypes.c_int()
    if status == 0:
        status = driver.cuDeviceGetCount(ctypes.byref(count))
    gpus = []
    for index in range(count.value):
        handle, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
        major, minor = ctypes.c_int(), ctypes.c_int()
        driver.cuDeviceGet(ctypes.byref(handle), index)
        driver.cuDeviceGetName(name, 256, handle)
        driver.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, handle)
        driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, handle)
        gpus.append({
            "name": name.value.decode(errors="replace"),
            "compute_capability": [major.value, minor.value],
            "memory_total": memory.value,
        })  # fmt: skip
    problem = None if status == 0 else f"the driver answers with error {status}"
    say("driver", library="libcuda.so.1", version=version, error=problem, gpus=gpus)


def describe_bundle() -> None:
    """Whether the runtime takes the bundle that RUDA_BUNDLE names."""
    from ruda_runtime.errors import RudaError
    from ruda_runtime.kernel import bundle_use

    problem = None
    try:
        bundle_use.current()
    except RudaError as error:
        problem = str(error)
    say("bundle", error=problem)


def describe_torch() -> None:
    torch = sys.modules["torch"]
    say("torch", threads=torch.get_num_threads(), interop_threads=torch.get_num_interop_threads(),
        cxx11_abi=bool(torch.compiled_with_cxx11_abi()))  # fmt: skip


def main() -> None:
    sys.path[:] = json.loads(sys.argv[1])
    for package in json.loads(sys.argv[2]):
        import_package(package)
        if package == "ruda-runtime" and hasattr(sys.modules.get("ruda_runtime"), "__version__"):
            describe_target()
            describe_bundle()
        if package == "ruda-torch" and "torch" in sys.modules:
            describe_torch()
    say("import", package="the CUDA driver")
    describe_driver()
    say("done")


if __name__ == "__main__":
    main()

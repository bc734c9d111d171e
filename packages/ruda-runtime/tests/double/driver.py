"""The driver's calls as tests want them: an error raises, with the double's report."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver as cuda

from ruda_runtime import testing

KERNELS = Path(__file__).with_name("kernels.py")
SCALARS = {
    "i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float, "fp64": ctypes.c_double,
}  # fmt: skip


class DriverError(Exception):
    def __init__(self, code: cuda.CUresult) -> None:
        super().__init__(f"{code.name}: {testing.last_report()}")
        self.code = code


def ok(result: tuple[Any, ...]) -> Any:
    """The values of a call that has to succeed."""
    code, *values = result
    if code != cuda.CUresult.CUDA_SUCCESS:
        raise DriverError(code)
    return values[0] if len(values) == 1 else tuple(values)


def start() -> None:
    """Initialise the driver and make the primary context current."""
    ok(cuda.cuInit(0))
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))


def stream() -> Any:
    """A stream that does not wait for the default one."""
    return ok(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))


def event(timing: bool = True) -> Any:
    return ok(cuda.cuEventCreate(0 if timing else 2))


def upload(values: np.ndarray) -> int:
    """Device memory with these values, complete when it returns."""
    values = np.ascontiguousarray(values)
    address = ok(cuda.cuMemAlloc(values.nbytes))
    ok(cuda.cuMemcpyHtoD(address, values.ctypes.data, values.nbytes))
    ok(cuda.cuCtxSynchronize())
    return int(address)


def download(address: int, shape: int | tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    values = np.empty(shape, dtype=dtype)
    ok(cuda.cuMemcpyDtoH(values.ctypes.data, address, values.nbytes))
    return values


def free(*addresses: int) -> None:
    for address in addresses:
        ok(cuda.cuMemFree(address))


def ptx(entry: str, parameters: Sequence[str]) -> bytes:
    """PTX text with one entry: all that the double reads of it."""
    widths = {"i32": "u32", "fp32": "f32"}
    declared = ", ".join(
        f".param .{widths.get(kind, 'u64')} {entry}_{i}" for i, kind in enumerate(parameters)
    )
    text = f".version 8.0\n.target sm_80\n.visible .entry {entry}({declared})\n{{ ret; }}\n"
    return text.encode() + b"\0"


class Kernel:
    """A kernel of kernels.py in a module of its own; close() unloads it."""

    def __init__(
        self,
        name: str,
        types: dict[str, Any],
        *,
        divisible_by_16: Sequence[str] = (),
        described: bool = True,
        shared: int = 0,
    ) -> None:
        """``types``: a type for each parameter, or the value of a constexpr."""
        self.packed = [kind for kind in types.values() if isinstance(kind, str)] + ["*i8", "*i8"]
        # Images of equal text would share one description.
        image = ptx(name, self.packed) + f"// {sorted(types.items())}{divisible_by_16}".encode()
        image = image.replace(b"\0", b"") + b"\0"
        parameters = [
            {"name": key, "type": kind}
            if isinstance(kind, str)
            else {"name": key, "type": "constexpr", "value": kind}
            for key, kind in types.items()
        ]
        if described:
            testing.describe(
                image,
                {
                    "entry": name,
                    "function": f"kernels:{name}",
                    "source": str(KERNELS),
                    "parameters": parameters,
                    "divisible_by_16": list(divisible_by_16),
                    "scratch_pointers": 2,
                    "num_warps": 4,
                    "shared": shared,
                },
            )
        self.module = ok(cuda.cuModuleLoadData(image))
        self.function = ok(cuda.cuModuleGetFunction(self.module, name.encode()))

    def launch(self, grid: int, on: Any, *arguments: Any, block: int = 128, shared: int = 0) -> Any:
        """The raw result of cuLaunchKernel."""
        kinds = [SCALARS.get(kind, ctypes.c_void_p) for kind in self.packed]
        values = ((*arguments, 0, 0), tuple(kinds))
        return cuda.cuLaunchKernel(
            self.function, grid, 1, 1, block, 1, 1, shared, on, values, 0
        )  # fmt: skip

    def __call__(self, grid: int, on: Any, *arguments: Any) -> None:
        ok(self.launch(grid, on, *arguments))

    def close(self) -> None:
        ok(cuda.cuModuleUnload(self.module))

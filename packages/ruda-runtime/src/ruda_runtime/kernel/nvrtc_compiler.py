"""NVRTC from CUDA C++ to machine code or PTX, through cuda-bindings."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from ruda_runtime.errors import RudaRuntimeError, RudaTypeError, UnsupportedError
from ruda_runtime.kernel.artifact import Artifact
from ruda_runtime.kernel.settings import CompileOptions
from ruda_runtime.kernel.source import CudaSource
from ruda_runtime.launch import Specialisation


def compile_kernel(
    kernel: str,
    source: CudaSource,
    wanted: Specialisation,
    architecture: int,
    options: CompileOptions,
) -> Artifact:
    """Compile a CUDA C++ kernel; its constants become macros, in the order of its parameters.

    Raises:
        UnsupportedError: cuda-bindings or the NVRTC library is not installed.
        RudaTypeError: a constant that no macro can be.
        RudaRuntimeError: NVRTC refuses the kernel; the text has its log.
    """
    nvrtc = _nvrtc(kernel)
    arguments = [
        f"--gpu-architecture={'sm' if options.image_kind == 'cubin' else 'compute'}_{architecture}",
        "--std=c++17",
        *(_macro(kernel, name, value) for name, value in wanted.constants),
    ]
    name = f"{source.entry}.cu".encode()
    program = _call(kernel, nvrtc, "nvrtcCreateProgram", source.text.encode(), name, 0, None, None)
    try:
        encoded = [argument.encode() for argument in arguments]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = _text(kernel, nvrtc, program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
            raise RudaRuntimeError(
                f"[{kernel}] NVRTC does not compile {source.entry} for sm_{architecture}: "
                f"{log.decode(errors='replace').strip()}"
            )
        if options.image_kind == "cubin":
            image = _text(kernel, nvrtc, program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        else:
            image = _text(kernel, nvrtc, program, "nvrtcGetPTXSize", "nvrtcGetPTX").rstrip(b"\0")
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Artifact(
        image=image,
        kind=options.image_kind,
        entry=source.entry,
        architecture=architecture,
        num_warps=wanted.num_warps,
        shared_bytes=0,
        scratch_pointers=0,
        scratch_bytes=0,
        profile_bytes=0,
        compiler=version(kernel),
    )


def version(kernel: str) -> str:
    """``"nvrtc 13.0"``; ``kernel`` is who asks, for errors."""
    nvrtc = _nvrtc(kernel)
    major, minor = _call(kernel, nvrtc, "nvrtcVersion", many=True)
    return f"nvrtc {major}.{minor}"


def _nvrtc(kernel: str) -> Any:
    try:
        missing = importlib.util.find_spec("cuda.bindings") is None
    except ModuleNotFoundError:
        missing = True
    if missing:
        raise UnsupportedError(
            f"[{kernel}] is compiled by NVRTC, which needs cuda-bindings: python -m pip install "
            "'ruda-runtime[cuda]' nvidia-cuda-nvrtc"
        )
    return importlib.import_module("cuda.bindings.nvrtc")


def _call(kernel: str, nvrtc: Any, name: str, *arguments: Any, many: bool = False) -> Any:
    try:
        status, *values = getattr(nvrtc, name)(*arguments)
    except RuntimeError as error:  # the library itself is missing
        raise UnsupportedError(
            f"[{kernel}] the NVRTC library cannot be loaded ({str(error).strip()}): python -m pip "
            "install nvidia-cuda-nvrtc"
        ) from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RudaRuntimeError(f"[{kernel}] {name} failed: {status.name}")
    return values if many else (values[0] if values else None)


def _text(kernel: str, nvrtc: Any, program: Any, size_name: str, text_name: str) -> bytes:
    size = _call(kernel, nvrtc, size_name, program)
    buffer = b" " * size
    _call(kernel, nvrtc, text_name, program, buffer)
    return buffer


def _macro(kernel: str, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"-D{name}={int(value)}"
    if isinstance(value, int):
        return f"-D{name}={value}"
    if isinstance(value, float):
        return f"-D{name}={value!r}"
    raise RudaTypeError(
        f"[{kernel}] {name}: got {value!r}, wanted a number: constants of CUDA C++ are macros"
    )

"""How device kernels are compiled: the settings, and the PTX versions that fit an architecture."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ruda_runtime.errors import RudaValueError, UnsupportedError

COMPILERS = ("cubin", "ptx", "nvrtc")
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
"""What bundles are built for unless told otherwise."""

# The first PTX version of an architecture, and of CUDA versions (PTX ISA manual, release history).
_FIRST_PTX = {75: 63, 80: 70, 86: 71, 87: 74, 89: 78, 90: 78, 100: 86, 103: 88, 120: 87, 121: 88}
_PTX_OF_CUDA = {12000: 80, 12010: 81, 12020: 82, 12030: 83, 12040: 84, 12050: 85, 12060: 85,
                12070: 86, 12080: 87, 12090: 88}  # fmt: skip


@dataclass(frozen=True)
class CompileOptions:
    """What a kernel is compiled to.

    Attributes:
        compiler: ``"cubin"``, ``"ptx"`` or ``"nvrtc"``.
        ptx_version: 80 for PTX 8.0; ``None``: the compiler's.
    """

    compiler: str = "cubin"
    ptx_version: int | None = None

    @property
    def image_kind(self) -> str:
        """``"ptx"`` where the driver compiles the rest, else ``"cubin"``."""
        return "ptx" if self.compiler == "ptx" else "cubin"


def read_options() -> CompileOptions:
    """RUDA_CUDA_COMPILER and RUDA_PTX_VERSION.

    Raises:
        RudaValueError: a value that is not allowed.
    """
    compiler = os.environ.get("RUDA_CUDA_COMPILER") or "cubin"
    if compiler not in COMPILERS:
        raise RudaValueError(
            f"[RUDA_CUDA_COMPILER] got {compiler!r}, wanted one of: {', '.join(COMPILERS)}"
        )
    version = os.environ.get("RUDA_PTX_VERSION")
    if not version:
        return CompileOptions(compiler)
    if re.fullmatch(r"[1-9]\d?\.\d", version) is None:
        raise RudaValueError(
            f"[RUDA_PTX_VERSION] got {version!r}, wanted MAJOR.MINOR, for example 8.0"
        )
    return CompileOptions(compiler, int(version.replace(".", "")))


def parse_architecture(text: str) -> int:
    """90 of ``"sm_90"``.

    Raises:
        RudaValueError: not the name of an architecture that kernels are compiled for.
    """
    match = re.fullmatch(r"sm_(\d{2,3})", text)
    if match is None or int(match[1]) < 75:
        raise RudaValueError(
            f"[architecture] got {text!r}, wanted sm_ and a number from 75, for example: "
            f"{', '.join(f'sm_{each}' for each in ARCHITECTURES)}"
        )
    return int(match[1])


def driver_ptx_version(driver_version: int) -> int:
    """The newest PTX that a driver of this CUDA version (13000 for 13.0) compiles."""
    known = [ptx for cuda, ptx in _PTX_OF_CUDA.items() if cuda <= driver_version]
    if driver_version >= 13000:
        return 90 + driver_version % 1000 // 10
    return max(known, default=80)


def check_ptx_version(
    version: int, architecture: int, compiler: int | None, driver: int | None
) -> None:
    """That a fixed PTX version fits the GPU, the compiler's newest and the driver's newest.

    Raises:
        UnsupportedError: it does not; the text says which of them.
    """
    wanted = f"[RUDA_PTX_VERSION] got {_text(version)}"
    first = _FIRST_PTX.get(architecture)
    if first is not None and version < first:
        raise UnsupportedError(
            f"{wanted}, but sm_{architecture} needs at least PTX {_text(first)}: raise or unset it"
        )
    if compiler is not None and version > compiler:
        raise UnsupportedError(
            f"{wanted}, but the compiler knows PTX up to {_text(compiler)}: lower or unset it"
        )
    if driver is not None and version > driver:
        raise UnsupportedError(
            f"{wanted}, but the driver compiles PTX up to {_text(driver)}: lower it, or install a "
            "newer driver"
        )


def _text(version: int) -> str:
    return f"{version // 10}.{version % 10}"

"""Matrix products for RUDA tensors: dense (`gemm`) and over NF4 weights (`nf4`).

Every function takes and returns ``ruda_runtime.Tensor``. Storage is float32, float16 or bfloat16,
accumulation float32 with one rounding at the end; results do not depend on the number of threads.
Importing this package registers its kernels with ruda-runtime, starts no thread and loads no BLAS.
"""

from __future__ import annotations

from pathlib import Path

from ruda_runtime import check_abi

from ._abi import PROVIDES, REQUIRES
from ._version import __version__

# The packages below come first: the native module itself can only say that something is wrong.
check_abi("ruda-blas", __version__, PROVIDES, REQUIRES)

from . import _native  # noqa: E402

check_abi("ruda-blas", __version__, PROVIDES, REQUIRES, _native.abi_version)

from . import gemm, nf4  # noqa: E402
from .errors import BlasError, BlasTypeError, Nf4Error, Nf4TypeError  # noqa: E402


def get_include() -> str:
    """The folder of the C++ header ``<ruda/blas.h>``."""
    return str(Path(__file__).resolve().parent / "include")


def library_description() -> str:
    """Version, kernel family and number of threads of the vendored OpenBLAS; loads it."""
    return _native.library_description()


__all__ = [
    "__version__",
    "get_include",
    "library_description",
    # families
    "gemm",
    "nf4",
    # errors
    "BlasError",
    "BlasTypeError",
    "Nf4Error",
    "Nf4TypeError",
]

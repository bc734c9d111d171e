"""Device kernels: definition, compilation, caches, launch plans and bundles.

Importing this package imports no compiler.
"""

from __future__ import annotations

from ruda_runtime.copies.launch import GATHER
from ruda_runtime.kernel.cache import forget_memory as forget_compiled
from ruda_runtime.kernel.definition import Kernel, Plan, compile_counts, defined_kernels, submit
from ruda_runtime.kernel.discovery import discover
from ruda_runtime.kernel.source import CudaSource
from ruda_runtime.launch import Definition, Launch, View

Kernel.of(GATHER)  # of Tensor.contiguous(), which is native code

__all__ = [
    "CudaSource",
    "Definition",
    "Kernel",
    "Launch",
    "Plan",
    "View",
    "compile_counts",
    "defined_kernels",
    "discover",
    "forget_compiled",
    "submit",
]

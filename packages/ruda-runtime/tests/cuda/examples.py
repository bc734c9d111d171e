"""The kernels of the tests, as a launch.py defines them: Triton is not imported."""

from __future__ import annotations

import numpy as np

import ruda_runtime as rr
from ruda_runtime.kernel import Kernel


def scale_add_host(
    x: rr.Tensor, y: rr.Tensor | None, out: rr.Tensor, count: int, alpha: float, BLOCK: int,
    SIGN: int,
) -> None:  # fmt: skip
    out.numpy()[:count] = SIGN * alpha * x.numpy()[:count] + (0 if y is None else y.numpy()[:count])


SCALE_ADD = Kernel(
    "example.scale_add",
    "example_kernels:scale_add",
    {"x": "*fp32|fp16|bf16", "y": "*fp32|fp16|bf16?", "out": "*fp32|fp16|bf16", "count": "i32%16",
     "alpha": "fp32", "BLOCK": "constexpr", "SIGN": "constexpr"},
    host=scale_add_host,
)  # fmt: skip
STRIDED = Kernel(
    "example.strided_copy",
    "example_kernels:strided_copy",
    {"x": "*fp32", "out": "*fp32", "count": "i32", "stride": "i64%16=1", "BLOCK": "constexpr"},
)
PRODUCT = Kernel(
    "example.product",
    "example_kernels:product",
    {"a": "*fp32|fp16|bf16", "b": "*fp32|fp16|bf16", "out": "*fp32", "BLOCK": "constexpr"},
)
WRONG = Kernel("example.out_of_bounds", "example_kernels:out_of_bounds",
               {"x": "*fp32", "count": "i32"})  # fmt: skip


def tensors(count: int = 1000, dtype: str = "float32") -> tuple[rr.Tensor, rr.Tensor, rr.Tensor]:
    """x = 0, 1, ...; y = 1, 1, ...; out undefined."""
    x, out = rr.empty(count, dtype), rr.empty(count, dtype)
    y = rr.Tensor.from_numpy(np.ones(count, x.dtype), copy=True)
    return rr.Tensor.from_numpy(np.arange(count).astype(x.dtype), copy=True), y, out


def run(x: rr.Tensor, y: rr.Tensor | None, out: rr.Tensor, count: int, alpha: float = 2.0,
        **options: int) -> None:  # fmt: skip
    SCALE_ADD(((count + 255) // 256,), x, y, out, count, alpha, BLOCK=256, SIGN=1, **options)

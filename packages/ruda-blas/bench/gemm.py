"""Time dense products beside PyTorch's, or NumPy's in float32 where PyTorch is not installed.

    python packages/ruda-blas/bench/gemm.py [--rounds 9] [--json | --ledger]

A product is timed only after its result has passed the conformance criteria. The limit of a large
product is the rate of NumPy's 2048^3 float32 product in the same run, that of one row the time to
read the weight at the rate of a large copy.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import Rows, milliseconds, parser

from ruda_blas import gemm
from ruda_blas.gemm import reference
from ruda_runtime import Tensor, empty
from ruda_runtime.conformance import check, numpy_dtype

# x [M, K] @ weight [N, K]^T: the projections of a 135M model, a larger layer, one row.
SHAPES = [(512, 576, 1536), (512, 1536, 576), (512, 4096, 4096), (32, 1536, 576), (1, 4096, 4096)]


def fastest(run: Callable[[], Any]) -> float:
    return min(milliseconds(run) for _ in range(7))


def limits() -> tuple[float, float]:
    """Floating-point operations, and bytes read and written, in a millisecond at best."""
    side = 2048
    a = np.random.default_rng(0).standard_normal((side, side)).astype(np.float32)
    out = np.empty_like(a)
    big = np.zeros(1 << 26, np.float32)
    target = np.empty_like(big)
    flops = 2 * side**3 / fastest(lambda: np.matmul(a, a, out=out))
    return flops, 2 * big.nbytes / fastest(lambda: np.copyto(target, big))


def peer_of(x: np.ndarray, weight: np.ndarray, dtype: str) -> tuple[Callable[[], Any] | None, str]:
    if importlib.util.find_spec("torch") is None:
        if dtype != "float32":
            return None, ""
        out = np.empty((len(x), len(weight)), np.float32)
        return lambda: np.matmul(x, weight.T, out=out), "numpy"
    import torch

    kind = getattr(torch, dtype)
    left, right = (torch.from_numpy(array.astype(np.float32)).to(kind) for array in (x, weight))
    return lambda: left @ right.T, "torch"


def product(rows: Rows, dtype: str, shape: tuple[int, int, int], limit: tuple[str, float]) -> None:
    m, n, k = shape
    generator = np.random.default_rng(1)
    x = generator.standard_normal((m, k)).astype(numpy_dtype(dtype))
    weight = generator.standard_normal((n, k)).astype(numpy_dtype(dtype))
    a, b = Tensor.from_numpy(x), Tensor.from_numpy(weight).permute((1, 0))
    out, name = empty((m, n), dtype), f"{m}x{n}x{k}"
    gemm.matmul(a, b, out)
    check(out.numpy(), reference.addmm(x, weight.T), dtype, name=name)
    peer, peer_name = peer_of(x, weight, dtype)
    rows.add("gemm.matmul", name, dtype, lambda: gemm.matmul(a, b, out), peer, peer_name, limit)


def main() -> None:
    rows = Rows(parser(__doc__).parse_args())
    flops, bytes_copied = limits()
    for dtype in ("float32", "bfloat16", "float16"):
        for m, n, k in SHAPES:
            limit = ("numpy 2048^3", 2.0 * m * n * k / flops)
            if m == 1:
                limit = ("copy bandwidth", n * k * numpy_dtype(dtype).itemsize / bytes_copied)
            product(rows, dtype, (m, n, k), limit)
    rows.finish()


if __name__ == "__main__":
    main()

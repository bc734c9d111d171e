"""Time the NF4 operations beside bitsandbytes' on the CPU, where it is installed.

    python packages/ruda-blas/bench/nf4.py [--rounds 7] [--json | --ledger]

A product is timed only after its result has passed the conformance criteria. The limit of up to
four rows is the time to read codes and scales at the rate of a large copy, that of more rows the
rate of NumPy's 2048^3 float32 product in the same run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import Rows, limits, parser

from ruda_blas import gemm, nf4
from ruda_blas.nf4 import Nf4Layout, reference
from ruda_runtime import Tensor, empty
from ruda_runtime.conformance import check, numpy_dtype

SQUARE = 4096
# Rows of x, out and in features: the layers of a 135M model, a larger one; decoding and training.
LAYERS = [(1536, 576), (576, 1536), (576, 576), (192, 576)]
SHAPES = [
    *((1, *layer) for layer in LAYERS),
    *((rows, SQUARE, SQUARE) for rows in (1, 4, 8)),
    (32, 1536, 576),
    *((256, *layer) for layer in LAYERS),
    (512, 1536, 576),
    (512, 576, 1536),
    (512, SQUARE, SQUARE),
]
HALF_SHAPES = [
    (1, 1536, 576),
    *((rows, SQUARE, SQUARE) for rows in (1, 4)),
    (256, 1536, 576),
    (512, 1536, 576),
]
Run = Callable[[], Any]


class Peer:
    """bitsandbytes on the same weight: quantise, restore, forward, input gradient."""

    name = "bitsandbytes"

    def __init__(self, weight: np.ndarray) -> None:
        import bitsandbytes
        import torch

        self.torch, self.bnb, self.functional = torch, bitsandbytes, bitsandbytes.functional
        self.weight = torch.from_numpy(weight)
        self.packed, self.state = self.functional.quantize_4bit(self.weight, quant_type="nf4")

    def quantize(self) -> Any:
        return self.functional.quantize_4bit(self.weight, quant_type="nf4")

    def dequantize(self) -> Any:
        return self.functional.dequantize_4bit(self.packed, self.state)

    def forward(self, x: np.ndarray, dtype: str) -> Run:
        given = self.torch.from_numpy(x.astype(np.float32)).to(getattr(self.torch, dtype))
        with self.torch.no_grad():
            return lambda: self.bnb.matmul_4bit(given, self.packed.t(), self.state)

    def input_grad(self, x: np.ndarray, grad: np.ndarray, dtype: str) -> Run:
        kind = getattr(self.torch, dtype)
        given = self.torch.from_numpy(x.astype(np.float32)).to(kind).requires_grad_()
        upper = self.torch.from_numpy(grad.astype(np.float32)).to(kind)
        result = self.bnb.matmul_4bit(given, self.packed.t(), self.state)
        return lambda: self.torch.autograd.grad(result, given, upper, retain_graph=True)


def weight_of(rows: int, cols: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, cols)).astype(np.float32)


def peer_of(weight: np.ndarray) -> Peer | None:
    return Peer(weight) if importlib.util.find_spec("bitsandbytes") is not None else None


def conversions(rows: Rows, bytes_copied: float) -> None:
    dense = weight_of(SQUARE, SQUARE)
    peer, weight, layout = peer_of(dense), Tensor.from_numpy(dense), Nf4Layout(SQUARE, SQUARE)
    packed, scales = nf4.quantize(weight)
    out, name, shape = empty((SQUARE, SQUARE)), peer.name if peer else "", f"{SQUARE}x{SQUARE}"
    moved = dense.nbytes + packed.numpy().nbytes + scales.numpy().nbytes
    limit = ("copy bandwidth", moved / bytes_copied)
    rows.add("nf4.quantize", shape, "float32", lambda: nf4.quantize(weight),
             peer.quantize if peer else None, name, limit)  # fmt: skip
    rows.add("nf4.dequantize", shape, "float32",
             lambda: nf4.dequantize(packed, scales, None, layout, out=out),
             peer.dequantize if peer else None, name, limit)  # fmt: skip


def products(rows: Rows, dtype: str, m: int, n: int, k: int, best: tuple[float, float]) -> None:
    dense = weight_of(n, k)
    peer, layout = peer_of(dense), Nf4Layout(n, k)
    parts = (*nf4.quantize(Tensor.from_numpy(dense)), None, layout)
    exact = reference.dequantize(parts[0].numpy(), parts[1].numpy(), (n, k), layout.block_size)
    generator = np.random.default_rng(1)
    x = generator.standard_normal((m, k)).astype(numpy_dtype(dtype))
    grad = generator.standard_normal((m, n)).astype(numpy_dtype(dtype))
    given, upper = Tensor.from_numpy(x), Tensor.from_numpy(grad)
    y, dx, shape = empty((m, n), dtype), empty((m, k), dtype), f"{m}x{n}x{k}"
    check(nf4.matmul(given, *parts, out=y).numpy(), reference.matmul(x, exact), dtype, name=shape)
    check(nf4.input_grad(upper, *parts, out=dx).numpy(), reference.input_grad(grad, exact), dtype,
          name=shape)  # fmt: skip
    name = peer.name if peer else ""
    limit = ("numpy 2048^3", 2.0 * m * n * k / best[0])
    if m <= 4:
        read = parts[0].numpy().nbytes + parts[1].numpy().nbytes
        limit = ("copy bandwidth", read / best[1])
    rows.add("nf4.matmul", shape, dtype, lambda: nf4.matmul(given, *parts, out=y),
             peer.forward(x, dtype) if peer else None, name, limit)  # fmt: skip
    rows.add("nf4.input_grad", shape, dtype, lambda: nf4.input_grad(upper, *parts, out=dx),
             peer.input_grad(x, grad, dtype) if peer else None, name, limit)  # fmt: skip
    if m >= 256 and dtype == "float32":
        beside_dense(rows, dense, parts, given, upper, shape)


def beside_dense(
    rows: Rows, dense: np.ndarray, parts: Any, x: Tensor, grad: Tensor, shape: str
) -> None:
    """The same products beside our own of the dense float32 weight."""
    weight, name = Tensor.from_numpy(dense), "gemm.matmul"
    y, dx = empty((x.shape[0], dense.shape[0])), empty((x.shape[0], dense.shape[1]))
    rows.add("nf4.matmul", shape, "float32", lambda: nf4.matmul(x, *parts, out=y),
             lambda: gemm.matmul(x, weight.permute((1, 0)), y), name)  # fmt: skip
    rows.add("nf4.input_grad", shape, "float32", lambda: nf4.input_grad(grad, *parts, out=dx),
             lambda: gemm.matmul(grad, weight, dx), name)  # fmt: skip


def main() -> None:
    rows = Rows(parser(__doc__).parse_args())
    best = limits()
    conversions(rows, best[1])
    for dtype, shapes in (("float32", SHAPES), ("bfloat16", HALF_SHAPES)):
        for m, n, k in shapes:
            products(rows, dtype, m, n, k, best)
    rows.finish()


if __name__ == "__main__":
    main()

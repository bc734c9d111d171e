"""Time dense products beside PyTorch's, or NumPy's in float32 where PyTorch is not installed.

    python packages/ruda-blas/bench/gemm.py [--rounds 7] [--json | --ledger]

A product is timed only after its result has passed the conformance criteria. The limit of a product
of many rows is the rate of NumPy's 2048^3 float32 product in the same run, for half types our own
float32 product of the same sizes; that of up to four rows the time to read the weight at the rate
of a large copy.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from measure import Rows, limits, parser

from ruda_blas import gemm
from ruda_blas.gemm import reference
from ruda_runtime import Tensor, empty
from ruda_runtime.conformance import check, numpy_dtype


@dataclass(frozen=True)
class Product:
    """[M, K] @ [K, N], `batch` times where it is not 0; "t" marks an operand stored transposed."""

    m: int
    n: int
    k: int
    stored: str = "nt"
    batch: int = 0
    dtype: str = "float32"

    @property
    def name(self) -> str:
        batch = f"{self.batch}x " if self.batch else ""
        return f"{batch}{self.m}x{self.n}x{self.k} {self.stored}"

    def operand(self, which: int) -> np.ndarray:
        rows, cols = ((self.m, self.k), (self.k, self.n))[which]
        shape = (cols, rows) if self.stored[which] == "t" else (rows, cols)
        generator = np.random.default_rng(which)
        values = generator.standard_normal((self.batch, *shape) if self.batch else shape)
        array = values.astype(numpy_dtype(self.dtype))
        return array.swapaxes(-1, -2) if self.stored[which] == "t" else array


# The projections of a 135M model, a larger layer, one row and a few in both layouts of the weight.
LARGE = [Product(512, 576, 1536), Product(512, 1536, 576), Product(512, 4096, 4096)]
FEW = [Product(1, 4096, 4096), Product(1, 4096, 4096, "nn"), Product(4, 4096, 4096, "nn")]
# Low-rank updates, forward and the two gradients; a small product; heads of attention.
SMALL = [
    Product(256, 16, 576),
    Product(256, 1536, 16),
    Product(16, 576, 256, "tn"),
    Product(64, 64, 64, "nn"),
    Product(64, 64, 64, "nn", 32),
]
PRODUCTS = [
    *LARGE,
    Product(32, 1536, 576),
    *FEW,
    *SMALL,
    Product(256, 256, 64, "nt", 9),
    Product(512, 512, 512, "nn", 4),
    *(replace(product, dtype="bfloat16") for product in (*LARGE, *FEW, *SMALL)),
    *(replace(product, dtype="float16") for product in (LARGE[2], *FEW[:2], SMALL[0])),
]


def peer_of(a: np.ndarray, b: np.ndarray, dtype: str) -> tuple[Callable[[], Any] | None, str]:
    if importlib.util.find_spec("torch") is None:
        return (lambda: np.matmul(a, b), "numpy") if dtype == "float32" else (None, "")
    import torch

    def tensor(array: np.ndarray) -> torch.Tensor:
        contiguous = array if array.flags.c_contiguous else array.swapaxes(-1, -2)
        found = torch.from_numpy(contiguous.astype(np.float32)).to(getattr(torch, dtype))
        return found if contiguous is array else found.transpose(-1, -2)

    left, right = tensor(a), tensor(b)
    return lambda: left @ right, "torch"


def measure(rows: Rows, product: Product, limit: tuple[str, float]) -> float:
    arrays = product.operand(0), product.operand(1)
    a, b = (Tensor.from_numpy(array) for array in arrays)
    out = gemm.matmul(a, b, empty((*a.shape[:-1], product.n), product.dtype))
    if not product.batch:
        check(out.numpy(), reference.addmm(*arrays), product.dtype, name=product.name)
    peer, peer_name = peer_of(*arrays, product.dtype)
    return rows.add("gemm.matmul", product.name, product.dtype, lambda: gemm.matmul(a, b, out),
                    peer, peer_name, limit)  # fmt: skip


def main() -> None:
    rows = Rows(parser(__doc__).parse_args())
    flops, bytes_copied = limits()
    in_float32: dict[str, float] = {}
    for product in PRODUCTS:
        work = 2.0 * max(product.batch, 1) * product.m * product.n * product.k
        limit = ("numpy 2048^3", work / flops)
        if product.m <= 4:
            read = product.n * product.k * numpy_dtype(product.dtype).itemsize
            limit = ("copy bandwidth", read / bytes_copied)
        elif product.dtype != "float32":
            limit = ("ours in float32", in_float32[product.name])
        taken = measure(rows, product, limit)
        if product.dtype == "float32":
            in_float32[product.name] = taken
    rows.finish()


if __name__ == "__main__":
    main()

"""Quantised weights as data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ruda_runtime.conformance import numpy_dtype

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Weight:
    """A weight [rows, cols] in blocks; `kind` says how its values are spread."""

    rows: int
    cols: int
    block_size: int = 64
    kind: str = "normal"

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.cols}-b{self.block_size}-{self.kind}"


WEIGHTS = [
    # Odd counts and partial last blocks; blocks that straddle rows; one block and less.
    Weight(7, 13),
    Weight(3, 65),
    Weight(5, 127),
    Weight(1, 1),
    Weight(1, 7),
    Weight(33, 65),
    Weight(300, 64),
    Weight(2, 129),
    # Block sizes from the smallest to larger than the weight and than the kernel's buffer.
    *(Weight(65, 96, block) for block in (2, 6, 32, 128, 256, 1024, 2048, 4096, 65536)),
    Weight(9, 1031, 4098),
    # Values: zeros in a block, one sign, tiny and huge scales, many powers of ten.
    Weight(12, 64, 64, "zero_block"),
    Weight(12, 64, 64, "constant"),
    Weight(12, 64, 64, "subnormal"),
    Weight(12, 64, 64, "huge"),
    Weight(12, 64, 64, "spread"),
]


def values_of(case: Weight, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """The dense weight, in the dtype (which turns what it cannot hold to 0 or its largest)."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((case.rows, case.cols))
    if case.kind == "zero_block":
        values.reshape(-1)[case.block_size : 2 * case.block_size] = 0.0
    elif case.kind == "constant":
        values[...] = 0.75
    elif case.kind == "subnormal":
        values *= 1e-41 if dtype != "float16" else 1e-6
    elif case.kind == "huge":
        values *= 0.2 * (65504.0 if dtype == "float16" else 3e38)
    elif case.kind == "spread":
        values *= 10.0 ** generator.uniform(-4, 4, values.shape)
    limit = 65504.0 if dtype == "float16" else 3.38e38
    return np.clip(values, -limit, limit).astype(numpy_dtype(dtype))


@dataclass(frozen=True)
class Product:
    """x [m, .] times a weight."""

    m: int
    weight: Weight
    tile_rows: int = 128
    bias: bool = False
    x_layout: str = "rows"
    rank: int = 0  # of the update; its operands have x_layout too
    update_dtypes: tuple[str, str] = ("float32", "float32")

    @property
    def name(self) -> str:
        bias = "-bias" if self.bias else ""
        update = f"-r{self.rank}-{self.update_dtypes[0]}-{self.update_dtypes[1]}"
        return (
            f"{self.m}x{self.weight.name}-t{self.tile_rows}-{self.x_layout}{bias}"
            f"{update if self.rank else ''}"
        )


PRODUCTS = [
    # The shapes of a small model, one row to many, and the edges of the path for few rows.
    *(Product(m, Weight(192, 576), bias=m % 2 == 1) for m in (1, 2, 3, 4, 5, 67)),
    *(Product(m, Weight(64, 64), bias=m == 7) for m in (1, 6, 7, 8, 9, 16, 17)),
    Product(13, Weight(128, 192), bias=True, rank=4, x_layout="strided"),
    # A few rows: blocks that straddle rows, several chunks a block, pieces of long rows.
    *(Product(m, Weight(37, 192, block)) for m in (1, 3, 8) for block in (128, 320, 4096)),
    *(Product(m, Weight(19, 4352)) for m in (1, 2, 5)),
    *(
        Product(m, Weight(515, 640), x_layout=layout, rank=rank)
        for m, layout, rank in ((1, "cols", 0), (2, "strided", 3), (6, "reversed", 20))
    ),
    Product(300, Weight(576, 192)),
    Product(40, Weight(1536, 576), bias=True),
    Product(40, Weight(576, 1536)),
    # Rows that begin inside a byte and a block, single columns and rows, partial blocks.
    Product(3, Weight(5, 127)),
    Product(9, Weight(33, 65), bias=True),
    Product(1, Weight(1, 1)),
    Product(6, Weight(1, 129)),
    Product(6, Weight(129, 1, 2)),
    Product(1, Weight(130, 65, 4096)),
    Product(70, Weight(90, 515, 32)),
    # Scratch from almost nothing to more than the weight.
    *(Product(33, Weight(70, 96), tile_rows) for tile_rows in (1, 2, 7, 64, 100000)),
    Product(3, Weight(70, 96), 1),
    Product(500, Weight(300, 320), 16),
    # Operands that BLAS cannot read as they are.
    *(
        Product(m, Weight(70, 96), x_layout=layout, bias=True)
        for m in (2, 33)
        for layout in ("cols", "sliced", "strided", "reversed", "broadcast")
    ),
    # Low-rank updates: rank 1 to beyond the sum's own length, every dtype, every layout.
    *(Product(m, Weight(192, 576), rank=16, bias=m == 67) for m in (1, 4, 5, 67)),
    Product(40, Weight(70, 96), rank=1),
    Product(3, Weight(70, 96), rank=130),
    Product(40, Weight(24, 18, 6), rank=130, bias=True),
    Product(33, Weight(70, 96), 1, rank=7),
    Product(33, Weight(70, 96), rank=5, update_dtypes=("bfloat16", "float16")),
    Product(2, Weight(70, 96), rank=5, update_dtypes=("float16", "bfloat16")),
    *(
        Product(m, Weight(70, 96), x_layout=layout, rank=8)
        for m in (2, 33)
        for layout in ("cols", "sliced", "strided", "reversed", "broadcast")
    ),
    Product(30, Weight(4, 0), rank=3),
    Product(30, Weight(0, 4), rank=3),
    # Nothing to do.
    Product(0, Weight(8, 64)),
    Product(3, Weight(0, 64)),
    Product(3, Weight(4, 0), bias=True),
    Product(30, Weight(4, 0)),
]

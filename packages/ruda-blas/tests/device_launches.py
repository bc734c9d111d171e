"""What the entries launch on the cuda target beside what each launch.py says, for
test_device_launches.py: a process of its own, on the driver double in record-only mode.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

from ruda_blas import _native, nf4
from ruda_blas.gemm import launch as gemm
from ruda_blas.nf4 import launch as nf4_launch
from ruda_runtime import Tensor, empty
from ruda_runtime.launch import Launch
from ruda_runtime.testing.launches import differences, scratch, shifted, view

DTYPES = ("float32", "float16", "bfloat16")


def laid_out(shape: tuple[int, ...], dtype: str, layout: str) -> Tensor:
    """A tensor in device memory; "cols", "strided", "sliced" and "shifted" are views."""
    *batch, rows, cols = shape
    if layout == "rows":
        return empty(shape, dtype)
    if layout == "shifted":
        return shifted(shape, dtype)
    if layout == "cols":
        order = (*range(len(batch)), len(batch) + 1, len(batch))
        return empty((*batch, cols, rows), dtype).permute(order)
    if layout == "strided":
        return empty((*batch, rows, 2 * cols), dtype).slice(-1, 0, None, 2)
    return empty((*batch, rows, cols + 16), dtype).slice(-1, 16, None)


# m, n, k: every tile, edges, a few rows, a few columns, split sums, none to sum.
SIZES = [
    (1, 1, 1), (16, 64, 64), (17, 33, 65), (64, 64, 64), (2048, 2048, 48), (1024, 1536, 32),
    (16, 4096, 4096), (4096, 16, 4096), (99, 7, 1030), (5, 3, 8192), (2, 300, 600), (33, 32, 0),
]  # fmt: skip
LAYOUTS = [("rows", "rows"), ("rows", "cols"), ("cols", "rows"), ("cols", "cols"),
           ("strided", "sliced"), ("shifted", "rows"), ("rows", "strided")]  # fmt: skip
BATCHES = [
    ((3, 5, 7), (3, 7, 4), (3, 5, 4)),
    ((3, 5, 70), (70, 40), (3, 5, 40)),
    ((5, 7), (3, 7, 4), (3, 5, 4)),
    ((2, 1, 5, 7), (3, 7, 4), (2, 3, 5, 4)),
    ((2, 3, 2, 1, 40, 3), (3, 1, 3, 3, 50), (2, 3, 2, 3, 40, 50)),
    ((2, 1, 2, 3, 8, 1040), (4, 1, 1, 1040, 9), (2, 4, 2, 3, 8, 9)),
    ((6, 1, 33), (6, 33, 9), (6, 1, 9)),
    ((40, 1, 64), (64, 70), (40, 1, 70)),
    ((2, 3, 4, 600), (1, 600, 9), (2, 3, 4, 9)),
    ((2, 1, 3, 33), (2, 1, 33, 9), (2, 1, 3, 9)),
    ((0, 3, 4), (4, 5), (0, 3, 5)),
]


def product(
    a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None = None, alpha: float = 1.0,
    beta: float = 0.0,
) -> list[Launch]:  # fmt: skip
    call = _native.gemm_matmul if a.dtype_name == b.dtype_name else _native.gemm_product
    call(a, b, bias, out, alpha, beta, 0)
    return gemm.product(*map(view, (a, b, bias, out)), alpha, beta, scratch)


def products() -> Iterator[list[Launch]]:
    for dtype in DTYPES:
        for (m, n, k), (left, right) in itertools.product(SIZES, LAYOUTS):
            a, b = laid_out((m, k), dtype, left), laid_out((k, n), dtype, right)
            yield product(a, b, empty((m, n), dtype))
        for tiles, n in itertools.product((95, 96), (64, 128)):  # about a full GPU
            a, b = empty((128 * tiles, 1024), dtype), empty((1024, n), dtype)
            yield product(a, b, empty((128 * tiles, n), dtype))
        for shapes in BATCHES:
            for left, right in LAYOUTS[:4]:
                a, b = laid_out(shapes[0], dtype, left), laid_out(shapes[1], dtype, right)
                yield product(a, b, empty(shapes[2], dtype))
        for bias, out, layout in itertools.product(DTYPES, DTYPES, ("rows", "cols", "strided")):
            for m, n, k in ((40, 16, 2000), (40, 16, 200), (300, 1, 40)):
                a, b = empty((m, k), dtype), empty((k, n), dtype)
                for alpha, beta in ((1.0, 0.0), (0.5, 2.0), (0.0, 1.0)):
                    target = laid_out((m, n), out, layout)
                    yield product(a, b, target, empty((n,), bias), alpha, beta)
                    yield product(a, b, target, None, alpha, beta)
        for other in DTYPES:
            yield product(empty((70, 600), dtype), empty((600, 90), other), empty((70, 90), other))


def weight(rows: int, cols: int, block: int) -> tuple[Tensor, Tensor, Tensor]:
    layout = nf4.Nf4Layout(rows, cols, block)
    packed, scales = empty((layout.packed_bytes,), "uint8"), empty((layout.blocks,), "float32")
    return packed, scales, nf4.codebook_tensor()


def quantisations() -> Iterator[list[Launch]]:
    """Nothing is computed here: the double's fresh memory, from which the place of the first NaN is
    read, is a number behind every weight's end, so that weights count as finite."""
    result = scratch((1,), "int64")
    codebook = view(nf4.codebook_tensor())
    for dtype, (rows, cols) in itertools.product(DTYPES, ((64, 64), (33, 65), (1, 96), (1, 1))):
        for layout, block in itertools.product(
            ("rows", "cols", "strided", "sliced", "shifted"), (2, 64, 66, 96, 4096)
        ):
            dense = laid_out((rows, cols), dtype, layout)
            packed, scales, table = weight(rows, cols, block)
            _native.nf4_quantize(dense, packed, scales, block)
            views = view(dense), codebook, view(packed), view(scales)
            yield [
                *nf4_launch.find_nonfinite(views[0], result, scratch),
                *nf4_launch.quantize(*views, block),
            ]
            _native.nf4_dequantize(packed, scales, table, dense, block)
            yield nf4_launch.dequantize(views[2], views[3], codebook, views[0], block)


def nf4_products() -> Iterator[list[Launch]]:
    sizes = [(64, 64, 64), (576, 192, 64), (99, 99, 64), (5, 127, 64), (70, 96, 6),
             (4096, 4096, 64), (48, 96, 4096), (1, 2, 2)]  # fmt: skip
    for dtype, (rows, cols, block) in itertools.product(DTYPES, sizes):
        packed, scales, table = weight(rows, cols, block)
        for m, kind, forward in itertools.product(
            (1, 3, 4, 5, 16, 17, 700), ("rows", "cols", "strided", "shifted"), (True, False)
        ):
            width, other = (rows, cols) if forward else (cols, rows)
            x, y = laid_out((m, other), dtype, kind), empty((m, width), dtype)
            bias = empty((width,), "float32") if forward and m % 2 else None
            for rank, kinds in (
                (None, DTYPES[:2]),
                (16, (dtype, dtype)),
                (3, DTYPES[:2]),
                (0, DTYPES),
            ):
                update = (None, None)
                if rank is not None:
                    update = laid_out((m, rank), kinds[0], kind), empty((rank, width), kinds[1])
                name = "nf4.matmul" if forward else "nf4.input_grad"
                _native.nf4_product(name, x, packed, scales, table, bias, y, rows, cols, block, 128,
                                    *update)  # fmt: skip
                yield nf4_launch.matmul(
                    *map(view, (x, packed, scales, table, bias, y)), rows, cols, block,
                    *map(view, update), forward=forward,
                )  # fmt: skip


FAMILIES = {"gemm": (products,), "nf4": (quantisations, nf4_products)}

if __name__ == "__main__":
    found = differences(itertools.chain.from_iterable(each() for each in FAMILIES[sys.argv[1]]))
    print(f"{len(found)} differences", *found[:6], sep="\n")
    sys.exit(1 if found else 0)

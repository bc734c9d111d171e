"""The NF4 kernels, interpreted, against float64; and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ruda_blas.nf4 import launch, reference
from ruda_runtime.conformance import arrange, numpy_dtype

from .kernels_support import DTYPES, check, compile_tests, interpreter_fixture
from .nf4.cases import PRODUCTS, WEIGHTS, Product, Weight, values_of

interpreter = interpreter_fixture()
test_compiles, test_compiles_everywhere = compile_tests(launch.bundle())

MIDPOINTS = ((reference.CODEBOOK[1:] + reference.CODEBOOK[:-1]) / 2).astype(np.float32)


class Quantized:
    """A quantised weight in shared memory, by the reference, and its dense float64 form."""

    def __init__(self, interpreter: Any, case: Weight, scales: Any = None) -> None:
        values = values_of(case) / np.float32(8)
        self.case, shape = case, (case.rows, case.cols)
        packed = reference.pack(reference.codes(values, case.block_size))
        scales = reference.scales(values, case.block_size) if scales is None else scales
        self.scales = scales.astype(np.float32)
        with np.errstate(invalid="ignore"):
            self.dense = reference.dequantize(packed, self.scales, shape, case.block_size)
        arrays = ((packed, "uint8"), (self.scales, "float32"), (reference.CODEBOOK, "float32"))
        self.parts = [interpreter.view(interpreter.array(*pair)) for pair in arrays]


def draw(shape: tuple[int, ...], dtype: str, layout: str = "rows", seed: int = 1) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape).astype(numpy_dtype(dtype))
    return arrange(values, layout)


def quantized(interpreter, weight: np.ndarray, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    given = interpreter.view(interpreter.strided(weight))
    codebook = interpreter.view(interpreter.array(reference.CODEBOOK, "float32"))
    packed = interpreter.empty((-(-weight.size // 2),), "uint8")
    scales = interpreter.empty((-(-weight.size // block_size),), "float32")
    bad = interpreter.empty((1,), "int64")
    view = interpreter.view
    interpreter.run(
        launch.find_nonfinite(given, view(bad), interpreter.scratch)
        + launch.quantize(given, codebook, view(packed), view(scales), block_size)
    )
    assert bad[0] == weight.size
    return packed, scales


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", WEIGHTS, ids=lambda case: case.name)
def test_quantize_and_dequantize(interpreter, case: Weight, dtype: str) -> None:
    weight = values_of(case, dtype)
    exact = weight.astype(np.float64)
    packed, scales = quantized(interpreter, weight, case.block_size)
    assert (scales == reference.scales(exact, case.block_size)).all()
    codes = reference.unpack(packed, exact.size)
    wanted = reference.codes(exact, case.block_size)
    # A code may differ from the nearest one only where rounding the ratio decides.
    scale = np.repeat(scales, case.block_size)[: exact.size].astype(np.float64)
    ratio = np.divide(exact.ravel(), scale, out=np.zeros(exact.size), where=scale > 0)
    undecided = np.abs(ratio[:, None] - MIDPOINTS).min(axis=1) < 4e-7
    assert not ((codes != wanted) & ~undecided).any()
    assert (np.abs(codes - wanted) <= 1).all()
    if exact.size % 2:
        assert packed[-1] & 15 == 7
    codebook = interpreter.array(reference.CODEBOOK, "float32")
    out = interpreter.empty(weight.shape, dtype)
    views = [interpreter.view(array) for array in (packed, scales, codebook, out)]
    interpreter.run(launch.dequantize(*views, case.block_size))
    right = reference.dequantize(packed, scales, weight.shape, case.block_size)
    with np.errstate(over="ignore"):
        stored = right.astype(np.float32).astype(numpy_dtype(dtype))
    np.testing.assert_array_equal(out.astype(np.float64), stored.astype(np.float64))


@pytest.mark.parametrize("layout", ["cols", "strided", "reversed"])
def test_any_strides(interpreter, layout: str) -> None:
    weight = values_of(Weight(33, 65))
    dense = quantized(interpreter, weight, 64)
    other = quantized(interpreter, arrange(weight, layout), 64)
    assert all(one.tobytes() == two.tobytes() for one, two in zip(dense, other))
    codebook = interpreter.array(reference.CODEBOOK, "float32")
    out = interpreter.strided(arrange(np.zeros((33, 65), np.float16), layout))
    views = [interpreter.view(array) for array in (*dense, codebook, out)]
    interpreter.run(launch.dequantize(*views, 64))
    right = reference.dequantize(*dense, (33, 65), 64).astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(out, right)


def test_golden_codes(interpreter) -> None:
    """16 codes in order, then their midpoints: a value half-way takes the lower code."""
    codebook = reference.CODEBOOK.astype(np.float32).reshape(1, 16)
    assert quantized(interpreter, codebook, 16)[0].tobytes().hex() == "0123456789abcdef"
    values = codebook[0]
    middles = (values[1:] + values[:-1]) / np.float32(2)
    ties = np.append(middles, np.float32(-1.0)).reshape(1, 16)
    above = np.append(np.nextafter(middles, np.float32(2)), np.float32(-1)).reshape(1, 16)
    for power in (1.0, 2.0**-20, 2.0**30):
        packed, scales = quantized(interpreter, ties * np.float32(power), 16)
        assert packed.tobytes().hex() == "0123456789abcde0" and scales.tolist() == [power]
        packed, _ = quantized(interpreter, above * np.float32(power), 16)
        assert packed.tobytes().hex() == "123456789abcdef0"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_value_that_is_not_finite(interpreter, bad: float) -> None:
    weight = np.ones((70, 33), np.float32)
    weight[[40, 65], [3, 7]] = bad
    result = interpreter.empty((1,), "int64")
    given = interpreter.view(interpreter.array(weight, "float32"))
    interpreter.run(launch.find_nonfinite(given, interpreter.view(result), interpreter.scratch))
    assert result[0] == 40 * 33 + 3


def multiply(interpreter, case: Product, dtype: str, forward: bool, **options: Any) -> None:
    weight = Quantized(interpreter, case.weight)
    width, to = (case.weight.cols, case.weight.rows)[:: 1 if forward else -1]
    x = draw((case.m, width), dtype, case.x_layout)
    bias = draw((to,), dtype, seed=2) if case.bias and forward else None
    update: tuple[Any, Any] = (None, None)
    if case.rank:
        update = (
            draw((case.m, case.rank), case.update_dtypes[0], case.x_layout, seed=3),
            draw((case.rank, to), case.update_dtypes[1], case.x_layout, seed=4),
        )
    memory = [None if a is None else interpreter.strided(a) for a in (x, bias, *update)]
    y = interpreter.empty((case.m, to), dtype)
    views = [interpreter.view(array) for array in (*memory, y)]
    interpreter.run(
        launch.matmul(views[0], *weight.parts, views[1], views[4], case.weight.rows,
                      case.weight.cols, case.weight.block_size, *views[2:4], forward=forward,
                      **options)
    )  # fmt: skip
    if forward:
        wanted = reference.matmul(x, weight.dense, bias, *update)
    else:
        wanted = reference.input_grad(x, weight.dense, *update)
    check(y, wanted, dtype)


UNIQUE = list({(p.m, p.weight, p.bias, p.x_layout, p.rank, p.update_dtypes): p
               for p in PRODUCTS}.values())  # fmt: skip


@pytest.mark.parametrize("forward", [True, False], ids=["matmul", "input_grad"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", UNIQUE, ids=lambda case: case.name)
def test_products(interpreter, case: Product, dtype: str, forward: bool) -> None:
    multiply(interpreter, case, dtype, forward)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [0, 5])
def test_a_few_rows_without_their_own_kernel(interpreter, dtype: str, rank: int) -> None:
    case = Product(3, Weight(70, 96), bias=True, rank=rank)
    multiply(interpreter, case, dtype, True, few_rows=False)


@pytest.mark.parametrize("forward", [True, False])
def test_large_tiles(interpreter, forward: bool) -> None:
    tile = launch.HALF_TILES["large"]
    multiply(interpreter, Product(150, Weight(140, 192), rank=20), "bfloat16", forward, tile=tile)


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("m", [3, 40])
def test_nan_and_infinity(interpreter, m: int, forward: bool) -> None:
    """In x they fill their row; in a scale, the places that its block reaches."""
    case = Weight(96, 128)
    scales = reference.scales(values_of(case) / np.float32(8), 64)
    scales[5] = np.nan
    weight = Quantized(interpreter, case, scales)
    x = draw((m, 128 if forward else 96), "float32").copy()
    x[0, 7], x[1, 9] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        wanted = (reference.matmul if forward else reference.input_grad)(x, weight.dense)
    y = interpreter.empty(wanted.shape, "float32")
    given = interpreter.view(interpreter.array(x, "float32"))
    interpreter.run(
        launch.matmul(given, *weight.parts, None, interpreter.view(y), 96, 128, 64, forward=forward)
    )
    check(y, wanted, "float32")

"""The product and the input gradient against float64, and their bounds."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import ruda_runtime as rr
from ruda_blas import nf4
from ruda_blas.nf4 import Nf4Layout, reference
from ruda_runtime.conformance import LIMITS, arrange, check, check_repeatable, numpy_dtype

from ..tensors import on_cuda, tensor
from .cases import DTYPES, PRODUCTS, Product, Weight, values_of


@cache
def quantized(case: Weight) -> Quantized:
    """Made once: nothing changes it."""
    return Quantized(case)


class Quantized:
    """A quantised weight and its dense float64 form."""

    def __init__(self, case: Weight) -> None:
        self.layout = Nf4Layout(case.rows, case.cols, case.block_size)
        weight = values_of(case) / np.float32(8)
        self.packed, self.scales = nf4.quantize(rr.Tensor.from_numpy(weight), case.block_size)
        shape = (case.rows, case.cols)
        self.dense = reference.dequantize(
            self.packed.numpy(), self.scales.numpy(), shape, case.block_size
        )
        self.parts = (self.packed, self.scales, None, self.layout)


def draw(shape: tuple[int, ...], dtype: str, layout: str = "rows", seed: int = 1) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape).astype(numpy_dtype(dtype))
    return arrange(values, layout)


def update_of(case: Product, width: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The operands of the update, about as large as the weight's own share."""
    if case.rank == 0:
        return None, None
    left, right = case.update_dtypes
    return (
        draw((case.m, case.rank), left, case.x_layout, seed=3),
        draw((case.rank, width), right, case.x_layout, seed=4),
    )


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.name)
def test_matmul(case: Product, dtype: str) -> None:
    weight = quantized(case.weight)
    x = draw((case.m, case.weight.cols), dtype, case.x_layout)
    bias = draw((case.weight.rows,), dtype, seed=2) if case.bias else None
    ux, uw = update = update_of(case, case.weight.rows)
    result = check_repeatable(
        lambda: nf4.matmul(tensor(x), *weight.parts, case.tile_rows, bias=tensor(bias),
                           update_x=tensor(ux), update_w=tensor(uw)).numpy()
    )  # fmt: skip
    assert result.dtype == numpy_dtype(dtype)
    check(result, reference.matmul(x, weight.dense, bias, *update), dtype, name=case.name)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.name)
def test_input_grad(case: Product, dtype: str) -> None:
    weight = quantized(case.weight)
    grad = draw((case.m, case.weight.rows), dtype, case.x_layout)
    ux, uw = update = update_of(case, case.weight.cols)
    result = check_repeatable(
        lambda: nf4.input_grad(tensor(grad), *weight.parts, case.tile_rows, update_x=tensor(ux),
                               update_w=tensor(uw)).numpy()
    )  # fmt: skip
    assert result.dtype == numpy_dtype(dtype)
    check(result, reference.input_grad(grad, weight.dense, *update), dtype, name=case.name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_peer(dtype: str) -> None:
    """No less exact than the dense float32 product of the restored weight."""
    weight = quantized(Weight(160, 576))
    dense = nf4.dequantize(*weight.parts).numpy()
    for m in (2, 90):
        x = draw((m, 576), dtype)
        peer = (x.astype(np.float32) @ dense.T).astype(numpy_dtype(dtype))
        result = nf4.matmul(tensor(x), *weight.parts).numpy()
        check(result, reference.matmul(x, weight.dense), dtype, peer=peer)
        grad = draw((m, 160), dtype)
        peer = (grad.astype(np.float32) @ dense).astype(numpy_dtype(dtype))
        result = nf4.input_grad(tensor(grad), *weight.parts).numpy()
        check(result, reference.input_grad(grad, weight.dense), dtype, peer=peer)


def test_leading_dimensions_and_results_of_other_dtypes() -> None:
    weight = quantized(Weight(24, 64))
    x = draw((2, 3, 64), "bfloat16")
    result = nf4.matmul(tensor(x), *weight.parts)
    assert result.shape == (2, 3, 24)
    check(result.numpy(), reference.matmul(x, weight.dense), "bfloat16")
    vector = nf4.matmul(tensor(x[0, 0].copy()), *weight.parts)
    assert vector.shape == (24,)
    check(vector.numpy(), reference.matmul(x[0, 0], weight.dense), "bfloat16")
    grad = nf4.input_grad(result, *weight.parts)
    assert grad.shape == (2, 3, 64)

    update = draw((2, 3, 5), "float16", seed=3), draw((5, 24), "float32", seed=4)
    result = nf4.matmul(tensor(x), *weight.parts, update_x=tensor(update[0]),
                        update_w=tensor(update[1]))  # fmt: skip
    check(result.numpy(), reference.matmul(x, weight.dense, None, *update), "bfloat16")

    flat = x.reshape(6, 64)
    for layout in ("rows", "cols", "strided"):
        out = tensor(arrange(np.zeros((6, 24), np.float32), layout))
        assert nf4.matmul(tensor(flat), *weight.parts, out=out) is out
        # On the GPU the decoded weight is rounded to x's dtype.
        limit = LIMITS["bfloat16"] if on_cuda() else None
        check(out.numpy(), reference.matmul(flat, weight.dense), "float32", limit=limit)


def test_another_codebook() -> None:
    values = np.linspace(-3.0, 5.0, 16).astype(np.float32)
    weight = quantized(Weight(33, 65))
    dense = reference.dequantize(weight.packed.numpy(), weight.scales.numpy(), (33, 65), 64, values)
    x = draw((9, 65), "float32")
    result = nf4.matmul(tensor(x), weight.packed, weight.scales, tensor(values), weight.layout)
    check(result.numpy(), reference.matmul(x, dense), "float32")


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("m", [3, 90])
def test_nan_and_infinity(m: int, forward: bool) -> None:
    """In x they fill their row; in a scale, the places that its block reaches."""
    weight = quantized(Weight(96, 128))
    scales = weight.scales.numpy().copy()
    scales[5] = np.nan
    with np.errstate(invalid="ignore"):
        dense = reference.dequantize(weight.packed.numpy(), scales, (96, 128), 64)
        x = draw((m, 128 if forward else 96), "float32").copy()
        x[0, 7], x[1, 9] = np.nan, np.inf
        wanted = reference.matmul(x, dense) if forward else reference.input_grad(x, dense)
    call = nf4.matmul if forward else nf4.input_grad
    result = call(tensor(x), weight.packed, tensor(scales), None, weight.layout).numpy()
    check(result, wanted, "float32")


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_largest_magnitudes_of_one_sign(sign: float) -> None:
    """ik_llama 137 / 538: sums of equal extremes must not saturate."""
    for block_size in (64, 1024, 4096):
        packed = rr.Tensor.from_numpy(np.full(4 * 4097 // 2, 0xFF, np.uint8))
        count = -(-4 * 4097 // block_size)
        scales = rr.Tensor.from_numpy(np.full(count, 3.0, np.float32))
        layout = Nf4Layout(4, 4097, block_size)
        for m in (1, 8):
            x = rr.Tensor.from_numpy(np.full((m, 4097), sign * 127.0, np.float32))
            result = nf4.matmul(x, packed, scales, None, layout).numpy()
            assert (np.abs(result - sign * 127.0 * 3.0 * 4097) <= 2.0).all()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [2, 150])
def test_bits_do_not_depend_on_the_threads(dtype: str, m: int) -> None:
    weight = quantized(Weight(300, 320))
    x, grad = tensor(draw((m, 320), dtype)), tensor(draw((m, 300), dtype))
    threads = rr.get_num_threads()
    results = set()
    try:
        for count in (1, 2, 3):
            rr.set_num_threads(count)
            y = nf4.matmul(x, *weight.parts).numpy()
            dx = nf4.input_grad(grad, *weight.parts).numpy()
            results.add(y.tobytes() + dx.tobytes())
    finally:
        rr.set_num_threads(threads)
    assert len(results) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 4, 5, 64, 700])
@pytest.mark.parametrize("threads", [1, 2])
def test_scratch_is_bounded(dtype: str, m: int, threads: int, engine: int) -> None:
    """The documented bounds beyond the result, by the allocator's own count: for the decoded weight
    threads * tile_rows * in_features * 4 bytes (a dense float32 copy would be many times that); the
    packed products also hold x, and sums where the result cannot."""
    before_threads = rr.get_num_threads()
    weight = quantized(Weight(768, 512))
    x, grad = tensor(draw((m, 512), dtype)), tensor(draw((m, 768), dtype))
    y, dx = rr.empty((m, 768), dtype), rr.empty((m, 512), dtype)
    nf4.codebook_tensor()
    try:
        rr.set_num_threads(threads)
        for tile_rows in (1, 3, 16, 128):
            bound = threads * tile_rows * 512 * 4
            assert tile_rows > 64 or bound < 768 * 512 * 4 / 8
            for call, given, out in ((nf4.matmul, x, y), (nf4.input_grad, grad, dx)):
                rr.reset_peak_memory_stats()
                held = rr.memory_stats()["allocated"]
                call(given, *weight.parts, tile_rows, out=out)
                extra = rr.memory_stats()["peak_allocated"] - held
                if engine != 1:
                    rows = -(-m // 6) * 6
                    extra -= rows * given.shape[1] * 4
                    extra -= 0 if dtype == "float32" else threads * rows * 96 * 4
                assert extra <= bound, (call.__name__, tile_rows, extra, bound)
    finally:
        rr.set_num_threads(before_threads)

"""What is refused, and in which words. Nothing is written on an error."""

from __future__ import annotations

import numpy as np
import pytest

import ruda_runtime as rr
from ruda_blas import BlasError, BlasTypeError, gemm

from ..tensors import on_cuda


def zeros(*shape: int, dtype: str = "float32") -> rr.Tensor:
    return rr.Tensor.from_numpy(np.zeros(shape, dtype))


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (zeros(2, 3), zeros(4, 5), r"a and b: got shapes \[2, 3\] and \[4, 5\], wanted .* one K"),
        (zeros(3), zeros(3, 5), r"a: got shape \[3\], wanted 2 to 8 dimensions"),
        (zeros(2, 3), zeros(3), r"b: got shape \[3\], wanted 2 to 8"),
        (zeros(2, 2, 3), zeros(3, 3, 5), r"wanted batch dimensions that are equal or 1"),
        (zeros(1, 1, 1, 1, 1, 1, 1, 2, 3), zeros(3, 5), "wanted 2 to 8"),
    ],
)
def test_shapes(a: rr.Tensor, b: rr.Tensor, text: str) -> None:
    with pytest.raises(BlasError, match=text):
        gemm.matmul(a, b)


@pytest.mark.parametrize("dtype", ["float64", "int8", "int64", "bool"])
def test_other_dtypes(dtype: str) -> None:
    with pytest.raises(BlasTypeError, match=f"a: got dtype {dtype}, wanted float32 or float16"):
        gemm.matmul(zeros(2, 3, dtype=dtype), zeros(3, 2, dtype=dtype))
    with pytest.raises(BlasTypeError, match=f"out: got dtype {dtype}"):
        gemm.matmul(zeros(2, 3), zeros(3, 2), out_dtype=dtype)


def test_mixed_dtypes() -> None:
    with pytest.raises(BlasTypeError, match="b: got dtype float16, wanted a's dtype float32"):
        gemm.matmul(zeros(2, 3), zeros(3, 2, dtype="float16"))


def test_no_tensors() -> None:
    array = np.zeros((2, 2), np.float32)
    for arguments in ((array, zeros(2, 2)), (zeros(2, 2), array), (zeros(2, 2), None)):
        with pytest.raises(TypeError, match=r"wanted a ruda_runtime\.Tensor"):
            gemm.matmul(*arguments)
    with pytest.raises(BlasTypeError, match=r"bias: got numpy\.ndarray"):
        gemm.addmm(zeros(2, 2), zeros(2, 2), bias=array)


@pytest.mark.parametrize("strategy", ["tensor_core_residue", "scalar", "", "Auto", "packed"])
def test_strategies_that_are_not_there(strategy: str) -> None:
    with pytest.raises(BlasError, match="wanted one of auto, library, tiled, autotune"):
        gemm.matmul(zeros(2, 3), zeros(3, 2), strategy=strategy)


def test_out_and_bias() -> None:
    a, b = zeros(2, 3), zeros(3, 4)
    out = rr.Tensor.from_numpy(np.full((2, 5), 7.0, np.float32))
    with pytest.raises(BlasError, match=r"out: got shape \[2, 5\], wanted \[2, 4\]"):
        gemm.matmul(a, b, out)
    assert (out.numpy() == 7.0).all()
    with pytest.raises(BlasError, match=r"bias: got shape \[3\], wanted \[4\]"):
        gemm.addmm(a, b, bias=zeros(3))
    with pytest.raises(BlasError, match=r"beta: got 1\.0 without out"):
        gemm.addmm(a, b, beta=1.0)
    with pytest.raises(BlasTypeError, match="out_dtype: got float16 with an out of dtype float32"):
        gemm.matmul(a, b, zeros(2, 4), out_dtype="float16")


def test_overlapping_results_are_refused() -> None:
    square = zeros(4, 4)
    with pytest.raises(BlasError, match="out: got memory that overlaps a"):
        gemm.matmul(square, zeros(4, 4), square)
    with pytest.raises(BlasError, match="overlaps b"):
        gemm.matmul(zeros(4, 4), square.permute((1, 0)), square)
    buffer = zeros(8, 4)
    view = buffer.slice(0, 1, 5)
    with pytest.raises(BlasError, match="overlaps a"):
        gemm.matmul(buffer.slice(0, 0, 4), zeros(4, 4), view)
    with pytest.raises(BlasError, match="overlaps bias"):
        row = zeros(1, 4)
        gemm.addmm(zeros(1, 4), zeros(4, 4), bias=row.reshape((4,)), out=row)
    if on_cuda():
        return  # tensors of stride 0 come from arrays of the host
    one = np.zeros((1, 4), np.float32)
    repeated = rr.Tensor.from_numpy(np.lib.stride_tricks.as_strided(one, (3, 4), (0, 4)))
    with pytest.raises(BlasError, match="out: got stride 0 in dimension 0"):
        gemm.matmul(zeros(3, 4), zeros(4, 4), repeated)


def part(whole: rr.Tensor, places: tuple[slice, slice]) -> rr.Tensor:
    for axis, place in enumerate(places):
        whole = whole.slice(axis, place.start, place.stop, place.step or 1)
    return whole


def test_results_beside_their_operands_are_not_overlaps() -> None:
    """Column slices and interleaved columns of one buffer share its extent, but no element."""
    values = np.random.default_rng(0).standard_normal((6, 12)).astype(np.float32)
    weight = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)
    for source, target in (
        (np.s_[:, 0:4], np.s_[:, 4:8]),
        (np.s_[:, 8:12], np.s_[:, 0:4]),
        (np.s_[:, 0:8:2], np.s_[:, 1:8:2]),
        (np.s_[0:3, 0:4], np.s_[3:6, 0:4]),
        (np.s_[::2, 0:4], np.s_[1::2, 0:4]),
    ):
        buffer = rr.Tensor.from_numpy(values.copy())
        gemm.matmul(part(buffer, source), rr.Tensor.from_numpy(weight), part(buffer, target))
        after = buffer.numpy()
        np.testing.assert_allclose(after[target], values[source] @ weight, rtol=1e-5, atol=1e-6)
        untouched = values.copy()
        untouched[target] = after[target]
        assert (after == untouched).all()

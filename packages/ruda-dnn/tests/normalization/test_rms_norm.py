"""RMSNorm against float64, on every dtype."""

from __future__ import annotations

import numpy as np
import pytest

import ruda_dnn
import ruda_runtime
from ruda_dnn.normalization import reference

from ..support import (
    bits_of,
    check,
    offset,
    rounded,
    same_for_any_thread_count,
    strided,
    to_tensor,
    values_of,
)
from .cases import CASES, Case

RUNS = [
    pytest.param(case, dtype, weight_dtype, id=f"{case.name}-{dtype}-{weight_dtype}")
    for case in CASES
    for dtype in case.dtypes
    for weight_dtype in dict.fromkeys([dtype, "float32"])
]


def inputs(case: Case, dtype: str, weight_dtype: str):
    rng = np.random.default_rng(7)
    x = rounded(case.x(rng), dtype)
    weight = None if case.weight is None else rounded(case.weight(rng), weight_dtype)
    grad = rounded(rng.standard_normal(x.shape), dtype)
    return x, weight, grad


@pytest.mark.parametrize(("case", "dtype", "weight_dtype"), RUNS)
def test_forward(case: Case, dtype: str, weight_dtype: str) -> None:
    x, weight, _ = inputs(case, dtype, weight_dtype)
    given = None if weight is None else to_tensor(weight, weight_dtype)
    y, rstd = ruda_dnn.rms_norm_with_stats(to_tensor(x, dtype), given, case.epsilon)
    wanted, wanted_rstd = reference.rms_norm(x, weight, case.epsilon)
    check(y, wanted, dtype)
    np.testing.assert_allclose(values_of(rstd), wanted_rstd, rtol=5e-7)
    assert rstd.dtype_name == "float32"
    again = ruda_dnn.rms_norm(to_tensor(x, dtype), given, case.epsilon)
    assert bits_of(again) == bits_of(y)


@pytest.mark.parametrize(("case", "dtype", "weight_dtype"), RUNS)
def test_backward(case: Case, dtype: str, weight_dtype: str) -> None:
    x, weight, grad = inputs(case, dtype, weight_dtype)
    given = None if weight is None else to_tensor(weight, weight_dtype)
    _, rstd = ruda_dnn.rms_norm_with_stats(to_tensor(x, dtype), given, case.epsilon)
    arguments = (to_tensor(x, dtype), given, to_tensor(grad, dtype), rstd)
    dx, dweight = ruda_dnn.rms_norm_backward(*arguments)
    wanted_dx, wanted_dweight = reference.rms_norm_backward(x, weight, grad, case.epsilon)
    check(dx, wanted_dx, dtype, long_reduction=True)
    if weight is None:
        assert dweight is None
        return
    check(dweight, wanted_dweight, weight_dtype, long_reduction=True)
    only_dx, nothing = ruda_dnn.rms_norm_backward_select(*arguments, (True, False))
    assert nothing is None
    assert bits_of(only_dx) == bits_of(dx)
    nothing, only_dweight = ruda_dnn.rms_norm_backward_select(*arguments, (False, True))
    assert nothing is None
    assert bits_of(only_dweight) == bits_of(dweight)
    assert ruda_dnn.rms_norm_backward_select(*arguments, (False, False)) == (None, None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", [strided, offset])
def test_layouts_give_the_bits_of_the_contiguous_copy(dtype: str, layout) -> None:
    rng = np.random.default_rng(3)
    x, weight = rng.standard_normal((5, 4, 37)), rng.standard_normal(37)
    grad = rng.standard_normal(x.shape)
    dense = [to_tensor(value, dtype) for value in (x, weight, grad)]
    other = [layout(value, dtype) for value in (x, weight, grad)]
    results = []
    for given_x, given_weight, given_grad in (dense, other):
        y, rstd = ruda_dnn.rms_norm_with_stats(given_x, given_weight)
        dx, dweight = ruda_dnn.rms_norm_backward(given_x, given_weight, given_grad, rstd)
        results.append([bits_of(tensor) for tensor in (y, rstd, dx, dweight)])
    assert results[0] == results[1]


def test_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(5)
    x = to_tensor(rng.standard_normal((5000, 96)), "float32")
    weight = to_tensor(rng.standard_normal(96), "float32")
    grad = to_tensor(rng.standard_normal((5000, 96)), "float32")

    def run():
        y, rstd = ruda_dnn.rms_norm_with_stats(x, weight)
        dx, dweight = ruda_dnn.rms_norm_backward(x, weight, grad, rstd)
        return [y, rstd, dx, dweight]

    same_for_any_thread_count(run)


@pytest.mark.parametrize("parts", [1, 3, 128, 100_000])
def test_any_number_of_parts_sums_the_same_rows(parts: int) -> None:
    rng = np.random.default_rng(9)
    x, weight = rng.standard_normal((77, 20)), rng.standard_normal(20)
    grad = rng.standard_normal(x.shape)
    x, weight, grad = (rounded(value, "float32") for value in (x, weight, grad))
    tensors = [to_tensor(value, "float32") for value in (x, weight, grad)]
    _, rstd = ruda_dnn.rms_norm_with_stats(tensors[0], tensors[1], 1e-5)
    _, dweight = ruda_dnn.rms_norm_backward(*tensors, rstd, parts=parts)
    check(
        dweight,
        reference.rms_norm_backward(x, weight, grad, 1e-5)[1],
        "float32",
        long_reduction=True,
    )


def test_select_allocates_only_what_is_asked_for() -> None:
    rows, width = 4096, 64
    x, grad = (to_tensor(np.ones((rows, width)), "float32") for _ in range(2))
    weight = to_tensor(np.ones(width), "float32")
    _, rstd = ruda_dnn.rms_norm_with_stats(x, weight)

    def peak(mask: tuple[bool, bool]) -> int:
        ruda_runtime.reset_peak_memory_stats()
        before = ruda_runtime.memory_stats()["allocated"]
        result = ruda_dnn.rms_norm_backward_select(x, weight, grad, rstd, mask)
        assert [tensor is not None for tensor in result] == list(mask)
        return ruda_runtime.memory_stats()["peak_allocated"] - before

    parts = 128 * width * 4  # the float32 partial sums, bounded whatever the row count
    assert peak((False, False)) == 0
    assert peak((True, False)) == x.nbytes
    assert weight.nbytes + parts <= peak((False, True)) < weight.nbytes + 2 * parts

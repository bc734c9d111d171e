"""LayerNorm against float64, on every dtype."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ruda_dnn
from ruda_dnn import NormalizationError
from ruda_dnn.normalization import reference
from ruda_runtime import Tensor

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
from .cases import CASES, LAYER_CASES, Case

RUNS = [
    pytest.param(case, dtype, weight_dtype, id=f"{case.name}-{dtype}-{weight_dtype}")
    for case in [case for case in CASES if case.name not in ("one_element", "constant_1234")]
    + LAYER_CASES
    for dtype in case.dtypes
    for weight_dtype in dict.fromkeys([dtype, "float32"])
]


def inputs(case: Case, dtype: str, weight_dtype: str):
    rng = np.random.default_rng(7)
    x = rounded(case.x(rng), dtype)
    weight = None if case.weight is None else rounded(case.weight(rng), weight_dtype)
    bias = None if weight is None else rounded(rng.standard_normal(weight.shape), weight_dtype)
    grad = rounded(rng.standard_normal(x.shape), dtype)
    return x, weight, bias, grad


def given(values, dtype: str) -> Tensor | None:
    return None if values is None else to_tensor(values, dtype)


@pytest.mark.parametrize(("case", "dtype", "weight_dtype"), RUNS)
def test_forward(case: Case, dtype: str, weight_dtype: str) -> None:
    x, weight, bias, _ = inputs(case, dtype, weight_dtype)
    parameters = given(weight, weight_dtype), given(bias, weight_dtype)
    y, mean, rstd = ruda_dnn.layer_norm_with_stats(to_tensor(x, dtype), *parameters, case.epsilon)
    wanted, wanted_mean, wanted_rstd = reference.layer_norm(x, weight, bias, case.epsilon)
    check(y, wanted, dtype)
    size = np.abs(x[np.isfinite(x)]).max(initial=0.0)
    np.testing.assert_allclose(values_of(mean), wanted_mean, rtol=1e-6, atol=1e-7 * size)
    np.testing.assert_allclose(values_of(rstd), wanted_rstd, rtol=2e-6)
    assert (mean.dtype_name, rstd.dtype_name) == ("float32", "float32")
    again = ruda_dnn.layer_norm(to_tensor(x, dtype), *parameters, case.epsilon)
    assert bits_of(again) == bits_of(y)


@pytest.mark.parametrize(("case", "dtype", "weight_dtype"), RUNS)
def test_backward(case: Case, dtype: str, weight_dtype: str) -> None:
    x, weight, bias, grad = inputs(case, dtype, weight_dtype)
    scale = given(weight, weight_dtype)
    _, mean, rstd = ruda_dnn.layer_norm_with_stats(
        to_tensor(x, dtype), scale, given(bias, weight_dtype), case.epsilon
    )
    arguments = (to_tensor(x, dtype), scale, to_tensor(grad, dtype), mean, rstd)
    wanted = reference.layer_norm_backward(x, weight, grad, case.epsilon)
    full = ruda_dnn.layer_norm_backward(*arguments)
    check(full[0], wanted[0], dtype, long_reduction=True)
    if weight is None:
        assert full[1] is None
    else:
        check(full[1], wanted[1], weight_dtype, long_reduction=True)
    stored = "float32" if weight is None else weight_dtype
    check(full[2], wanted[2], stored, long_reduction=True)
    for mask in itertools.product((False, True), repeat=3):
        some = ruda_dnn.layer_norm_backward(*arguments, mask)
        for wish, one, all_of_them in zip(mask, some, full):
            if wish and all_of_them is not None:
                assert bits_of(one) == bits_of(all_of_them)
            else:
                assert one is None


def test_constant_rows_give_the_bias() -> None:
    for value in (0.0, 1234.0, -0.1, 3e30):
        x = to_tensor(np.full((3, 41), value), "float32")
        bias = np.random.default_rng(0).standard_normal(41).astype(np.float32)
        y = ruda_dnn.layer_norm(x, to_tensor(np.ones(41), "float32"), to_tensor(bias, "float32"))
        np.testing.assert_allclose(values_of(y), np.broadcast_to(bias, (3, 41)), atol=2e-6)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weight", [True, False])
def test_weight_and_bias_are_optional_and_may_differ_in_dtype(weight: bool, bias: bool) -> None:
    rng = np.random.default_rng(8)
    x = rounded(rng.standard_normal((4, 21)), "bfloat16")
    w = rounded(rng.standard_normal(21), "bfloat16") if weight else None
    b = rng.standard_normal(21).astype(np.float32).astype(np.float64) if bias else None
    y = ruda_dnn.layer_norm(to_tensor(x, "bfloat16"), given(w, "bfloat16"), given(b, "float32"))
    check(y, reference.layer_norm(x, w, b, 1e-5)[0], "bfloat16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", [strided, offset])
def test_layouts_give_the_bits_of_the_contiguous_copy(dtype: str, layout) -> None:
    rng = np.random.default_rng(3)
    x, grad = rng.standard_normal((2, 5, 4, 37))
    weight, bias = rng.standard_normal((2, 37))
    results = []
    for lay in (to_tensor, layout):
        y, mean, rstd = ruda_dnn.layer_norm_with_stats(*(lay(v, dtype) for v in (x, weight, bias)))
        gradients = ruda_dnn.layer_norm_backward(
            *(lay(v, dtype) for v in (x, weight, grad)), mean, rstd
        )
        results.append([bits_of(tensor) for tensor in (y, mean, rstd, *gradients)])
    assert results[0] == results[1]


def test_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(5)
    x, grad = (to_tensor(rng.standard_normal((5000, 96)), "float32") for _ in range(2))
    weight, bias = (to_tensor(rng.standard_normal(96), "float32") for _ in range(2))

    def run() -> list[Tensor]:
        y, mean, rstd = ruda_dnn.layer_norm_with_stats(x, weight, bias)
        return [y, mean, rstd, *ruda_dnn.layer_norm_backward(x, weight, grad, mean, rstd)]

    same_for_any_thread_count(run)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_results_have_the_bits_of_their_rows(dtype: str) -> None:
    """16 MiB and more take the stores past the caches, in both normalisations."""
    rows = {"float32": 2100, "bfloat16": 4200}[dtype]
    values = np.random.default_rng(1).standard_normal((rows, 2048)).astype(np.float32)
    x, few = to_tensor(values, dtype), to_tensor(values[-50:], dtype)
    weight = to_tensor(np.linspace(-1, 1, 2048), "float32")

    def last(tensor: Tensor) -> bytes:
        return bits_of(tensor.slice(0, rows - 50, rows, 1))

    y, mean, rstd = ruda_dnn.layer_norm_with_stats(x, weight, weight)
    few_y, few_mean, few_rstd = ruda_dnn.layer_norm_with_stats(few, weight, weight)
    assert last(y) == bits_of(few_y)
    for mask in ((True, True, True), (True, False, False)):
        dx = ruda_dnn.layer_norm_backward(x, weight, x, mean, rstd, mask)[0]
        few_dx = ruda_dnn.layer_norm_backward(few, weight, few, few_mean, few_rstd, mask)[0]
        assert last(dx) == bits_of(few_dx)
    y, rstd = ruda_dnn.rms_norm_with_stats(x, weight)
    few_y, few_rstd = ruda_dnn.rms_norm_with_stats(few, weight)
    assert last(y) == bits_of(few_y)
    for wanted in ((True, True), (True, False)):
        dx = ruda_dnn.rms_norm_backward_select(x, weight, x, rstd, wanted)[0]
        few_dx = ruda_dnn.rms_norm_backward_select(few, weight, few, few_rstd, wanted)[0]
        assert last(dx) == bits_of(few_dx)


def test_errors() -> None:
    x, six = to_tensor(np.ones((2, 6)), "float32"), to_tensor(np.ones(6), "float32")
    seven = to_tensor(np.ones(7), "float32")
    with pytest.raises(NormalizationError, match=r"\[layer_norm\] weight must have shape \[H\]"):
        ruda_dnn.layer_norm(x, seven)
    with pytest.raises(NormalizationError, match=r"bias must have shape \[H\] = \[6\], got \[7\]"):
        ruda_dnn.layer_norm(x, six, seven)
    with pytest.raises(TypeError, match="bias: got dtype float16"):
        ruda_dnn.layer_norm(x, six, to_tensor(np.ones(6), "float16"))
    with pytest.raises(NormalizationError, match="epsilon: got -1"):
        ruda_dnn.layer_norm(x, six, six, -1.0)
    _, mean, rstd = ruda_dnn.layer_norm_with_stats(x, six)
    three = to_tensor(np.ones(3), "float32")
    with pytest.raises(NormalizationError, match=r"mean: got shape \[3\], wanted \[2\]"):
        ruda_dnn.layer_norm_backward(x, six, x, three, rstd)
    with pytest.raises(NormalizationError, match=r"rstd: got shape \[3\], wanted \[2\]"):
        ruda_dnn.layer_norm_backward(x, six, x, mean, three)
    with pytest.raises(TypeError, match="grad: got dtype float16"):
        ruda_dnn.layer_norm_backward(x, six, to_tensor(np.ones((2, 6)), "float16"), mean, rstd)
    with pytest.raises(NormalizationError, match="parts: got -1"):
        ruda_dnn.layer_norm_backward(x, six, x, mean, rstd, parts=-1)

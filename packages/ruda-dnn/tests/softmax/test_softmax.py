"""softmax and log_softmax against float64, on every dtype."""

from __future__ import annotations

import numpy as np
import pytest

import ruda_dnn
from ruda_dnn.softmax import reference
from ruda_runtime import Tensor

from ..support import (
    DTYPES,
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
    pytest.param(case, dtype, name, id=f"{name}-{case.name}-{dtype}")
    for name in ("softmax", "log_softmax")
    for case in CASES
    for dtype in DTYPES
]


@pytest.mark.parametrize(("case", "dtype", "name"), RUNS)
def test_forward_and_backward(case: Case, dtype: str, name: str) -> None:
    rng = np.random.default_rng(5)
    x = rounded(case.x(rng), dtype)
    grad = rounded(rng.standard_normal(x.shape), dtype)
    y = getattr(ruda_dnn, name)(to_tensor(x, dtype), case.axis)
    check(y, getattr(reference, name)(x, case.axis), dtype)
    dx = getattr(ruda_dnn, f"{name}_backward")(to_tensor(grad, dtype), y, case.axis)
    wanted = getattr(reference, f"{name}_backward")(grad, values_of(y), case.axis)
    check(dx, wanted, dtype, long_reduction=True)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("layout", [strided, offset])
def test_layouts_give_the_bits_of_the_contiguous_copy(name: str, layout) -> None:
    x = np.random.default_rng(2).standard_normal((3, 6, 21))
    run = getattr(ruda_dnn, name)
    for axis in (0, 1, 2):
        dense, other = run(to_tensor(x, "float16"), axis), run(layout(x, "float16"), axis)
        assert bits_of(dense) == bits_of(other)


@pytest.mark.parametrize("axis", [0, 1])
def test_same_bits_for_any_number_of_threads(axis: int) -> None:
    rng = np.random.default_rng(4)
    x, grad = (to_tensor(rng.standard_normal((700, 333)), "float32") for _ in range(2))

    def run() -> list[Tensor]:
        y, logarithm = ruda_dnn.softmax(x, axis), ruda_dnn.log_softmax(x, axis)
        return [
            y,
            logarithm,
            ruda_dnn.softmax_backward(grad, y, axis),
            ruda_dnn.log_softmax_backward(grad, logarithm, axis),
        ]

    same_for_any_thread_count(run)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_large_results_have_the_bits_of_their_rows(name: str, dtype: str) -> None:
    """16 MiB and more take the stores past the caches."""
    rows = {"float32": 2100, "bfloat16": 4200}[dtype]
    x = np.random.default_rng(1).standard_normal((rows, 2048)).astype(np.float32)
    run, back = getattr(ruda_dnn, name), getattr(ruda_dnn, f"{name}_backward")
    y = run(to_tensor(x, dtype))
    few = run(to_tensor(x[-50:], dtype))
    assert bits_of(y.slice(0, rows - 50, rows, 1)) == bits_of(few)
    dx = back(y, y)
    assert bits_of(dx.slice(0, rows - 50, rows, 1)) == bits_of(back(few, few))


def test_errors() -> None:
    x = to_tensor(np.ones((2, 3)), "float32")
    for axis in (2, -3):
        with pytest.raises(ruda_dnn.SoftmaxError, match=r"\[softmax\] axis: got .*shape \[2, 3\]"):
            ruda_dnn.softmax(x, axis)
    with pytest.raises(ruda_dnn.SoftmaxError, match=r"\[log_softmax\] axis: got -1 for x of shape"):
        ruda_dnn.log_softmax(to_tensor(np.ones(()), "float32"))
    with pytest.raises(TypeError, match=r"\[log_softmax\] x: got dtype int64"):
        ruda_dnn.log_softmax(Tensor.from_numpy(np.ones((2, 3), np.int64)))
    with pytest.raises(TypeError, match=r"x: got float, wanted a ruda_runtime.Tensor"):
        ruda_dnn.softmax(1.0)
    with pytest.raises(ruda_dnn.SoftmaxError, match=r"\[softmax_backward\] grad: got shape \[3\]"):
        ruda_dnn.softmax_backward(to_tensor(np.ones(3), "float32"), x)
    with pytest.raises(TypeError, match=r"\[log_softmax_backward\] grad: got dtype float16"):
        ruda_dnn.log_softmax_backward(to_tensor(np.ones((2, 3)), "float16"), x)

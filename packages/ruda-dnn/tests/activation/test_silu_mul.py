"""silu_mul against float64, on every dtype."""

from __future__ import annotations

import numpy as np
import pytest

import ruda_dnn
from ruda_dnn.activation import reference
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

RUNS = [pytest.param(case, dtype, id=f"{case.name}-{dtype}") for case in CASES for dtype in DTYPES]


def inputs(case: Case, dtype: str):
    rng = np.random.default_rng(11)
    gate = rounded(case.gate(rng), dtype)
    up, grad = (rounded(rng.standard_normal(gate.shape), dtype) for _ in range(2))
    return gate, up, grad


@pytest.mark.parametrize(("case", "dtype"), RUNS)
def test_forward(case: Case, dtype: str) -> None:
    gate, up, _ = inputs(case, dtype)
    out = ruda_dnn.silu_mul(to_tensor(gate, dtype), to_tensor(up, dtype))
    check(out, reference.silu_mul(gate, up, lambda silu: rounded(silu, dtype)), dtype)


@pytest.mark.parametrize(("case", "dtype"), RUNS)
def test_backward(case: Case, dtype: str) -> None:
    gate, up, grad = inputs(case, dtype)
    tensors = [to_tensor(value, dtype) for value in (gate, up, grad)]
    dgate, dup = ruda_dnn.silu_mul_backward(*tensors)
    wanted = reference.silu_mul_backward(gate, up, grad, lambda silu: rounded(silu, dtype))
    check(dgate, wanted[0], dtype)
    check(dup, wanted[1], dtype)
    only_gate, nothing = ruda_dnn.silu_mul_backward(*tensors, (True, False))
    assert nothing is None
    np.testing.assert_array_equal(values_of(only_gate), values_of(dgate))
    nothing, only_up = ruda_dnn.silu_mul_backward(*tensors, (False, True))
    assert nothing is None
    np.testing.assert_array_equal(values_of(only_up), values_of(dup))


def test_silu_is_rounded_before_the_product() -> None:
    """A pair where rounding once at the end gives another bfloat16 than rounding twice."""
    gate = rounded(np.linspace(-4, 4, 2000), "bfloat16")
    up = rounded(np.linspace(0.5, 3.5, 2000), "bfloat16")
    silu = gate / (1 + np.exp(-gate))
    twice = rounded(rounded(silu, "bfloat16") * up, "bfloat16")
    once = rounded(silu * up, "bfloat16")
    assert np.count_nonzero(once != twice) > 100
    out = values_of(ruda_dnn.silu_mul(to_tensor(gate, "bfloat16"), to_tensor(up, "bfloat16")))
    np.testing.assert_array_equal(out, twice)


@pytest.mark.parametrize("layout", [strided, offset])
def test_layouts_give_the_bits_of_the_contiguous_copy(layout) -> None:
    rng = np.random.default_rng(2)
    gate, up = rng.standard_normal((2, 6, 21))
    dense = ruda_dnn.silu_mul(to_tensor(gate, "float16"), to_tensor(up, "float16"))
    other = ruda_dnn.silu_mul(layout(gate, "float16"), layout(up, "float16"))
    assert bits_of(dense) == bits_of(other)


def test_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(4)
    gate, up, grad = (to_tensor(rng.standard_normal((500, 777)), "float32") for _ in range(3))
    same_for_any_thread_count(
        lambda: [ruda_dnn.silu_mul(gate, up), *ruda_dnn.silu_mul_backward(gate, up, grad)]
    )


def test_errors() -> None:
    gate = to_tensor(np.ones((2, 3)), "float32")
    with pytest.raises(ruda_dnn.ActivationError, match=r"\[silu_mul\] up: got shape \[3, 2\]"):
        ruda_dnn.silu_mul(gate, to_tensor(np.ones((3, 2)), "float32"))
    with pytest.raises(ruda_dnn.ActivationError, match=r"up: got shape \[3\]"):  # no broadcasting
        ruda_dnn.silu_mul(gate, to_tensor(np.ones(3), "float32"))
    with pytest.raises(TypeError, match="up: got dtype bfloat16, wanted float32"):
        ruda_dnn.silu_mul(gate, to_tensor(np.ones((2, 3)), "bfloat16"))
    with pytest.raises(TypeError, match="gate: got dtype int64"):
        ruda_dnn.silu_mul(Tensor.from_numpy(np.ones((2, 3), np.int64)), gate)
    with pytest.raises(TypeError, match=r"gate: got float, wanted a ruda_runtime.Tensor"):
        ruda_dnn.silu_mul(1.0, gate)

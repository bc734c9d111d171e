"""rotary against float64, on every dtype and table dtype."""

from __future__ import annotations

import numpy as np
import pytest

import ruda_dnn
from ruda_dnn.rotary import reference
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
)
from .cases import CASES, Case

RUNS = [
    pytest.param(case, dtype, table, id=f"{case.name}-{dtype}-{table}")
    for case in CASES
    for dtype in DTYPES
    for table in dict.fromkeys([dtype, "float32"])
]


def inputs(case: Case, dtype: str, table_dtype: str):
    rng = np.random.default_rng(17)
    cos, sin = case.tables(rng)
    return rounded(case.x(rng), dtype), rounded(cos, table_dtype), rounded(sin, table_dtype)


@pytest.mark.parametrize(("case", "dtype", "table_dtype"), RUNS)
def test_forward_and_backward(case: Case, dtype: str, table_dtype: str) -> None:
    x, cos, sin = inputs(case, dtype, table_dtype)
    tables = to_tensor(cos, table_dtype), to_tensor(sin, table_dtype)
    check(ruda_dnn.rotary(to_tensor(x, dtype), *tables), reference.rotary(x, cos, sin), dtype)
    wanted = reference.rotary_backward(x, cos, sin)
    check(ruda_dnn.rotary_backward(to_tensor(x, dtype), *tables), wanted, dtype)


def test_backward_is_the_transposed_map() -> None:
    """The dense matrix of each pass, column by column."""
    rng = np.random.default_rng(3)
    cos, sin = (to_tensor(rng.standard_normal((1, 2, 6)), "float32") for _ in range(2))
    columns = np.eye(16).reshape(16, 2, 1, 8)
    matrices = [
        np.stack([run(to_tensor(c[None], "float32"), cos, sin).numpy().ravel() for c in columns])
        for run in (ruda_dnn.rotary, ruda_dnn.rotary_backward)
    ]
    np.testing.assert_array_equal(matrices[0], matrices[1].T)
    assert np.count_nonzero(matrices[0]) == 2 * (6 * 2 + 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", [strided, offset])
def test_layouts_give_the_bits_of_the_contiguous_copy(dtype: str, layout) -> None:
    rng = np.random.default_rng(2)
    x, cos, sin = (rng.standard_normal(s) for s in ((2, 5, 3, 20), (2, 5, 20), (2, 5, 20)))
    dense = ruda_dnn.rotary(*(to_tensor(value, dtype) for value in (x, cos, sin)))
    other = ruda_dnn.rotary(*(layout(value, dtype) for value in (x, cos, sin)))
    assert bits_of(dense) == bits_of(other)


def test_heads_inside_a_projection_are_read_in_place() -> None:
    """x as columns of a wider tensor, and with tokens and heads exchanged."""
    rng = np.random.default_rng(6)
    wide = rng.standard_normal((2, 5, 4, 20))
    cos, sin = (to_tensor(rng.standard_normal((1, 5, 12)), "float32") for _ in range(2))
    for view, dense in (
        (to_tensor(wide, "float32").slice(3, 4, 18, 1), wide[..., 4:18]),
        (to_tensor(wide, "float32").slice(2, 1, 3, 1), wide[:, :, 1:3]),
        (to_tensor(wide.transpose(0, 2, 1, 3), "float32").permute(0, 2, 1, 3), wide),
    ):
        assert not view.is_contiguous()
        assert view.strides[3] == 1
        wanted = ruda_dnn.rotary(to_tensor(dense, "float32"), cos, sin)
        assert bits_of(ruda_dnn.rotary(view, cos, sin)) == bits_of(wanted)


def test_same_bits_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(4)
    x = to_tensor(rng.standard_normal((2, 700, 3, 64)), "float32")
    cos, sin = (to_tensor(rng.standard_normal((1, 700, 64)), "float32") for _ in range(2))
    same_for_any_thread_count(
        lambda: [ruda_dnn.rotary(x, cos, sin), ruda_dnn.rotary_backward(x, cos, sin)]
    )


def test_errors() -> None:
    x = to_tensor(np.ones((2, 3, 1, 8)), "float32")
    table = to_tensor(np.ones((1, 3, 8)), "float32")
    with pytest.raises(ruda_dnn.RotaryError, match=r"\[rotary\] x: got shape \[3, 8\]"):
        ruda_dnn.rotary(to_tensor(np.ones((3, 8)), "float32"), table, table)
    for shape in ((3, 8), (3, 3, 8), (1, 4, 8), (1, 3, 7), (1, 3, 10), (1, 3, 0)):
        wrong = to_tensor(np.ones(shape), "float32")
        with pytest.raises(ruda_dnn.RotaryError, match=r"cos: got shape .*wanted \[2 or 1, 3, R\]"):
            ruda_dnn.rotary(x, wrong, wrong)
    with pytest.raises(ruda_dnn.RotaryError, match=r"sin: got shape \[1, 3, 4\], wanted cos's"):
        ruda_dnn.rotary(x, table, to_tensor(np.ones((1, 3, 4)), "float32"))
    half = to_tensor(np.ones((1, 3, 8)), "bfloat16")
    with pytest.raises(TypeError, match="cos: got dtype bfloat16, wanted float32"):
        ruda_dnn.rotary(x, half, half)
    with pytest.raises(TypeError, match=r"\[rotary_backward\] sin: got dtype float32, wanted bf"):
        ruda_dnn.rotary_backward(to_tensor(np.ones((2, 3, 1, 8)), "bfloat16"), half, table)
    with pytest.raises(TypeError, match="x: got dtype int64"):
        ruda_dnn.rotary(Tensor.from_numpy(np.ones((2, 3, 1, 8), np.int64)), table, table)
    with pytest.raises(TypeError, match=r"x: got float, wanted a ruda_runtime.Tensor"):
        ruda_dnn.rotary(1.0, table, table)

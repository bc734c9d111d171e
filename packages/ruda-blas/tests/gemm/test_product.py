"""What callers in C++ have as "gemm.product": operands of different dtypes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ruda_runtime as rr
from ruda_blas import BlasError, BlasTypeError, _native
from ruda_blas.gemm import reference
from ruda_runtime.conformance import check, numpy_dtype

from ..tensors import tensor
from .cases import DTYPES, Case, inputs

SHAPES = [
    Case((20, 33), (33, 30), b_layout="cols", beta=1.0),
    Case((20, 33), (33, 30), "cols", "strided", "cols", alpha=-0.5, bias=True),
    Case((3, 600), (600, 40)),
    Case((2, 600), (600, 70), b_layout="cols", bias=True),
    Case((40, 1030), (1030, 3)),
    Case((2, 3, 5, 7), (3, 7, 4), beta=2.0),
]


@pytest.mark.parametrize(("left", "right"), itertools.product(DTYPES, DTYPES))
@pytest.mark.parametrize("case", SHAPES, ids=lambda case: case.name)
def test_conformance(case: Case, left: str, right: str) -> None:
    given = {**inputs(case, "float32"), "a": inputs(case, left)["a"], "b": inputs(case, right)["b"]}
    wanted = reference.addmm(
        given["a"], given["b"], given["bias"], given["out"], case.alpha, case.beta
    )
    a, b, bias, out = (tensor(given[name]) for name in ("a", "b", "bias", "out"))
    _native.gemm_product(a, b, bias, out, case.alpha, case.beta, 0)
    check(out.numpy(), wanted, "float32", name=case.name)


def test_errors() -> None:
    def zeros(*shape: int, dtype: str = "float32") -> rr.Tensor:
        return rr.Tensor.from_numpy(np.zeros(shape, numpy_dtype(dtype)))

    out = zeros(2, 4)
    with pytest.raises(BlasError, match=r"\[gemm\.product\] a and b: got shapes \[2, 3\] and"):
        _native.gemm_product(zeros(2, 3), zeros(4, 4, dtype="float16"), None, out, 1.0, 0.0, 0)
    with pytest.raises(BlasTypeError, match=r"\[gemm\.product\] b: got dtype int64"):
        _native.gemm_product(zeros(2, 3), zeros(3, 4, dtype="int64"), None, out, 1.0, 0.0, 0)

"""Wrong arguments of RMSNorm are errors that name the argument."""

from __future__ import annotations

import numpy as np
import pytest

import ruda_dnn
from ruda_dnn import NormalizationError
from ruda_runtime import Tensor

from ..support import to_tensor

X = to_tensor(np.ones((2, 6)), "float32")
W = to_tensor(np.ones(6), "float32")


@pytest.mark.parametrize("epsilon", [0.0, -1e-6, float("nan"), float("inf"), 1e-60, 1e60])
def test_epsilon(epsilon: float) -> None:
    with pytest.raises(NormalizationError, match=r"\[rms_norm\] epsilon: got .*positive"):
        ruda_dnn.rms_norm(X, W, epsilon)


def test_weight_shape() -> None:
    with pytest.raises(
        NormalizationError, match=r"\[rms_norm\] weight must have shape \[H\] = \[6\], got \[7\]"
    ):
        ruda_dnn.rms_norm(X, to_tensor(np.ones(7), "float32"))
    with pytest.raises(ValueError, match="weight"):
        ruda_dnn.rms_norm(X, to_tensor(np.ones((1, 6)), "float32"))


def test_dtypes() -> None:
    with pytest.raises(TypeError, match=r"weight: got dtype float16") as caught:
        ruda_dnn.rms_norm(X, to_tensor(np.ones(6), "float16"))
    assert isinstance(caught.value, NormalizationError)
    wide = Tensor.from_numpy(np.ones((2, 6)))
    with pytest.raises(TypeError, match=r"x: got dtype float64, wanted float32 or float16"):
        ruda_dnn.rms_norm(wide)
    with pytest.raises(TypeError, match=r"x: got ndarray, wanted a ruda_runtime.Tensor"):
        ruda_dnn.rms_norm(np.ones((2, 6)))


def test_empty_axis_and_no_axis() -> None:
    with pytest.raises(NormalizationError, match=r"x: got shape \[3, 0\], wanted a last axis"):
        ruda_dnn.rms_norm(to_tensor(np.ones((3, 0)), "float32"))
    with pytest.raises(NormalizationError, match=r"x: got shape \[\]"):
        ruda_dnn.rms_norm(to_tensor(np.ones(()), "float32"))


def test_backward_arguments() -> None:
    _, rstd = ruda_dnn.rms_norm_with_stats(X, W)
    with pytest.raises(NormalizationError, match=r"grad: got shape \[2, 5\], wanted x's shape"):
        ruda_dnn.rms_norm_backward(X, W, to_tensor(np.ones((2, 5)), "float32"), rstd)
    with pytest.raises(TypeError, match="grad: got dtype float16"):
        ruda_dnn.rms_norm_backward(X, W, to_tensor(np.ones((2, 6)), "float16"), rstd)
    with pytest.raises(NormalizationError, match=r"rstd: got shape \[3\], wanted \[2\]"):
        ruda_dnn.rms_norm_backward(X, W, X, to_tensor(np.ones(3), "float32"))
    with pytest.raises(NormalizationError, match="parts: got -1"):
        ruda_dnn.rms_norm_backward(X, W, X, rstd, parts=-1)

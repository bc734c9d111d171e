"""Unscaling in place, the finite flag and the global norm."""

from __future__ import annotations

import numpy as np
import pytest

import ruda_dnn
from ruda_dnn.optim import reference
from ruda_runtime import Tensor, empty

from ..native_views import Fake, call, this_target
from ..support import DTYPES, bits_of, check, rounded, threads, to_tensor, values_of

SHAPES = [(3, 7), (40_000,), (0,), (), (16_384,)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 0.5, 1 / 3, 0.0])
def test_unscale(dtype: str, scale: float) -> None:
    rng = np.random.default_rng(1)
    values = [rounded(rng.standard_normal(shape), dtype) for shape in SHAPES]
    gradients = [to_tensor(value, dtype) for value in values]
    before = [bits_of(gradient) for gradient in gradients]
    assert ruda_dnn.unscale_gradients(gradients, scale) is True
    for value, gradient in zip(values, gradients):
        check(gradient, value * float(np.float32(scale)), dtype)
    if scale == 1.0:
        assert before == [bits_of(gradient) for gradient in gradients]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 5, 16_383, 16_384, 39_999])
def test_one_bad_value_is_found(dtype: str, bad: float, place: int) -> None:
    values = np.ones(40_000)
    values[place] = bad
    for scale in (1.0, 0.25):
        gradients = [to_tensor(np.ones(9), dtype), to_tensor(values, dtype)]
        assert ruda_dnn.unscale_gradients(gradients, scale) is False
        assert ruda_dnn.gradient_norm(gradients, scale)[1] is False
    assert ruda_dnn.unscale_gradients([to_tensor(np.ones(9), dtype)], 1.0) is True


def test_overflow_by_the_scale_is_found() -> None:
    gradients = [to_tensor(np.full(3, 1e30), "float32")]
    assert ruda_dnn.gradient_norm(gradients, 1e10)[1] is False
    assert ruda_dnn.gradient_norm(gradients, 1.0)[1] is True
    assert ruda_dnn.unscale_gradients([to_tensor(np.full(3, 6e4), "float16")], 2.0) is False


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 2.0**-16])
def test_norm(dtype: str, scale: float) -> None:
    rng = np.random.default_rng(2)
    values = [rounded(rng.standard_normal(shape), dtype) for shape in SHAPES]
    gradients = [to_tensor(value, dtype) for value in values]
    before = [bits_of(gradient) for gradient in gradients]
    norms = []
    for count in (1, 3):
        with threads(count):
            norm, finite = ruda_dnn.gradient_norm(gradients, scale)
        assert finite is True
        norms.append(norm)
    assert norms[0] == norms[1]
    assert norms[0] == pytest.approx(reference.gradient_norm(values, scale), rel=1e-12)
    assert before == [bits_of(gradient) for gradient in gradients]


def test_norm_of_large_values_does_not_overflow() -> None:
    gradients = [to_tensor(np.full(1000, 1e38), "float32")]
    norm, finite = ruda_dnn.gradient_norm(gradients)
    assert finite is True
    wanted = float(values_of(gradients[0])[0]) * np.sqrt(1000)
    assert norm == pytest.approx(wanted, rel=1e-12)


def test_no_gradients_and_errors() -> None:
    assert ruda_dnn.unscale_gradients([], 1.0) is True
    assert ruda_dnn.gradient_norm([], 1.0) == (0.0, True)
    gradient = to_tensor(np.ones(2), "float32")
    with pytest.raises(ruda_dnn.OptimizerError, match="scale: got nan"):
        ruda_dnn.unscale_gradients([gradient], float("nan"))
    with pytest.raises(TypeError, match=r"gradients: got int, wanted a ruda_runtime.Tensor"):
        ruda_dnn.gradient_norm([3])


@pytest.mark.parametrize("count", [0, 1, 40_000])
def test_numbers_in_the_pool_are_written_there(count: int) -> None:
    """As C++ callers ask for them: on the cuda target nothing is read back for them."""

    def lists(tensors: list[Tensor]) -> tuple[list[Fake], int]:
        where = this_target()
        views = [Fake(t.dtype_name, tuple(t.shape), where, t.data_ptr) for t in tensors]
        return views, len(views)

    values = np.random.default_rng(7).standard_normal(count)
    gradients = [to_tensor(values, "float32")] if count else []
    norm, finite, other = empty((), "float64"), empty((), "int32"), empty((), "int32")
    given = lists(gradients)
    assert call("gradient.norm", *given, 0.5, norm.data_ptr, finite.data_ptr) == ("ok", "")
    assert call("gradient.unscale", *given, 1.0, other.data_ptr) == ("ok", "")
    wanted = 0.5 * np.sqrt(np.sum(np.square(rounded(values, "float32"))))
    np.testing.assert_allclose(values_of(norm), wanted, rtol=1e-6)
    assert int(values_of(finite)) == int(values_of(other)) == 1

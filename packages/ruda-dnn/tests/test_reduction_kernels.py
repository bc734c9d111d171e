"""The reduction kernels, interpreted, against NumPy; and compiled."""

from __future__ import annotations

import numpy as np
import pytest

from ruda_dnn.reduction import launch
from ruda_runtime.conformance import rounded

from .kernels_support import check, compile_tests, interpreter_fixture

interpreter = interpreter_fixture()
test_compiles, test_compiles_everywhere = compile_tests(launch.bundle())

LAYOUTS = {
    "rows": ((5, 70), None, (1,)),
    "short_rows": ((67, 7), None, (1,)),
    "long_rows": ((2, 2500), None, (1,)),
    "columns": ((45, 70), None, (0,)),
    "all": ((30, 40), None, (0, 1)),
    "middle": ((3, 9, 20), None, (1,)),
    "strided": ((4, 5, 6), (2, 0, 1), (0, 2)),
    "four_dims": ((3, 4, 5, 6), (3, 1, 0, 2), (0, 2)),
    "split": ((20000,), None, (0,)),
    "split_columns": ((1200, 3), None, (0,)),
}


def split_dims(array: np.ndarray, out: np.ndarray, axes: tuple[int, ...]):
    """Kept and reduced dimensions; `out` has no reduced ones."""
    item = array.itemsize
    left = iter(stride // out.itemsize for stride in out.strides)
    kept = [
        (n, (s // item, next(left)))
        for d, (n, s) in enumerate(zip(array.shape, array.strides))
        if d not in axes
    ]
    reduced = [(array.shape[d], (array.strides[d] // item,)) for d in axes]
    return tuple(
        launch.coalesced([n for n, _ in dims], [s for _, s in dims]) for dims in (kept, reduced)
    )


def values_of(layout: str, dtype: str, seed: int = 3):
    shape, order, axes = LAYOUTS[layout]
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) if "float" in dtype else rng.integers(-9, 9, shape)
    return (values if order is None else values.transpose(order)), axes


def run(interpreter, values, axes, dtype, out_dtype, **options):
    given = interpreter.strided(values.astype(interpreter.empty((1,), dtype).dtype))
    shape = tuple(n for d, n in enumerate(values.shape) if d not in axes)
    out = interpreter.empty(shape or (1,), out_dtype)
    kept, reduced = split_dims(given, out if shape else out[0], axes)
    interpreter.run(
        launch.reduce(interpreter.view(given), interpreter.view(out), kept, reduced,
                      scratch=interpreter.scratch, **options)
    )  # fmt: skip
    return out if shape else out[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int64"])
def test_sum_and_mean(interpreter, layout: str, dtype: str) -> None:
    values, axes = values_of(layout, dtype)
    if "float" in dtype:
        values = np.asarray(rounded(values, dtype if dtype != "float64" else "float32"))
    total = values.sum(axes)
    out = run(interpreter, values, axes, dtype, dtype, combine="sum")
    if dtype == "int64":
        np.testing.assert_array_equal(out, total)
        return
    count = values.size // max(total.size, 1)
    mean = run(interpreter, values, axes, dtype, dtype, combine="sum", finish="divide",
               parameter=count)  # fmt: skip
    if dtype == "float64":
        np.testing.assert_allclose(out, total, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(mean, total / count, rtol=1e-12, atol=1e-12)
    else:
        check(np.atleast_1d(out), np.atleast_1d(total), dtype)
        check(np.atleast_1d(mean), np.atleast_1d(total / count), dtype)


def test_reduced_precision_sums_are_float32(interpreter) -> None:
    values = np.ones((2, 3000))
    out = run(interpreter, values, (1,), "bfloat16", "float32", combine="sum")
    np.testing.assert_array_equal(out, [3000.0, 3000.0])


@pytest.mark.parametrize("layout", ["rows", "columns", "strided", "split", "split_columns"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("combine", ["max", "min"])
def test_extremes(interpreter, layout: str, dtype: str, combine: str) -> None:
    values, axes = values_of(layout, dtype)
    if dtype != "int64":
        values = np.array(rounded(values, dtype))
        values[np.unravel_index(3, values.shape)] = np.nan
        values[np.unravel_index(8, values.shape)] = -np.inf
    out = run(interpreter, values, axes, dtype, dtype, combine=combine)
    right = values.max(axes) if combine == "max" else values.min(axes)
    np.testing.assert_array_equal(np.asarray(out, np.float64), right)


def test_product(interpreter) -> None:
    values, axes = values_of("strided", "float32")
    out = run(interpreter, values, axes, "float32", "float32", combine="prod")
    check(out, values.astype(np.float32).astype(np.float64).prod(axes), "float32")


@pytest.mark.parametrize(
    ("mapping", "finish", "parameter", "combine"),
    [("square", "sqrt", 2.0, "sum"), ("power", "root", 3.0, "sum"),
     ("absolute", "value", 1.0, "sum"), ("absolute", "value", 0.0, "max"),
     ("nonzero", "value", 0.0, "sum")],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["rows", "split"])
def test_norms(interpreter, layout, mapping, finish, parameter, combine) -> None:
    values, axes = values_of(layout, "float32")
    values = np.asarray(rounded(values, "float32"))
    values[..., 5] = 0.0
    out = run(interpreter, values, axes, "float32", "float32", combine=combine, mapping=mapping,
              finish=finish, parameter=parameter)  # fmt: skip
    order = {"square": 2, "power": 3, "nonzero": 0}.get(mapping, 1 if combine == "sum" else np.inf)
    right = np.linalg.norm(values, order, axis=-1)
    check(np.atleast_1d(out), np.atleast_1d(right), "float32")


@pytest.mark.parametrize("layout", ["rows", "columns", "all", "split"])
def test_any_all_and_counts_of_bools(interpreter, layout: str) -> None:
    values, axes = values_of(layout, "int64")
    truth = values > 7
    for combine, right in (("max", truth.any(axes)), ("min", truth.all(axes))):
        out = run(interpreter, truth, axes, "bool", "bool", combine=combine, mapping="nonzero")
        np.testing.assert_array_equal(out, right)
    out = run(interpreter, truth, axes, "bool", "int64", combine="sum")
    np.testing.assert_array_equal(out, truth.sum(axes))


@pytest.mark.parametrize("layout", ["rows", "short_rows", "columns", "middle", "split"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("largest", [True, False])
def test_locate(interpreter, layout: str, dtype: str, largest: bool) -> None:
    values, (axis,) = values_of(layout, "int64")  # many ties
    if dtype != "int64":
        values = values.astype(np.float64)
        if layout != "short_rows":
            values[np.unravel_index([4, 6], values.shape)] = np.nan
    given = interpreter.array(values, dtype)
    shape = values.sum(axis).shape
    out, places = interpreter.empty(shape or (1,), dtype), interpreter.empty(shape or (1,), "int64")
    kept, reduced = split_dims(given, out if shape else out[0], (axis,))
    view = interpreter.view
    interpreter.run(
        launch.locate(view(given), view(out), view(places), kept, values.shape[axis],
                      reduced.strides[0][0], largest=largest, scratch=interpreter.scratch)
    )  # fmt: skip
    right = (np.argmax if largest else np.argmin)(values, axis)  # the first NaN, too
    np.testing.assert_array_equal(places, np.reshape(right, places.shape))
    peaks = np.take_along_axis(values, np.expand_dims(right, axis), axis)
    np.testing.assert_array_equal(np.asarray(out, np.float64).ravel(), peaks.ravel())


@pytest.mark.parametrize(("shape", "axis"), [((9, 300), 1), ((3, 20, 70), 1), ((5,), 0)])
@pytest.mark.parametrize(
    ("dtype", "made"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("bool", "int64")]
)
def test_cumulate(interpreter, shape, axis: int, dtype: str, made: str) -> None:
    values = np.random.default_rng(1).standard_normal(shape)
    values = values > 0 if dtype == "bool" else np.asarray(rounded(values, dtype))
    given, out = interpreter.array(values, dtype), interpreter.empty(shape, made)
    interpreter.run(launch.cumulate(interpreter.view(given), interpreter.view(out), axis))
    right = values.cumsum(axis)
    if made == "int64":
        np.testing.assert_array_equal(out, right)
    else:
        check(out, right, made)

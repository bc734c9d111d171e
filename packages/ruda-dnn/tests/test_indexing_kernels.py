"""The indexing kernels, interpreted, against NumPy; and compiled."""

from __future__ import annotations

import numpy as np
import pytest

from ruda_dnn.indexing import launch
from ruda_dnn.reduction import launch as reduction
from ruda_runtime.conformance import rounded
from ruda_runtime.launch import contiguous_view

from .kernels_support import check, compile_tests, interpreter_fixture

interpreter = interpreter_fixture()
test_compiles, test_compiles_everywhere = compile_tests(launch.bundle())

SHAPES = [(1, 9, 1), (1, 9, 40), (3, 7, 5), (2, 5, 1030), (4, 6, 1)]


def random(shape, dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if "float" in dtype:
        return np.asarray(rounded(rng.standard_normal(shape), dtype))
    return rng.integers(0, 2, shape) if dtype == "bool" else rng.integers(-99, 99, shape)


def indices(interpreter, shape, size: int, dtype: str = "int64", low: int = 0, seed: int = 1):
    values = np.random.default_rng(seed).integers(low, size, shape)
    return values, interpreter.array(values, dtype)


def zeros(interpreter, shape, dtype: str) -> np.ndarray:
    array = interpreter.empty(shape, dtype)
    array[...] = 0
    return array


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("dtype", "index_dtype"),
    [("float32", "int64"), ("bfloat16", "int32"), ("int64", "int64"), ("bool", "int32")],
)
def test_take_and_put(interpreter, shape, dtype: str, index_dtype: str) -> None:
    outer, size, inner = shape
    view = interpreter.view
    values = random(shape, dtype)
    source = interpreter.array(values, dtype)
    index, given = indices(interpreter, (13,), size, index_dtype, low=-size)
    out = interpreter.empty((outer, 13, inner), dtype)
    flag = zeros(interpreter, (1,), "int32")
    interpreter.run(launch.take(view(source), view(given), view(out), shape, wrap=True,
                                flag=view(flag)))  # fmt: skip
    np.testing.assert_array_equal(out, source[:, index])
    once = np.random.default_rng(2).permutation(size)[: size // 2]
    target = interpreter.array(values, dtype)
    new = interpreter.array(random((outer, size // 2, inner), dtype, 5), dtype)
    one = interpreter.array([3], dtype)
    wanted = source.copy()
    wanted[:, once] = new
    chosen = view(interpreter.array(once, index_dtype))
    interpreter.run(launch.put(view(target), chosen, view(new), shape, flag=view(flag)))
    np.testing.assert_array_equal(target, wanted)
    wanted[:, once] = one[0]
    interpreter.run(launch.put(view(target), chosen, view(one), shape))
    np.testing.assert_array_equal(target, wanted)
    assert flag[0] == 0


@pytest.mark.parametrize("low", [-1, -(2**40), 9, 2**40])
def test_indices_out_of_range_touch_nothing(interpreter, low: int) -> None:
    view = interpreter.view
    source = interpreter.array(random((9, 4), "float32"), "float32")
    before = source.copy()
    index = interpreter.array([2, low, 8], "int64")
    wide = interpreter.array([[2] * 4, [low] * 4, [8] * 4], "int64")
    new = interpreter.array(np.ones((3, 4)), "float32")
    shape = (1, 9, 4)
    for name in ("take", "put", "accumulate", "gather", "scatter", "scatter_add"):
        source[...] = before
        flag, out = zeros(interpreter, (1,), "int32"), interpreter.empty((3, 4), "float32")
        known = view(wide if name in ("gather", "scatter", "scatter_add") else index)
        reads = name in ("take", "gather")
        more = {"scratch": interpreter.scratch} if name == "accumulate" else {}
        interpreter.run(
            getattr(launch, name)(
                view(source), known, view(out if reads else new), shape, flag=view(flag), **more
            )
        )
        assert flag[0] == 1, name
        if reads:
            np.testing.assert_array_equal(out, np.where([[1], [0], [1]], before[[2, 0, 8]], 0))
        else:
            untouched = [0, 1, 3, 4, 5, 6, 7]
            np.testing.assert_array_equal(source[untouched], before[untouched])
            assert (source[[2, 8]] != before[[2, 8]]).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_accumulate_adds_repeated_indices(interpreter, shape, dtype: str) -> None:
    outer, size, inner = shape
    values = random(shape, dtype)
    index, given = indices(interpreter, (150,), size, low=-size)
    source = random((outer, 150, inner), dtype, 7)
    target = interpreter.array(values, dtype)
    view = interpreter.view
    interpreter.run(
        launch.accumulate(
            view(target), view(given), view(interpreter.array(source, dtype)), shape, wrap=True,
            scale=2, scratch=interpreter.scratch,
        )
    )  # fmt: skip
    wanted = values.astype(np.float64)
    for item, place in enumerate(index):
        wanted[:, place] += 2.0 * source[:, item]
    if dtype == "int64":
        np.testing.assert_array_equal(target, wanted)
    else:
        check(target, wanted, dtype, long_reduction=True)


def test_a_skipped_place_gets_nothing(interpreter) -> None:
    target = zeros(interpreter, (5, 3), "float32")
    _, given = indices(interpreter, (70,), 5)
    view = interpreter.view
    source = interpreter.array(np.ones((70, 3)), "float32")
    interpreter.run(launch.accumulate(view(target), view(given), view(source), (1, 5, 3),
                                      skipped=2, scratch=interpreter.scratch))  # fmt: skip
    wanted = np.bincount(given, minlength=5).astype(np.float32)
    wanted[2] = 0
    np.testing.assert_array_equal(target, np.repeat(wanted[:, None], 3, 1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_gather_and_scatter(interpreter, shape, dtype: str) -> None:
    outer, size, inner = shape
    view = interpreter.view
    source = interpreter.array(random(shape, dtype), dtype)
    index, given = indices(interpreter, (outer, 11, inner), size)
    out = interpreter.empty(index.shape, dtype)
    interpreter.run(launch.gather(view(source), view(given), view(out), shape))
    np.testing.assert_array_equal(out, np.take_along_axis(source, index, 1))
    once = np.argsort(np.random.default_rng(3).random(shape), axis=1)[:, : size - 2]
    new = interpreter.array(random(once.shape, dtype, 4), dtype)
    wanted = source.copy()
    np.put_along_axis(wanted, once, new, 1)
    chosen = view(interpreter.array(once, "int32"))
    interpreter.run(launch.scatter(view(source), chosen, view(new), shape))
    np.testing.assert_array_equal(source, wanted)
    one = interpreter.array([2], dtype)
    np.put_along_axis(wanted, once, one[0], 1)
    interpreter.run(launch.scatter(view(source), chosen, view(one), shape))
    np.testing.assert_array_equal(source, wanted)


@pytest.mark.parametrize("shape", SHAPES)
def test_scatter_add(interpreter, shape) -> None:
    outer, size, inner = shape
    values = random(shape, "float32")
    target = interpreter.array(values, "float32")
    index, given = indices(interpreter, (outer, 23, inner), size)
    source = random(index.shape, "float32", 8)
    view = interpreter.view
    added = view(interpreter.array(source, "float32"))
    interpreter.run(launch.scatter_add(view(target), view(given), added, shape))
    wanted = values.copy()
    o, _, n = np.indices(index.shape)
    np.add.at(wanted, (o, index, n), source)
    check(target, wanted, "float32", long_reduction=True)


def test_flatten(interpreter) -> None:
    out = interpreter.empty((1500,), "int64")
    view = interpreter.view
    one, first = indices(interpreter, (1500,), 7, low=-7)
    two, second = indices(interpreter, (1500,), 5, "int32", seed=2)
    first[4], second[9] = 7, 5
    interpreter.run(launch.flatten(view(first), view(out), 7, 5, first=True)
                    + launch.flatten(view(second), view(out), 5, 1, first=False))  # fmt: skip
    assert out[4] < 0
    assert out[9] < 0
    good = np.delete(np.arange(1500), [4, 9])
    np.testing.assert_array_equal(out[good], (one % 7 * 5 + two)[good])


@pytest.mark.parametrize("dtype", ["bool", "float32", "bfloat16"])
def test_positions(interpreter, dtype: str) -> None:
    shape = (50, 70)
    values = np.where(np.random.default_rng(0).random(shape) < 0.1, 1.0, 0.0)
    if dtype != "bool":
        values[0, [4, 5]] = -0.0, np.nan
    source = interpreter.array(values, dtype)
    blocks = -(-source.size // launch.BLOCK)
    counts, ends = interpreter.empty((blocks,), "int64"), interpreter.empty((blocks,), "int64")
    found = np.flatnonzero(values)
    out = interpreter.empty((len(found),), "int64")
    places = interpreter.empty((len(found), 2), "int64")
    view = interpreter.view
    interpreter.run(
        launch.count_blocks(view(source), view(counts))
        + reduction.cumulate(view(counts), view(ends), 0)
        + launch.positions(view(source), view(ends), view(out))
        + launch.coordinate(view(out), view(places), 2, 50, 70)
        + launch.coordinate(view(out), view(places[:, 1]), 2, 70, 1)
    )
    assert ends[-1] == len(found)
    np.testing.assert_array_equal(out, found)
    np.testing.assert_array_equal(places, np.argwhere(values))


@pytest.mark.parametrize("diagonal", [-2, 0, 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_triangle(interpreter, diagonal: int, dtype: str) -> None:
    source = interpreter.array(random((3, 20, 31), dtype), dtype)
    out = interpreter.empty(source.shape, dtype)
    view = interpreter.view
    for upper, right in ((True, np.triu), (False, np.tril)):
        interpreter.run(launch.triangle(view(source), view(out), diagonal, upper))
        np.testing.assert_array_equal(out, right(source, diagonal))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int64", "bool"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("chunk", [4096, 64, 40])
def test_sort(interpreter, monkeypatch, dtype: str, largest: bool, chunk: int) -> None:
    monkeypatch.setattr(launch, "WHOLE_SORT", chunk)
    monkeypatch.setattr(launch, "SORT_CHUNK", chunk)
    values = random((3, 170), dtype) if "float" not in dtype else random((3, 170), "float32")
    if "float" in dtype:
        values[:, 20:30] = np.round(values[:, 40:50])
        values[0, [3, 8]], values[1, [4, 9]] = [0.0, -0.0], [np.inf, -np.inf]
    source = interpreter.array(values, dtype)
    if "float" in dtype:
        source[2, [5, 60]] = np.nan
    order = np.asarray(source, np.float64)
    key = np.nan_to_num(order, nan=1e300, posinf=1e200, neginf=-1e200)
    right = np.argsort(-key if largest else key, axis=1, kind="stable")
    view = interpreter.view
    for keep in (170, 9):
        out, places = (interpreter.empty((3, keep), kind) for kind in (dtype, "int64"))
        interpreter.run(
            launch.sort(view(source), view(out), view(places), keep, largest, interpreter.scratch)
        )
        np.testing.assert_array_equal(places, right[:, :keep])
        np.testing.assert_array_equal(
            np.asarray(out, np.float64), np.take_along_axis(order, right, 1)[:, :keep]
        )


def test_too_long_rows_are_refused() -> None:
    row = contiguous_view(0, "float32", (1 << 21,))
    with pytest.raises(NotImplementedError, match=r"\[sort\] got rows of 2097152 values"):
        launch.sort(row, row, row, 1, True, lambda *_: row)

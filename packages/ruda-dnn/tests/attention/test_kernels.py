"""The attention kernels, interpreted, against float64; and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ruda_dnn.attention import launch, reference
from ruda_runtime.conformance import rounded
from ruda_runtime.launch import contiguous_view

from ..kernels_support import DTYPES, check, compile_tests, interpreter_fixture
from .cases import CASES, PACKED, Case, Packed

interpreter = interpreter_fixture()
test_compiles, test_compiles_everywhere = compile_tests(launch.bundle())

BY_NAME = {case.name: case for case in CASES}
SMALL = launch.Tile(16, 16, 4, 1)
ALL = (True, True, True)


def band_of(case: Case | Packed) -> launch.Band:
    left, right = case.window
    right = 0 if case.causal else right
    return launch.Band(
        -1 if left is None else left, -1 if right is None else right, case.align == "bottom_right"
    )


def compare(actual: Any, wanted: np.ndarray, dtype: str, small: float, long: bool = False) -> None:
    """Against the reference; where exact cancellation leaves only rounding, against 0."""
    if wanted.size and np.isfinite(wanted).all() and np.abs(wanted).max() < 1e-12:
        assert np.abs(actual.astype(np.float64)).max() <= small
    else:
        check(actual, wanted, dtype, long_reduction=long)


class Run:
    """One forward and backward pass."""

    def __init__(
        self, interpreter: Any, arrays: list, dtype: str, band: launch.Band,
        mask: np.ndarray | None = None, scale: float | None = None, *, cu: tuple | None = None,
        wanted: tuple = ALL, tile: Any = None, splits: int | None = None,
        mask_dtype: str | None = None, lay: Any = None,
    ) -> None:  # fmt: skip
        self.arrays = [rounded(array, dtype) for array in arrays]
        lay = lay or (lambda array: interpreter.array(array, dtype))
        q, k, v, grad = (lay(array) for array in self.arrays)
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        view, empty = interpreter.view, interpreter.empty
        if mask is not None:
            kind = "bool" if mask.dtype == bool else mask_dtype or dtype
            mask = interpreter.array(mask, kind)
        ends, longest = (None, None), None
        if cu is not None:
            ends = tuple(view(interpreter.array(end, "int32")) for end in cu)
            longest = tuple(int(np.diff(end).max(initial=0)) for end in cu)
        lead = (*q.shape[:-3], q.shape[-2], q.shape[-3])
        self.out, self.lse = empty((*q.shape[:-1], v.shape[-1]), dtype), empty(lead, "float32")
        inputs = (*map(view, (q, k, v, mask)), *ends, view(self.out), view(self.lse))
        interpreter.run(
            launch.forward(*inputs, scale, band, interpreter.scratch, longest=longest, tile=tile,
                           splits=splits)
        )  # fmt: skip
        self.gradients = [empty(array.shape, dtype) if wish else None
                          for array, wish in zip((q, k, v), wanted)]  # fmt: skip
        if any(wanted):
            interpreter.run(
                launch.backward(*inputs, view(grad), *map(view, self.gradients), scale, band,
                                interpreter.scratch, longest=longest, tile=tile)
            )  # fmt: skip


def run(interpreter, case: Case, dtype: str, **options: Any) -> None:
    rng = np.random.default_rng(7)
    arrays = case.inputs(rng)
    mask = case.make_mask(rng)
    if mask is not None and mask.dtype != bool:
        mask = rounded(mask, dtype)
    result = Run(interpreter, arrays, dtype, band_of(case), mask, case.scale, **options)
    if mask is None:
        seen, bias = case.seen(), None
    elif mask.dtype == bool:
        seen, bias = case.seen() & mask, None
    else:
        seen, bias = case.seen(), mask
    wanted, wanted_lse = reference.attention(*result.arrays[:3], seen, bias, case.scale)
    compare(result.out, wanted, dtype, 0.0)
    nothing = wanted_lse == -np.inf
    np.testing.assert_array_equal(result.lse == -np.inf, nothing)
    exact = np.where(nothing, 0.0, wanted_lse)
    error = np.abs(np.where(nothing, 0.0, result.lse) - exact).max(initial=0.0)
    assert error <= 2e-6 * (1 + np.abs(exact).max(initial=0.0)) * (1 + case.width) ** 0.5
    assert not result.out.astype(np.float64)[np.swapaxes(nothing, 1, 2)].any()
    right = reference.attention_backward(*result.arrays, seen, bias, case.scale)
    small = {"float32": 1e-5, "float16": 2e-2}.get(dtype, 2e-1)
    for actual, value in zip(result.gradients, right):
        if actual is not None:
            compare(actual, value, dtype, small, True)


LONG = ("long", "decode_long", "full_257", "causal_257", "mask_causal_padding", "three_groups")


def interpreted(case: Case, dtype: str) -> object:
    """Long cases in one dtype only, unless --slow asks for all."""
    marks = [pytest.mark.slow] if case.name in LONG and dtype != "bfloat16" else []
    return pytest.param(case, dtype, id=f"{case.name}-{dtype}", marks=marks)


@pytest.mark.parametrize(
    ("case", "dtype"), [interpreted(case, dtype) for case in CASES for dtype in DTYPES]
)
def test_values_and_gradients(interpreter, case: Case, dtype: str) -> None:
    run(interpreter, case, dtype)


@pytest.mark.parametrize("splits", [2, 5])
@pytest.mark.parametrize("name", ["decode", "decode_four", "decode_mask", "decode_hidden",
                                  "window_decode", "no_keys_one_query", "causal_65"])  # fmt: skip
def test_splits(interpreter, name: str, splits: int) -> None:
    run(interpreter, BY_NAME[name], "float32", splits=splits, wanted=(False,) * 3)


@pytest.mark.parametrize(
    "name",
    ["causal_65", "wide_group", "window_both_sides", "mask_rows", "top_left_more_queries",
     "bottom_right_more_queries"],
)  # fmt: skip
def test_other_tiles(interpreter, name: str) -> None:
    run(interpreter, BY_NAME[name], "float32", tile=SMALL)


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False),
                                    (False, False, True)])  # fmt: skip
def test_only_the_wanted_gradients(interpreter, wanted: tuple[bool, bool, bool]) -> None:
    run(interpreter, BY_NAME["causal_17"], "float32", wanted=wanted)


def ends(lengths: tuple[int, ...]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", PACKED, ids=lambda case: case.name)
def test_packed_sequences_are_the_sequences_alone(interpreter, case: Packed, dtype: str) -> None:
    rng = np.random.default_rng(5)
    cu = ends(case.q_lengths), ends(case.k_lengths)
    sizes = ((cu[0][-1], case.heads), (cu[1][-1], case.groups))
    arrays = [rng.standard_normal((*size, case.width))
              for size in (sizes[0], sizes[1], sizes[1], sizes[0])]  # fmt: skip
    result = Run(interpreter, arrays, dtype, band_of(case), cu=cu)
    wanted = [np.zeros(array.shape) for array in (arrays[3], *arrays[:3])]
    wanted_lse = np.zeros((case.heads, cu[0][-1]))
    for n in range(len(case.q_lengths)):
        rows, keys = (slice(*end[n : n + 2]) for end in cu)
        one = Case("", case.q_lengths[n], case.k_lengths[n], causal=case.causal,
                   window=case.window, align=case.align)  # fmt: skip
        part = [array[None, span] for array, span in
                zip(result.arrays, (rows, keys, keys, rows))]  # fmt: skip
        alone, stats = reference.attention(*part[:3], one.seen())
        wanted[0][rows], wanted_lse[:, rows] = alone[0], stats[0]
        gradients = reference.attention_backward(*part, one.seen())
        for total, gradient, span in zip(wanted[1:], gradients, (rows, keys, keys)):
            total[span] = gradient[0]
    check(result.out, wanted[0], dtype)
    for actual, right in zip(result.gradients, wanted[1:]):
        check(actual, right, dtype, long_reduction=True)
    np.testing.assert_allclose(result.lse, wanted_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["heads_first", "slices"])
def test_layouts(interpreter, layout: str) -> None:
    def lay(array: np.ndarray) -> np.ndarray:
        if layout == "heads_first":
            turned = interpreter.array(array.transpose(0, 2, 1, 3), "float16")
            return turned.transpose(0, 2, 1, 3)
        wide = np.concatenate([array, np.full(array.shape, np.nan)], axis=-1)
        return interpreter.array(wide, "float16")[..., : array.shape[-1]]

    run(interpreter, BY_NAME["causal_65"], "float16", lay=lay)


@pytest.mark.parametrize("mask_dtype", ["float32", "bfloat16"])
def test_an_addend_of_its_own_dtype(interpreter, mask_dtype: str) -> None:
    run(interpreter, BY_NAME["mask_float_all"], "bfloat16", mask_dtype=mask_dtype)


@pytest.mark.parametrize("q_length", [1, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_keys_that_are_not_seen_may_hold_anything(interpreter, value: float, q_length: int) -> None:
    """Causal, window, bool and additive masks; forward and backward."""
    rng = np.random.default_rng(8)
    case = Case("", q_length, 130, heads=4, groups=2)
    arrays = case.inputs(rng)
    mask = np.ones((1, 1, 1, 130), bool)
    mask[..., [3, 40, 129]] = False
    band = launch.Band(90, 0)
    dirty = [array.copy() for array in arrays]
    for array in dirty[1:3]:
        array[:, [3, 40, 129]] = value
        array[:, : max(0, 130 - q_length - 90)] = value  # before every window
    results = []
    for given in (mask, np.where(mask, 0.0, -np.inf)):
        for source in (arrays, dirty):
            one = Run(interpreter, source, "float32", band, given)
            results.append([one.out, one.lse, *one.gradients])
    for other in results[1:]:
        for left, right in zip(results[0], other):
            assert np.isfinite(right).all()
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("which", ["q", "k", "v", "grad"])
@pytest.mark.parametrize("q_length", [4, 60])
def test_nan_and_infinity_go_where_the_formula_says(
    interpreter, which: str, value: float, q_length: int
) -> None:
    rng = np.random.default_rng(9)
    case = Case("", q_length, 60, heads=2, groups=1, causal=True)
    arrays = dict(zip(("q", "k", "v", "grad"), case.inputs(rng), strict=True))
    if which in ("q", "k"):
        arrays["k"], arrays["q"] = np.abs(arrays["k"]), np.abs(arrays["q"])
    arrays[which][0, arrays[which].shape[1] - 3, 0, 5] = value
    result = Run(interpreter, list(arrays.values()), "float32", band_of(case))
    wanted, _ = reference.attention(*result.arrays[:3], case.seen())
    check(result.out, wanted, "float32")
    gradients = reference.attention_backward(*result.arrays, case.seen())
    for actual, right in zip(result.gradients, gradients):
        np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(right))
        usual = np.isfinite(right)
        np.testing.assert_allclose(actual[usual], right[usual], rtol=1e-3, atol=1e-4)


def test_wider_heads_are_refused() -> None:
    x = contiguous_view(0, "float32", (1, 2, 1, 257))
    with pytest.raises(NotImplementedError, match=r"\[attention\] q, v: got widths 257"):
        launch.forward(x, x, x, None, None, None, x, None, 1.0, launch.Band(), lambda *_: x)

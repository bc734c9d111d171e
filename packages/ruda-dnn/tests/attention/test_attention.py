"""attention against float64, on every dtype."""

from __future__ import annotations

import numpy as np
import pytest

import ruda_dnn
from ruda_dnn.attention import reference
from ruda_runtime import Tensor

from ..support import (
    DTYPES,
    Array,
    bits_of,
    check,
    offset,
    rounded,
    same_for_any_thread_count,
    strided,
    to_tensor,
    values_of,
)
from .cases import CASES, PACKED, Case, Packed

RUNS = [pytest.param(case, dtype, id=f"{case.name}-{dtype}") for case in CASES for dtype in DTYPES]
BY_NAME = {case.name: case for case in CASES}


def mask_tensor(mask: np.ndarray | None, dtype: str) -> Tensor | None:
    if mask is None:
        return None
    return Tensor.from_numpy(mask) if mask.dtype == bool else to_tensor(mask, dtype)


def mask_arguments(mask: np.ndarray | None, seen: np.ndarray) -> tuple:
    """The reference's `seen` and `bias`."""
    if mask is None:
        return seen, None
    return (seen & mask, None) if mask.dtype == bool else (seen, mask)


def compare(actual: Tensor, wanted: Array, dtype: str, small: float, long: bool = False) -> None:
    """Against the reference; where exact cancellation leaves only rounding, against 0."""
    if wanted.size and np.isfinite(wanted).all() and np.abs(wanted).max() < 1e-12:
        assert np.abs(values_of(actual)).max() <= small
    else:
        check(actual, wanted, dtype, long_reduction=long)


def run(case: Case, dtype: str) -> None:
    rng = np.random.default_rng(7)
    arrays = [rounded(array, dtype) for array in case.inputs(rng)]
    mask = case.make_mask(rng)
    if mask is not None and mask.dtype != bool:
        mask = rounded(mask, dtype)
    q, k, v, grad = (to_tensor(array, dtype) for array in arrays)
    given = mask_tensor(mask, dtype)
    out, lse = ruda_dnn.attention_with_stats(q, k, v, given, **case.options())
    seen, bias = mask_arguments(mask, case.seen())
    wanted, wanted_lse = reference.attention(*arrays[:3], seen, bias, case.scale)
    compare(out, wanted, dtype, 0.0)
    nothing = wanted_lse == -np.inf
    np.testing.assert_array_equal(values_of(lse) == -np.inf, nothing)
    error = np.where(nothing, 0.0, values_of(lse) - np.where(nothing, 0.0, wanted_lse))
    scale = 1 + np.abs(np.where(nothing, 0.0, wanted_lse)).max(initial=0.0)
    # the scores' own rounding: width terms of the size of the largest score
    assert np.abs(error).max(initial=0.0) <= 1e-6 * scale * (1 + case.width) ** 0.5
    assert not values_of(out)[np.swapaxes(nothing, 1, 2)].any()
    gradients = ruda_dnn.attention_backward(q, k, v, out, lse, grad, given, **case.options())
    for actual, right in zip(
        gradients,
        reference.attention_backward(*arrays, seen, bias, case.scale),
        strict=True,
    ):
        assert actual is not None
        compare(actual, right, dtype, {"float32": 1e-5, "float16": 2e-2}.get(dtype, 2e-1), True)


@pytest.mark.parametrize(("case", "dtype"), RUNS)
def test_values_and_gradients(case: Case, dtype: str) -> None:
    run(case, dtype)


def ends(lengths: tuple[int, ...]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", PACKED, ids=lambda case: case.name)
def test_packed_sequences_are_the_sequences_alone(case: Packed, dtype: str) -> None:
    rng = np.random.default_rng(5)
    ends_q, ends_k = ends(case.q_lengths), ends(case.k_lengths)
    arrays = [
        rounded(rng.standard_normal((total, heads, case.width)), dtype)
        for total, heads in (
            (ends_q[-1], case.heads), (ends_k[-1], case.groups), (ends_k[-1], case.groups),
            (ends_q[-1], case.heads),
        )
    ]  # fmt: skip
    q, k, v, grad = (to_tensor(array, dtype) for array in arrays)
    cu = Tensor.from_numpy(ends_q), Tensor.from_numpy(ends_k)
    options = {"causal": case.causal, "window": case.window, "align": case.align}
    out, lse = ruda_dnn.varlen_attention_with_stats(q, k, v, *cu, **options)
    assert bits_of(out) == bits_of(ruda_dnn.varlen_attention(q, k, v, *cu, **options))
    gradients = ruda_dnn.varlen_attention_backward(q, k, v, *cu, out, lse, grad, **options)
    wanted = [np.zeros(array.shape) for array in (arrays[3], *arrays[:3])]
    wanted_lse = np.zeros((case.heads, ends_q[-1]))
    for n in range(len(case.q_lengths)):
        rows, keys = slice(*ends_q[n : n + 2]), slice(*ends_k[n : n + 2])
        one = Case("", case.q_lengths[n], case.k_lengths[n], **options)
        part = [array[None, span] for array, span in
                zip(arrays, (rows, keys, keys, rows), strict=True)]  # fmt: skip
        result, stats = reference.attention(*part[:3], one.seen())
        wanted[0][rows], wanted_lse[:, rows] = result[0], stats[0]
        for total, gradient, span in zip(
            wanted[1:], reference.attention_backward(*part, one.seen()), (rows, keys, keys),
            strict=True,
        ):  # fmt: skip
            total[span] = gradient[0]
    check(out, wanted[0], dtype)
    for actual, right in zip(gradients, wanted[1:], strict=True):
        check(actual, right, dtype, long_reduction=True)
    np.testing.assert_allclose(values_of(lse), wanted_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["three_groups", "decode_long", "mask_causal_padding", "long",
                                  "many_pairs", "window"])  # fmt: skip
def test_same_bits_for_any_number_of_threads(name: str) -> None:
    case, rng = BY_NAME[name], np.random.default_rng(3)
    q, k, v, grad = (to_tensor(array, "float32") for array in case.inputs(rng))
    mask = mask_tensor(case.make_mask(rng), "float32")

    def results() -> list[Tensor]:
        out, lse = ruda_dnn.attention_with_stats(q, k, v, mask, **case.options())
        grads = ruda_dnn.attention_backward(q, k, v, out, lse, grad, mask, **case.options())
        return [out, lse, *(tensor for tensor in grads if tensor is not None)]

    same_for_any_thread_count(results)


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False),
                                    (False, False, True), (False, True, True)])  # fmt: skip
def test_only_the_wanted_gradients(wanted: tuple[bool, bool, bool]) -> None:
    case, rng = BY_NAME["three_groups"], np.random.default_rng(3)
    q, k, v, grad = (to_tensor(array, "float32") for array in case.inputs(rng))
    out, lse = ruda_dnn.attention_with_stats(q, k, v, causal=True)
    every = ruda_dnn.attention_backward(q, k, v, out, lse, grad, causal=True)
    some = ruda_dnn.attention_backward(q, k, v, out, lse, grad, causal=True, wanted=wanted)
    for full, part, asked in zip(every, some, wanted, strict=True):
        assert (part is not None) is asked
        assert part is None or bits_of(full) == bits_of(part)


@pytest.mark.parametrize("layout", ["heads_first", "strided", "offset", "slices"])
@pytest.mark.parametrize("name", ["three_groups", "decode"])
def test_layouts_give_the_bits_of_the_contiguous_copy(name: str, layout: str) -> None:
    case, rng = BY_NAME[name], np.random.default_rng(3)
    arrays = case.inputs(rng)

    def lay(array: Array) -> Tensor:
        if layout == "heads_first":
            return to_tensor(array.transpose(0, 2, 1, 3), "float16").permute(0, 2, 1, 3)
        if layout == "slices":  # as q, k and v in one projection's result
            wide = np.concatenate([array, np.full(array.shape, np.nan)], axis=-1)
            return to_tensor(wide, "float16").slice(3, 0, array.shape[-1])
        return {"strided": strided, "offset": offset}[layout](array, "float16")

    results = []
    for make in (lambda array: to_tensor(array, "float16"), lay):
        q, k, v, grad = (make(array) for array in arrays)
        out, lse = ruda_dnn.attention_with_stats(q, k, v, causal=True)
        grads = ruda_dnn.attention_backward(q, k, v, out, lse, grad, causal=True)
        results.append([bits_of(tensor) for tensor in (out, lse, *grads)])
    assert results[0] == results[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_mask_layouts_and_float32_mask(dtype: str) -> None:
    case, rng = Case("", 40, 50, batch=2), np.random.default_rng(2)
    q, k, v, _ = (to_tensor(array, dtype) for array in case.inputs(rng))
    mask = rounded(rng.standard_normal((2, 3, 40, 50)), dtype)
    plain = ruda_dnn.attention(q, k, v, to_tensor(mask, dtype))
    turned = to_tensor(mask.transpose(0, 3, 1, 2), dtype).permute(0, 2, 3, 1)
    assert bits_of(plain) == bits_of(ruda_dnn.attention(q, k, v, turned))
    assert bits_of(plain) == bits_of(ruda_dnn.attention(q, k, v, to_tensor(mask, "float32")))
    some = mask > 0
    plain = ruda_dnn.attention(q, k, v, Tensor.from_numpy(some))
    turned = Tensor.from_numpy(np.ascontiguousarray(some.transpose(0, 3, 1, 2)))
    assert bits_of(plain) == bits_of(ruda_dnn.attention(q, k, v, turned.permute(0, 2, 3, 1)))
    hidden = np.where(some, 0.0, -np.inf)
    assert bits_of(plain) == bits_of(ruda_dnn.attention(q, k, v, to_tensor(hidden, dtype)))


@pytest.mark.parametrize("q_length", [1, 50])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_keys_that_are_not_seen_may_hold_anything(value: float, q_length: int) -> None:
    """Causal, window, bool and additive masks; forward and backward."""
    rng = np.random.default_rng(8)
    case = Case("", q_length, 130, heads=4, groups=2)
    arrays = case.inputs(rng)
    mask = np.ones((1, 1, 1, 130), bool)
    mask[..., [3, 40, 129]] = False
    options = {"causal": True, "window": (90, None)}
    dirty = [array.copy() for array in arrays]
    for array in dirty[1:3]:
        array[:, [3, 40, 129]] = value
        array[:, : max(0, 130 - q_length - 90)] = value  # before every window
    results = []
    for given in (mask, np.where(mask, 0.0, -np.inf)):
        for source in (arrays, dirty):
            q, k, v, grad = (to_tensor(array, "float32") for array in source)
            tensor = mask_tensor(given, "float32")
            out, lse = ruda_dnn.attention_with_stats(q, k, v, tensor, **options)
            grads = ruda_dnn.attention_backward(q, k, v, out, lse, grad, tensor, **options)
            results.append([values_of(t) for t in (out, lse, *grads)])
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            assert np.isfinite(right).all()
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("which", ["q", "k", "v", "grad"])
@pytest.mark.parametrize("q_length", [4, 60])
def test_nan_and_infinity_go_where_the_formula_says(
    which: str, value: float, q_length: int
) -> None:
    rng = np.random.default_rng(9)
    case = Case("", q_length, 60, heads=2, groups=1, causal=True)
    arrays = dict(zip(("q", "k", "v", "grad"), case.inputs(rng), strict=True))
    if which in ("q", "k"):
        arrays["k"], arrays["q"] = np.abs(arrays["k"]), np.abs(arrays["q"])
    row = arrays[which].shape[1] - 3
    arrays[which][0, row, 0, 5] = value
    q, k, v, grad = (to_tensor(array, "float32") for array in arrays.values())
    out, lse = ruda_dnn.attention_with_stats(q, k, v, causal=True)
    wanted, _ = reference.attention(*list(arrays.values())[:3], case.seen())
    check(out, wanted, "float32")
    grads = ruda_dnn.attention_backward(q, k, v, out, lse, grad, causal=True)
    for actual, right in zip(
        grads, reference.attention_backward(*arrays.values(), case.seen()), strict=True
    ):
        found = values_of(actual)
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(right))
        usual = np.isfinite(right)
        np.testing.assert_allclose(found[usual], right[usual], rtol=1e-3, atol=1e-4)


def test_memory_does_not_grow_with_the_square() -> None:
    import ruda_runtime

    peaks = []
    for length in (1024, 4096):
        q = to_tensor(np.ones((1, length, 2, 16)), "float32")
        out, lse = ruda_dnn.attention_with_stats(q, q, q, causal=True)
        before = ruda_runtime.memory_stats()["allocated"]
        ruda_runtime.reset_peak_memory_stats()
        ruda_dnn.attention(q, q, q, causal=True)
        ruda_dnn.attention_backward(q, q, q, out, lse, out, causal=True)
        peaks.append(ruda_runtime.memory_stats()["peak_allocated"] - before)
    assert peaks[1] < 4.5 * peaks[0]


def test_errors() -> None:
    q = to_tensor(np.ones((2, 5, 4, 8)), "float32")

    def wrong(match: str, *arguments, kind: type = ruda_dnn.AttentionError, **options) -> None:
        with pytest.raises(kind, match=match):
            ruda_dnn.attention(*arguments, **options)

    def ones(*shape: int, dtype: str = "float32") -> Tensor:
        return to_tensor(np.ones(shape), dtype)

    wrong(r"\[attention\] q: got shape \[5, 4, 8\], wanted", ones(5, 4, 8), q, q)
    wrong(r"k: got shape \[2, 5, 4, 9\], wanted q's width 8", q, ones(2, 5, 4, 9), q)
    wrong(r"k: got 3 heads, wanted a divisor of q's 4", q, ones(2, 5, 3, 8), ones(2, 5, 3, 8))
    wrong(r"k: got shape \[1, 5, 4, 8\], wanted q's batch 2", q, ones(1, 5, 4, 8), q)
    wrong(r"v: got shape \[2, 6, 4, 8\], wanted k's shape", q, q, ones(2, 6, 4, 8))
    wrong(r"mask: got shape \[2, 2, 5, 5\], wanted \[2 or 1, 4 or 1, 5 or 1, 5\]", q, q, q,
          ones(2, 2, 5, 5))  # fmt: skip
    wrong(r"mask: got shape \[2, 4, 5, 1\]", q, q, q, ones(2, 4, 5, 1))
    wrong("scale: got inf", q, q, q, scale=float("inf"))
    wrong("align: got 'left'", q, q, q, align="left")
    wrong("window: got", q, q, q, window=(-1, None))
    wrong("k: got dtype float16, wanted float32", q, ones(2, 5, 4, 8, dtype="float16"), q,
          kind=TypeError)  # fmt: skip
    wrong("q: got float, wanted a ruda_runtime.Tensor", 1.0, q, q, kind=TypeError)
    wrong(
        "mask: got dtype float16, wanted bool or float32$",
        q,
        q,
        q,
        ones(1, 1, 5, 5, dtype="float16"),
        kind=TypeError,
    )
    flat = ones(10, 4, 8)

    def cu(*values: int, dtype: type = np.int32) -> Tensor:
        return Tensor.from_numpy(np.array(values, dtype))

    for match, first, second in (
        (r"cu_seqlens_q: got ends from 0 to 9", cu(0, 9), cu(0, 10)),
        (r"cu_seqlens_k: got ends from 0 to 10 out of order", cu(0, 5, 10, 10), cu(0, 6, 4, 10)),
        (r"cu_seqlens_k: got shape \[2\], wanted cu_seqlens_q's", cu(0, 5, 10), cu(0, 10)),
        (r"cu_seqlens_q: got shape \[0\]", cu(), cu(0, 10)),
    ):
        with pytest.raises(ruda_dnn.AttentionError, match=match):
            ruda_dnn.varlen_attention(flat, flat, flat, first, second)
    with pytest.raises(TypeError, match="cu_seqlens_q: got dtype int64"):
        ruda_dnn.varlen_attention(flat, flat, flat, cu(0, 10, dtype=np.int64), cu(0, 10))
    out, lse = ruda_dnn.attention_with_stats(q, q, q)
    with pytest.raises(ruda_dnn.AttentionError, match=r"lse: got shape \[2, 5, 4\]"):
        ruda_dnn.attention_backward(q, q, q, out, lse.permute(0, 2, 1), out)
    with pytest.raises(ruda_dnn.AttentionError, match=r"grad: got shape"):
        ruda_dnn.attention_backward(q, q, q, out, lse, ones(2, 5, 4, 9))

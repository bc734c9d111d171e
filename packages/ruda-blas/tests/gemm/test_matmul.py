"""Every case in every dtype against float64, and the rest of what the product promises."""

from __future__ import annotations

import numpy as np
import pytest

import ruda_runtime as rr
from ruda_blas import _native, gemm
from ruda_blas.gemm import reference
from ruda_runtime import tune
from ruda_runtime.conformance import check, check_repeatable, numpy_dtype, rounded

from ..tensors import on_cuda, tensor
from .cases import CASES, DTYPES, PANELS, Case, inputs


def strategies() -> list[str]:
    """Those that differ on this target."""
    return ["auto"] if on_cuda() else list(gemm.STRATEGIES)


def run(case: Case, given: dict, strategy: str = "auto") -> np.ndarray:
    old = given["out"].copy(order="K")
    out = tensor(given["out"])
    result = gemm.addmm(
        tensor(given["a"]), tensor(given["b"]), bias=tensor(given["bias"]), out=out,
        alpha=case.alpha, beta=case.beta, strategy=strategy,
    )  # fmt: skip
    assert result is out
    values = result.numpy().copy()
    given["out"][...] = old
    return values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conformance(case: Case, dtype: str) -> None:
    given = inputs(case, dtype)
    wanted = reference.addmm(
        given["a"], given["b"], given["bias"], given["out"], case.alpha, case.beta
    )
    for strategy in strategies():
        result = check_repeatable(lambda s=strategy: run(case, given, s), name=case.name)
        check(result, wanted, dtype, name=f"{case.name} {strategy}")


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", PANELS, ids=lambda case: case.name)
def test_panels(case: Case, dtype: str) -> None:
    given = inputs(case, dtype)
    wanted = reference.addmm(
        given["a"], given["b"], given["bias"], given["out"], case.alpha, case.beta
    )
    result = check_repeatable(lambda: run(case, given), name=case.name)
    check(result, wanted, dtype, name=case.name)


@pytest.mark.parametrize("rows", [1, 6, 7, 12, 13, 300])
def test_tiles_of_any_width_give_the_same_bits(rows: int) -> None:
    given = inputs(Case((rows, 1029), (1029, 1041), b_layout="cols"), "float32")
    results = []
    try:
        for engine in (2, 3):  # with AVX-512, where the processor has it, and without
            _native.choose_engine(engine)
            results.append(gemm.matmul(tensor(given["a"]), tensor(given["b"])).numpy().copy())
    finally:
        _native.choose_engine(0)
    assert np.array_equal(*results)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_in_panels(dtype: str) -> None:
    """A zero times infinity is NaN, and stays in its row or column, though panels are padded."""
    given = inputs(Case((7, 1029), (1029, 1030), b_layout="cols"), dtype)
    a, b = given["a"].copy(), given["b"].copy()
    a[0, 3], a[6, 1028], b[1028, 1029], b[11, 18] = np.nan, np.inf, -np.inf, 0.0
    a[1, 1028] = 0.0
    with np.errstate(invalid="ignore"):
        wanted = reference.addmm(a, b)
    assert np.isnan(wanted).any() and np.isinf(wanted).any()
    check(gemm.matmul(tensor(a), tensor(b)).numpy(), wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["rows", "cols"])
def test_peer(dtype: str, layout: str) -> None:
    """No less exact than NumPy's float32 product rounded once (what PyTorch's does at best)."""
    given = inputs(Case((200, 600), (600, 150), b_layout=layout), dtype)
    peer = (given["a"].astype(np.float32) @ given["b"].astype(np.float32)).astype(
        numpy_dtype(dtype)
    )
    result = gemm.matmul(tensor(given["a"]), tensor(given["b"]))
    check(result.numpy(), reference.addmm(given["a"], given["b"]), dtype, peer=peer)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
@pytest.mark.parametrize(("rows", "layout"), [(33, "rows"), (3, "rows"), (3, "cols")])
def test_out_dtype(dtype: str, out_dtype: str, rows: int, layout: str) -> None:
    given = inputs(Case((rows, 20), (20, 40), b_layout=layout), dtype)
    result = gemm.matmul(tensor(given["a"]), tensor(given["b"]), out_dtype=out_dtype)
    assert result.dtype_name == out_dtype
    wanted = reference.addmm(given["a"], given["b"])
    check(result.numpy(), wanted, out_dtype)
    bias = tensor(np.ones(40, numpy_dtype(out_dtype)))
    biased = gemm.addmm(tensor(given["a"]), tensor(given["b"]), bias=bias, out_dtype=out_dtype)
    check(biased.numpy(), wanted + 1.0, out_dtype)


def test_half_products_are_rounded_once() -> None:
    """1 + 2^-8 + 2^-8 in bfloat16: 1 with rounded partial sums, 1 + 2^-7 with one rounding."""
    a = np.array([[1.0, 1.0, 1.0]] * 5).astype(numpy_dtype("bfloat16"))
    b = np.array([[1.0], [2.0**-8], [2.0**-8]]).astype(numpy_dtype("bfloat16"))
    result = gemm.matmul(tensor(a), tensor(np.repeat(b, 6, axis=1))).numpy()
    assert (result.astype(np.float64) == 1.0 + 2.0**-7).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "layout"), [(2, "cols"), (2, "rows"), (40, "rows"), (40, "cols")])
@pytest.mark.parametrize("strategy", list(gemm.STRATEGIES))
def test_nan_and_infinity(dtype: str, rows: int, layout: str, strategy: str) -> None:
    """A zero times infinity is NaN, and stays in its row or column."""
    given = inputs(Case((rows, 70), (70, 50), b_layout=layout), dtype)
    a, b = given["a"].copy(), given["b"]
    a[0, 3], a[1, 69], b[11, 17], b[11, 18] = np.nan, np.inf, -np.inf, 0.0
    a[0, 11] = a[1, 11] = 0.0
    with np.errstate(invalid="ignore"):
        wanted = reference.addmm(a, b)
    assert np.isnan(wanted).any() and np.isinf(wanted).any()
    result = gemm.matmul(tensor(a), tensor(b), strategy=strategy).numpy()
    check(result, wanted, dtype)


def test_strategies_on_cuda() -> None:
    """``tiled`` and ``autotune`` are the kernels of ``auto``; there is no library."""
    if not on_cuda():
        pytest.skip("about the cuda target")
    given = inputs(Case((5, 700), (700, 40), bias=True), "float32")
    a, b, bias = (tensor(given[name]) for name in ("a", "b", "bias"))
    wanted = gemm.addmm(a, b, bias=bias).numpy()
    assert np.array_equal(gemm.addmm(a, b, bias=bias, strategy="tiled").numpy(), wanted)
    with tune.using(tune.Tuner(disk=False, environment={})) as tuner:
        assert np.array_equal(gemm.addmm(a, b, bias=bias, strategy="autotune").numpy(), wanted)
        (record,) = tuner.records()
    assert set(record.measured) == {"tiled"} and set(record.left_out) == {"library"}
    with pytest.raises(rr.UnsupportedError, match=r"strategy: got 1 \(library\), wanted 0"):
        gemm.matmul(a, b, strategy="library")


def test_overflow_of_float16_is_infinity() -> None:
    a = tensor(np.full((6, 4), 200.0, np.float16))
    b = tensor(np.array([[200.0, -200.0, 1.0]] * 4, np.float16))
    result = gemm.matmul(a, b).numpy()
    assert (result == np.array([np.inf, -np.inf, 800.0], np.float16)).all()


def test_transposed_operands_take_no_memory() -> None:
    given = inputs(Case((96, 200), (200, 64), "cols", "cols"), "float32")
    a, b, out = tensor(given["a"]), tensor(given["b"]), rr.empty((96, 64))
    gemm.matmul(a, b, out)
    before = rr.memory_stats()["allocations"]
    gemm.matmul(a, b, out)
    gemm.matmul(b.permute((1, 0)), a.permute((1, 0)), out.reshape((64, 96)))
    assert rr.memory_stats()["allocations"] == before


def test_scratch_of_half_products_is_bounded() -> None:
    """A float32 copy of this weight alone would take 12 MB."""
    x, weight = rr.empty((64, 1024), "bfloat16"), rr.empty((3072, 1024), "bfloat16")
    out = rr.empty((64, 3072), "bfloat16")
    rr.reset_peak_memory_stats()
    before = rr.memory_stats()["allocated"]
    gemm.matmul(x, weight.permute((1, 0)), out)
    peak = rr.memory_stats()["peak_allocated"] - before
    assert 0 < peak <= rr.get_num_threads() * 1_600_000


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [3, 200])
@pytest.mark.parametrize("layout", ["rows", "cols"])
def test_bits_do_not_depend_on_the_threads(dtype: str, rows: int, layout: str) -> None:
    given = inputs(Case((rows, 600), (600, 500), b_layout=layout, bias=True), dtype)
    threads = rr.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            rr.set_num_threads(count)
            results.append(
                gemm.addmm(tensor(given["a"]), tensor(given["b"]), bias=tensor(given["bias"]))
                .numpy()
                .tobytes()
            )
    finally:
        rr.set_num_threads(threads)
    assert results[0] == results[1] == results[2]


def test_a_shared_batch_is_one_product() -> None:
    """[B, T, K] @ [K, N] with a sliced operand: rows of all batches follow each other."""
    buffer = np.random.default_rng(1).standard_normal((4, 6, 40)).astype(np.float32)
    weight = np.random.default_rng(2).standard_normal((40, 8)).astype(np.float32)
    for view in (buffer, buffer[:, ::2], buffer[::2], buffer[:, :, ::-1]):
        result = gemm.matmul(tensor(view), tensor(weight)).numpy()
        check(result, reference.addmm(view, weight), "float32")


def test_a_result_of_one_row_with_a_short_row_stride() -> None:
    a = np.random.default_rng(1).standard_normal((1, 64)).astype(np.float32)
    b = np.random.default_rng(2).standard_normal((128, 256)).astype(np.float32)[::2, ::2]
    column = np.full((128, 1), np.nan, dtype=np.float32)
    out = tensor(column).permute(1, 0)  # one row: strides 1, 1
    assert tuple(out.strides) == (1, 1)
    gemm.matmul(tensor(a), tensor(b), out=out)
    check(out.numpy(), reference.addmm(a, b), "float32")


def test_inputs_rounded_to_the_dtype_are_what_counts() -> None:
    values = np.random.default_rng(3).standard_normal((30, 30))
    exact = rounded(values, "float16")
    x = tensor(values.astype(np.float16))
    check(gemm.matmul(x, x).numpy(), reference.addmm(exact, exact), "float16")

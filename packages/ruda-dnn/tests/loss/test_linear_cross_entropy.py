"""Linear cross entropy and its gradients against float64, on every dtype."""

from __future__ import annotations

import numpy as np
import pytest

import ruda_dnn
import ruda_runtime
from ruda_dnn.loss import reference
from ruda_runtime import Tensor, conformance

from ..support import (
    DTYPES,
    bits_of,
    check,
    rounded,
    same_for_any_thread_count,
    strided,
    threads,
    to_tensor,
    values_of,
)
from .cases import CASES, IGNORE, Case

ALL = (True, True, True)


def to_target(target) -> Tensor:
    return Tensor.from_numpy(np.asarray(target, np.int64), copy=True)


def run(given: dict, dtype: str, head_dtype: str | None = None, **options):
    return ruda_dnn.linear_cross_entropy(
        to_tensor(given["hidden"], dtype),
        to_tensor(given["head"], head_dtype or dtype),
        to_target(given["target"]),
        None if given["bias"] is None else to_tensor(given["bias"], head_dtype or dtype),
        ignore_index=IGNORE,
        **options,
    )


def expected(given: dict, dtype: str, head_dtype: str | None = None):
    return reference.linear_cross_entropy(
        rounded(given["hidden"], dtype),
        rounded(given["head"], head_dtype or dtype),
        None if given["bias"] is None else rounded(given["bias"], head_dtype or dtype),
        given["target"],
        IGNORE,
    )


def compare(result, wanted, target) -> None:
    """Loss and gradients are float32 whatever the storage: float32's criteria hold. Targets' rows
    of the head may be a thousand times larger than the others: each kind by itself."""
    check(result.loss, np.asarray(wanted.loss), "float32")
    assert int(values_of(result.valid_rows)) == wanted.valid_rows
    assert result.valid_rows.dtype_name == "int64"
    check(result.dhidden, wanted.dhidden, "float32", long_reduction=True)
    assert result.dhead.dtype_name == "float32"
    found, targets = values_of(result.dhead), np.isin(np.arange(len(wanted.dhead)), target)
    conformance.check(
        result.dhead.numpy()[targets], wanted.dhead[targets], "float32", long_reduction=True
    )
    # Among many classes a few probabilities are far above the rest, and so are their errors.
    others, right = found[~targets], wanted.dhead[~targets]
    assert conformance.Deviation.of(others, right).relative <= 3 * conformance.LIMITS["float32"]
    most = np.abs(right).max(initial=0.0)
    np.testing.assert_allclose(others, right, rtol=1e-4, atol=1e-6 * most)
    if result.dbias is not None:
        check(result.dbias, wanted.dbias, "float32", long_reduction=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_loss_and_gradients(case: Case, dtype: str) -> None:
    given = case.inputs(np.random.default_rng(21))
    result = run(given, dtype, token_chunk=case.token_chunk, gradients=ALL)
    assert (result.dbias is None) == (given["bias"] is None)
    compare(result, expected(given, dtype), given["target"])
    alone = run(given, dtype, token_chunk=case.token_chunk)
    assert bits_of(alone.loss) == bits_of(result.loss)
    assert alone[2:] == (None, None, None)


@pytest.mark.parametrize(("dtype", "head_dtype"), [("bfloat16", "float32"), ("float32", "float16")])
def test_mixed_dtypes(dtype: str, head_dtype: str) -> None:
    given = Case("mixed", 11, 20, 77, bias="normal", ignored="half").inputs(
        np.random.default_rng(3)
    )
    result = run(given, dtype, head_dtype, gradients=ALL)
    compare(result, expected(given, dtype, head_dtype), given["target"])


@pytest.mark.parametrize("which", range(3))
def test_each_gradient_alone(which: int) -> None:
    given = Case("alone", 13, 10, 31, bias="normal", ignored="ends").inputs(
        np.random.default_rng(8)
    )
    everything = run(given, "float32", gradients=ALL)
    only = run(given, "float32", gradients=tuple(i == which for i in range(3)))
    for i in range(3):
        if i == which:
            assert bits_of(only[2 + i]) == bits_of(everything[2 + i])
        else:
            assert only[2 + i] is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_many_chunks_give_the_gradient_of_one(dtype: str) -> None:
    """64 chunks against 1: gradients are float32 across chunks, so neither drifts."""
    given = Case("chunks", 128, 24, 90, bias="normal").inputs(np.random.default_rng(6))
    wanted = expected(given, dtype)
    for chunk in (2, 128):
        compare(run(given, dtype, token_chunk=chunk, gradients=ALL), wanted, given["target"])


def test_ignored_rows_are_never_read() -> None:
    given = Case("nan", 10, 8, 20, ignored="half").inputs(np.random.default_rng(1))
    given["hidden"][::2] = np.nan
    result = run(given, "float32", gradients=ALL)
    clean = dict(given, hidden=np.where(np.isnan(given["hidden"]), 0.0, given["hidden"]))
    compare(result, expected(clean, "float32"), given["target"])


def test_ignored_rows_cost_no_memory() -> None:
    """Scratch follows the valid rows: 4 of 4000 here."""
    rng = np.random.default_rng(1)
    target = np.full(4000, IGNORE)
    target[[5, 1000, 2000, 3999]] = 3
    hidden = to_tensor(rng.standard_normal((4000, 16)), "float32")
    head = to_tensor(rng.standard_normal((2000, 16)), "float32")
    target = to_target(target)
    ruda_runtime.reset_peak_memory_stats()
    before = ruda_runtime.memory_stats()["allocated"]
    result = ruda_dnn.linear_cross_entropy(hidden, head, target)
    peak = ruda_runtime.memory_stats()["peak_allocated"] - before
    assert int(values_of(result.valid_rows)) == 4
    assert peak < 4000 * 2000 * 4 / 20


def test_minus_infinity_and_nan() -> None:
    hidden = to_tensor(np.ones((2, 3)), "float32")
    head = to_tensor(np.ones((4, 3)), "float32")

    def loss(bias, target) -> float:
        return float(
            values_of(
                ruda_dnn.linear_cross_entropy(
                    hidden, head, to_target(target), to_tensor(np.array(bias), "float32")
                ).loss
            )
        )

    minus = -np.inf
    assert loss([minus, 0, minus, minus], [1, 1]) == 0.0
    assert loss([minus, 0, 0, minus], [0, 1]) == np.inf  # the target itself is impossible
    assert np.isnan(loss([minus] * 4, [1, 1]))
    assert np.isnan(loss([np.nan, 0, 0, 0], [1, 1]))
    assert np.isnan(loss([np.inf, 0, 0, 0], [1, 1]))


def test_strided_inputs() -> None:
    given = Case("strided", 6, 9, 14, bias="normal").inputs(np.random.default_rng(2))
    dense = run(given, "float32", gradients=ALL)
    other = ruda_dnn.linear_cross_entropy(
        strided(given["hidden"], "float32"),
        strided(given["head"], "float32"),
        to_target(np.repeat(given["target"], 2)).slice(0, 0, None, 2),
        strided(given["bias"], "float32"),
        gradients=ALL,
    )
    assert [bits_of(tensor) for tensor in other] == [bits_of(tensor) for tensor in dense]


def test_same_bits_for_any_number_of_threads() -> None:
    given = Case("threads", 70, 64, 3000, bias="normal").inputs(np.random.default_rng(5))
    same_for_any_thread_count(lambda: list(run(given, "float32", token_chunk=16, gradients=ALL)))


@pytest.mark.parametrize("wrong", [20, -1, 2**40, -101])
def test_target_outside_the_vocabulary(wrong: int) -> None:
    hidden = to_tensor(np.ones((3, 4)), "float32")
    head = to_tensor(np.ones((20, 4)), "float32")
    with pytest.raises(
        ruda_dnn.LossError, match=rf"target\[2\]: got {wrong}, wanted 0..19 or ignore_index = -100"
    ):
        ruda_dnn.linear_cross_entropy(hidden, head, to_target([0, -100, wrong]))
    with threads(1), pytest.raises(ruda_dnn.LossError):
        ruda_dnn.linear_cross_entropy(hidden, head, to_target([0, -100, wrong]))


def test_errors() -> None:
    hidden, head = (to_tensor(np.ones(shape), "float32") for shape in ((3, 4), (5, 4)))
    target = to_target([0, 1, 2])
    call = ruda_dnn.linear_cross_entropy
    with pytest.raises(ruda_dnn.LossError, match=r"head: got shape \[5, 3\], wanted \[V, H\]"):
        call(hidden, to_tensor(np.ones((5, 3)), "float32"), target)
    with pytest.raises(ruda_dnn.LossError, match=r"hidden, head: got shapes \[4\] and"):
        call(to_tensor(np.ones(4), "float32"), head, target)
    with pytest.raises(ruda_dnn.LossError, match=r"target: got shape \[2\], wanted \[3\]"):
        call(hidden, head, to_target([0, 1]))
    with pytest.raises(TypeError, match="target: got dtype int32, wanted int64"):
        call(hidden, head, Tensor.from_numpy(np.zeros(3, np.int32)))
    with pytest.raises(ruda_dnn.LossError, match=r"bias: got shape \[4\], wanted \[5\]"):
        call(hidden, head, target, to_tensor(np.ones(4), "float32"))
    with pytest.raises(ruda_dnn.LossError, match="token_chunk: got -1"):
        call(hidden, head, target, token_chunk=-1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_labels_at_the_edges_of_head_tiles(dtype: str) -> None:
    """A 16-bit head of this width is widened 499 classes at a time."""
    given = Case("edges", 6, 4200, 1200).inputs(np.random.default_rng(4))
    given["target"][:] = [0, 498, 499, 997, 998, 1199]
    compare(run(given, dtype, gradients=ALL), expected(given, dtype), given["target"])

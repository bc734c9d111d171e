"""Dense matrix products. See README.md for the mathematics."""

from __future__ import annotations

from itertools import zip_longest

from ruda_runtime import Tensor, empty

from .. import _native
from .._tensors import check_tensor, result_dtype
from ..errors import BlasError, BlasTypeError

__all__ = ["AUTOTUNE", "STRATEGIES", "BlasError", "addmm", "matmul"]

STRATEGIES: dict[str, int] = {"auto": 0, "library": 1, "tiled": 2}
"""What computes a product: ``auto`` chooses by shapes, strides and dtypes, ``library`` is OpenBLAS,
``tiled`` our own product of packed panels. On the cuda target ``auto`` and ``tiled`` are the same
kernels of our own, and ``library`` raises."""

AUTOTUNE = "autotune"
"""The strategy that measures the others once for each shape: see `ruda_runtime.tune`."""


def matmul(
    a: Tensor,
    b: Tensor,
    out: Tensor | None = None,
    strategy: str = "auto",
    out_dtype: str | None = None,
) -> Tensor:
    """``a @ b`` for ``a [..., M, K]`` and ``b [..., K, N]``: ``[..., M, N]``.

    Args:
        a, b: 2 to 8 dimensions, one dtype: float32, float16 or bfloat16. Batch dimensions
            broadcast. Any strides; a transposed operand is not copied.
        out: where to write. Must not overlap an operand.
        strategy: one of ``STRATEGIES``, or ``"autotune"``: the first product of its shapes,
            strides, dtypes and number of threads tries all of them on these operands, with ``auto``
            as the reference, and the fastest is remembered.
        out_dtype: float32, float16 or bfloat16; by default that of ``out``, else of ``a``.

    Returns:
        ``out``, or a new tensor. Accumulated in float32 and rounded once; K = 0 gives zeros.

    Raises:
        BlasError: shapes do not fit, an unknown strategy, an ``out`` that overlaps.
        BlasTypeError: a dtype other than the three, or two dtypes.
        ruda_runtime.UnsupportedError: ``library`` on the cuda target, or more than 2^31 rows,
            columns or tiles there.
        ruda_runtime.tune.TuningError: with ``"autotune"``, a strategy failed or gave other numbers.
    """
    return addmm(a, b, out=out, strategy=strategy, out_dtype=out_dtype)


def addmm(
    a: Tensor,
    b: Tensor,
    *,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    strategy: str = "auto",
    out_dtype: str | None = None,
) -> Tensor:
    """``alpha * (a @ b) + beta * out + bias``, rounded once.

    Args:
        bias: ``[N]``, float32, float16 or bfloat16.
        out: read when ``beta`` is not 0, and written. With ``beta`` 0 its contents do not matter.
        alpha: with 0 the product is left out, as in BLAS: NaN in an operand does not show.

    The rest is as in ``matmul``.
    """
    operation = "gemm.matmul"
    a = check_tensor(a, operation, "a", BlasTypeError)
    b = check_tensor(b, operation, "b", BlasTypeError)
    if strategy not in STRATEGIES and strategy != AUTOTUNE:
        raise BlasError(
            f"[{operation}] strategy: got {strategy!r}, wanted one of "
            f"{', '.join([*STRATEGIES, AUTOTUNE])}"
        )
    if out is None:
        if beta != 0.0:
            raise BlasError(f"[{operation}] beta: got {beta} without out, wanted an out to add")
        dtype = result_dtype(None, out_dtype, a.dtype_name, operation, BlasTypeError)
        out = empty(_result_shape(a.shape, b.shape), dtype)
    else:
        result_dtype(check_tensor(out, operation, "out", BlasTypeError), out_dtype, a.dtype_name,
                     operation, BlasTypeError)  # fmt: skip
    if strategy == AUTOTUNE:
        return _autotuned(a, b, bias, out, alpha, beta)
    _native.gemm_matmul(a, b, bias, out, alpha, beta, STRATEGIES[strategy])
    return out


def _autotuned(
    a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor, alpha: float, beta: float
) -> Tensor:
    from ruda_runtime import tune

    reference, *candidates = STRATEGIES

    def run(strategy: str, target: Tensor = out) -> Tensor:
        _native.gemm_matmul(a, b, bias, target, alpha, beta, STRATEGIES[strategy])
        return target

    def trial(strategy: str) -> Tensor:
        # What is tried is run many times: an `out` that is read stays as it is.
        return run(strategy, out if beta == 0.0 else out.copy())

    key = {
        "a": (a.dtype_name, a.shape, a.strides),
        "b": (b.dtype_name, b.shape, b.strides),
        "out": (out.dtype_name, out.shape, out.strides),
        "bias": None if not isinstance(bias, Tensor) else (bias.dtype_name, bias.strides),
        "adds": beta != 0.0,
    }
    return tune.tuner().execute("gemm.matmul/1", key, reference, candidates, run, trial)


def _result_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The result's shape; where the operands do not fit, the entry says what is wrong."""
    if min(len(a), len(b)) < 2:
        return ()
    pairs = zip_longest(reversed(a[:-2]), reversed(b[:-2]), fillvalue=1)
    batch = [right if left == 1 else left for left, right in pairs]
    return (*reversed(batch), a[-2], b[-1])

"""When an operator's numbers are right: the criteria that every operator's tests share.

References are computed in float64 from inputs already rounded to the dtype under test
(``rounded``). An operator conforms when

1. RMS(error) / RMS(reference) is at most ``LIMITS[dtype]`` (three times that for gradients through
   long reductions),
2. the largest error is at most 50 times the RMS error (an error of one rounding of that element is
   always allowed: where all other elements are exact, it is many times the RMS error),
3. its RMS error is at most 1.5 times that of a peer operator at the same dtype, where one is given,
4. NaN and infinity are exactly where the reference has them,
5. a second run gives the same bits.

``check`` tests 1 to 4, ``check_repeatable`` 5; ``arrange`` lays inputs out in memory in every way
that an operator may meet. Only NumPy (and ml_dtypes for bfloat16) is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "LAYOUTS",
    "LIMITS",
    "MAX_OVER_RMS",
    "PEER_RATIO",
    "Deviation",
    "arrange",
    "check",
    "check_repeatable",
    "numpy_dtype",
    "rounded",
]

LIMITS = {"float32": 5e-6, "float16": 2e-3, "bfloat16": 8e-3}
MAX_OVER_RMS = 50.0
PEER_RATIO = 1.5


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name; bfloat16 is ml_dtypes'."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def rounded(values: Any, dtype: str) -> np.ndarray:
    """``values`` rounded to ``dtype``, as float64: what a reference takes as input."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values).astype(numpy_dtype(dtype)).astype(np.float64)


LAYOUTS = ("rows", "cols", "sliced", "strided", "reversed", "broadcast")


def arrange(values: np.ndarray, layout: str) -> np.ndarray:
    """An array of at least two dimensions with these values, laid out in memory as asked.

    Layouts: "rows" (contiguous), "cols" (the last two axes transposed in memory), "sliced" (rows
    of a wider buffer, from an odd offset on), "strided" (every second column), "reversed" (the last
    two axes backwards), "broadcast" (the first row, repeated with stride 0; it changes the values).
    What lies between the elements is NaN in floating dtypes.
    """
    if layout == "rows":
        return np.ascontiguousarray(values)
    if layout == "cols":
        return np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "broadcast":
        return np.broadcast_to(values[..., :1, :], values.shape)
    *batch, rows, cols = values.shape
    gap = values.dtype.type(0) if values.dtype.kind in "iub" else values.dtype.type("nan")
    if layout == "sliced":
        view = np.full((*batch, rows, cols + 5), gap)[..., 3 : 3 + cols]
    elif layout == "strided":
        view = np.full((*batch, rows, 2 * cols), gap)[..., ::2]
    elif layout == "reversed":
        view = np.full(values.shape, gap)[..., ::-1, ::-1]
    else:
        raise ValueError(f"layout: got {layout!r}, wanted one of {', '.join(LAYOUTS)}")
    view[...] = values
    return view


@dataclass(frozen=True)
class Deviation:
    """How far a result is from its reference, where both are finite."""

    rms: float
    """RMS error."""
    relative: float
    """RMS error over RMS reference."""
    largest: float
    """The largest absolute error."""
    at: tuple[int, ...]
    """Where the largest error is."""

    @classmethod
    def of(cls, actual: Any, reference: Any) -> Deviation:
        """The deviation of ``actual`` (any dtype) from ``reference`` (float64)."""
        given = np.asarray(actual).astype(np.float64)
        wanted = np.asarray(reference, dtype=np.float64)
        finite = np.isfinite(wanted) & np.isfinite(given)
        if not finite.any():
            return cls(0.0, 0.0, 0.0, ())
        error = np.abs(np.where(finite, given, 0.0) - np.where(finite, wanted, 0.0))
        rms = float(np.sqrt(np.square(error[finite]).mean()))
        scale = float(np.sqrt(np.square(wanted[finite]).mean()))
        relative = rms / scale if scale > 0 else (0.0 if rms == 0 else float("inf"))
        flat = int(error.argmax())
        at = tuple(int(i) for i in np.unravel_index(flat, error.shape))
        return cls(rms, relative, float(error.max()), at)


def check(
    actual: Any,
    reference: Any,
    dtype: str,
    *,
    name: str = "result",
    long_reduction: bool = False,
    peer: Any = None,
    limit: float | None = None,
) -> Deviation:
    """Compare a result with its float64 reference by criteria 1 to 4.

    Args:
        actual: the operator's result, any array that NumPy takes.
        reference: float64, of the same shape.
        dtype: "float32", "float16" or "bfloat16": the dtype under test.
        name: for the error text.
        long_reduction: three times the limit, for gradients through long reductions.
        peer: another implementation's result at the same dtype (criterion 3).
        limit: in place of ``LIMITS[dtype]``.

    Returns:
        The deviation, for reports.

    Raises:
        AssertionError: a criterion does not hold; the text has the numbers.
    """
    given = np.asarray(actual)
    wanted = np.asarray(reference, dtype=np.float64)
    assert given.shape == wanted.shape, f"{name}: shape {given.shape}, wanted {wanted.shape}"
    values = given.astype(np.float64)
    for what, found, right in (
        ("NaN", np.isnan(values), np.isnan(wanted)),
        ("+infinity", np.isposinf(values), np.isposinf(wanted)),
        ("-infinity", np.isneginf(values), np.isneginf(wanted)),
    ):
        wrong = np.argwhere(found != right)
        assert wrong.size == 0, (
            f"{name}: {what} is not where the reference has it, first at {wrong[0].tolist()}: "
            f"got {values[tuple(wrong[0])]}, wanted {wanted[tuple(wrong[0])]} "
            f"({len(wrong)} places)"
        )
    deviation = Deviation.of(values, wanted)
    allowed = (LIMITS[dtype] if limit is None else limit) * (3 if long_reduction else 1)
    assert deviation.relative <= allowed, (
        f"{name}: RMS error over RMS reference is {deviation.relative:.3g}, allowed {allowed:.3g} "
        f"({dtype}); the largest error {deviation.largest:.3g} is at {list(deviation.at)}"
    )
    one_rounding = float(ml_dtypes.finfo(numpy_dtype(dtype)).eps) * (
        abs(float(wanted[deviation.at])) if deviation.at else 0.0
    )
    assert deviation.largest <= max(MAX_OVER_RMS * deviation.rms, one_rounding), (
        f"{name}: the largest error {deviation.largest:.3g} at {list(deviation.at)} is more than "
        f"{MAX_OVER_RMS:g} times the RMS error {deviation.rms:.3g}"
    )
    if peer is not None:
        other = Deviation.of(np.asarray(peer), wanted)
        assert deviation.rms <= PEER_RATIO * other.rms, (
            f"{name}: RMS error {deviation.rms:.3g} is more than {PEER_RATIO} times the peer's "
            f"{other.rms:.3g}"
        )
    return deviation


def check_repeatable(run: Callable[[], Any], *, name: str = "result", times: int = 2) -> np.ndarray:
    """Run an operator several times and demand the same bits (criterion 5); returns the result."""
    first = np.ascontiguousarray(np.asarray(run())).copy()
    for _ in range(times - 1):
        again = np.ascontiguousarray(np.asarray(run()))
        assert again.dtype == first.dtype and again.shape == first.shape, (
            f"{name}: the second run gave {again.dtype}{again.shape}, "
            f"the first {first.dtype}{first.shape}"
        )
        assert again.tobytes() == first.tobytes(), f"{name}: a second run gave other bits"
    return first

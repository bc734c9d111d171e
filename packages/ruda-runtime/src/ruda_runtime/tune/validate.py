"""Whether a candidate's numbers are the reference's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ruda_runtime.tensor import Tensor
from ruda_runtime.tune.policy import Policy

_CHUNK = 1 << 20  # elements that are compared at a time: bounds the float64 copies


def outputs_of(result: Any) -> list[Any]:
    """The arrays in a run's result: a Tensor, an array, or a tuple, list or dict of them."""
    return list(_flatten(result))


def _flatten(result: Any) -> Iterator[Any]:
    if result is None:
        return
    if isinstance(result, Tensor | np.ndarray):
        yield result
        return
    if isinstance(result, dict):
        result = [result[name] for name in sorted(result)]
    if not isinstance(result, tuple | list):
        raise TypeError(
            f"got a result of type {type(result).__name__}, wanted tensors: a Tensor, a NumPy "
            "array, or a tuple, list or dict of them"
        )
    for item in result:
        yield from _flatten(item)


def size_of(outputs: Iterable[Any]) -> int:
    """Bytes that reading the outputs back would copy."""
    return sum(int(output.size) * int(output.itemsize) for output in outputs)


def read_back(outputs: Iterable[Any]) -> list[np.ndarray]:
    """Copies on the host, which later runs cannot change."""
    return [(output.numpy() if isinstance(output, Tensor) else output).copy() for output in outputs]


@dataclass
class _Worst:
    wrong: int = 0
    first: int = -1
    largest: float = 0.0


def difference(given: list[np.ndarray], wanted: list[np.ndarray], policy: Policy) -> str | None:
    """Where and by how much outputs differ beyond the policy's tolerance; ``None``: they agree."""
    if len(given) != len(wanted):
        return f"got {len(given)} outputs, wanted {len(wanted)}"
    for index, (ours, reference) in enumerate(zip(given, wanted)):
        if ours.shape != reference.shape or ours.dtype != reference.dtype:
            return (
                f"output {index}: got {ours.dtype}{list(ours.shape)}, wanted "
                f"{reference.dtype}{list(reference.shape)}"
            )
        exact = reference.dtype.kind in "iub"
        absolute, relative = (0.0, 0.0) if exact else _tolerance(reference, policy)
        worst = _compare(ours.reshape(-1), reference.reshape(-1), absolute, relative, exact)
        if worst.wrong:
            at = tuple(int(i) for i in np.unravel_index(worst.first, reference.shape))
            return (
                f"output {index} at {list(at)}: got {ours[at]}, wanted {reference[at]} within "
                f"{absolute:.3g} + {relative:.3g} * |wanted| ({worst.wrong} of {reference.size} "
                f"elements; the largest error is {worst.largest:.3g})"
            )
    return None


def _compare(
    given: np.ndarray, wanted: np.ndarray, absolute: float, relative: float, exact: bool
) -> _Worst:
    worst = _Worst()
    for begin in range(0, wanted.size, _CHUNK):
        a, b = given[begin : begin + _CHUNK], wanted[begin : begin + _CHUNK]
        if exact:
            wrong = a != b
            error = np.abs(a.astype(np.float64) - b.astype(np.float64))
        else:
            a, b = a.astype(np.float64), b.astype(np.float64)
            with np.errstate(invalid="ignore", over="ignore"):
                error = np.abs(a - b)
                near = error <= absolute + relative * np.abs(b)
            # An infinite bound would let everything pass.
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            wrong = ~(same | (near & np.isfinite(b)))
        if wrong.any():
            if worst.first < 0:
                worst.first = begin + int(wrong.argmax())
            worst.wrong += int(wrong.sum())
            # Beside a NaN there is no distance.
            finite = error[wrong & np.isfinite(error)]
            worst.largest = max(worst.largest, float(finite.max()) if finite.size else np.inf)
    return worst


def _tolerance(reference: np.ndarray, policy: Policy) -> tuple[float, float]:
    total, count = 0.0, 0
    flat = reference.reshape(-1)
    for begin in range(0, flat.size, _CHUNK):
        chunk = flat[begin : begin + _CHUNK].astype(np.float64)
        chunk = chunk[np.isfinite(chunk)]
        total += float(np.square(chunk).sum())
        count += chunk.size
    rms = (total / count) ** 0.5 if count else 0.0
    relative = policy.relative_tolerance
    if reference.dtype.itemsize == 2:
        # Sums that agree in float32 may lie on two sides of a rounding border.
        relative = max(relative, float(ml_dtypes.finfo(reference.dtype).eps))
    return policy.absolute_tolerance * max(1.0, rms), relative

"""Timing pairs of runs, and the choice by their ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from ruda_runtime.tune.policy import Policy


@dataclass(frozen=True)
class Measurement:
    """A candidate beside the reference.

    Attributes:
        speedup: median of the paired ratios, reference time over candidate time.
        relative_mad: their median absolute deviation from it, over it.
    """

    speedup: float
    relative_mad: float

    @classmethod
    def of(cls, pairs: list[tuple[int, int]]) -> Measurement:
        """From (reference, candidate) nanoseconds. A clock that stood still counts as 1 ns."""
        ratios = [max(reference, 1) / max(candidate, 1) for reference, candidate in pairs]
        middle = median(ratios)
        return cls(middle, median(abs(ratio - middle) for ratio in ratios) / middle)

    def acceptable(self, policy: Policy) -> bool:
        """Whether it is fast enough, and steady enough to be believed."""
        return (
            self.speedup >= policy.minimum_speedup
            and self.relative_mad <= policy.maximum_relative_mad
        )


def measure_pairs(
    reference: Callable[[], int],
    candidate: Callable[[], int],
    policy: Policy,
    out_of_time: Callable[[], bool],
) -> Measurement | None:
    """Warm both up, then time them alternately; ``None`` where the budget ends before that.

    Both functions run once and give nanoseconds. Alternation lets a change of the machine's speed
    meet both sides of a pair.
    """
    for _ in range(policy.warmups):
        if out_of_time():
            return None
        reference()
        candidate()
    pairs = []
    for _ in range(policy.samples):
        if out_of_time():
            return None
        pairs.append((reference(), candidate()))
    return Measurement.of(pairs)


def choose(reference: str, measured: Mapping[str, Measurement], policy: Policy) -> str:
    """The acceptable candidate with the largest speed-up, the first of equals; or ``reference``."""
    best, speedup = reference, 0.0
    for name, measurement in measured.items():
        if measurement.acceptable(policy) and measurement.speedup > speedup:
            best, speedup = name, measurement.speedup
    return best

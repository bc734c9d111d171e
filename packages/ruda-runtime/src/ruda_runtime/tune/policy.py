"""How tuning measures and decides, and when it may: `Policy` and the modes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ruda_runtime.errors import RudaValueError

MODES = ("explore", "cache_only", "disabled")
"""``explore`` tries candidates where no record fits, ``cache_only`` uses records and tries nothing,
``disabled`` always takes the reference and reads no record."""

TIMINGS = ("end_to_end",)

# What decides which of two records is the better one, or whether one may be used at all.
_NOT_IN_KEY = ("max_records", "max_age_seconds")


@dataclass(frozen=True)
class Policy:
    """The rules of one tuner.

    Attributes:
        timing: ``"end_to_end"``, the only one: a sample is the whole call (allocations, every
            launch, copies) until its work is done. What measures it is the target's timer.
        validate: compare each candidate's numbers with the reference's before it is timed.
        absolute_tolerance, relative_tolerance: an element may differ by
            ``absolute * max(1, rms) + relative * |reference|``, with the RMS of the reference's
            output: the rounding of a sum grows with what is summed, not with the result. For
            float16 and bfloat16 outputs the relative tolerance is at least one rounding of that
            dtype. Integers and booleans must be equal.
        readback_limit: bytes of outputs that validation may copy to the host. Where the reference
            gives more, nothing can be validated, and the reference stays.
        warmups: runs of the reference and of each candidate before their samples.
        samples: pairs (reference, candidate) that are timed; odd.
        max_candidates: the first so many candidates are tried.
        budget_seconds: no pair is begun after that time; a candidate without all its samples is
            not chosen.
        minimum_speedup: the median of the paired ratios reference / candidate must reach it.
        maximum_relative_mad: bound of the ratios' median absolute deviation over their median.
        max_records: in memory, and in the folder on disk; the oldest ones go first.
        max_age_seconds: older records are misses.

    Raises:
        RudaValueError: a value that makes no sense; the text names it.
    """

    timing: str = "end_to_end"
    validate: bool = True
    absolute_tolerance: float = 1e-4
    relative_tolerance: float = 1e-3
    readback_limit: int = 64 * 1024 * 1024
    warmups: int = 2
    samples: int = 7
    max_candidates: int = 32
    budget_seconds: float = 30.0
    minimum_speedup: float = 1.05
    maximum_relative_mad: float = 0.15
    max_records: int = 1024
    max_age_seconds: float = 7 * 24 * 3600.0

    def __post_init__(self) -> None:
        if self.timing not in TIMINGS:
            self._refuse("timing", " or ".join(map(repr, TIMINGS)))
        if not isinstance(self.validate, bool):
            self._refuse("validate", "True or False")
        for name in ("absolute_tolerance", "relative_tolerance", "maximum_relative_mad"):
            self._check_number(name, 0.0)
        for name, least in (("readback_limit", 0), ("warmups", 0), ("samples", 1),
                            ("max_candidates", 1), ("max_records", 1)):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                self._refuse(name, f"a whole number of at least {least}")
        if self.samples % 2 == 0:
            self._refuse("samples", "an odd number, so that the median is one of the samples")
        self._check_number("minimum_speedup", 1.0)
        for name in ("budget_seconds", "max_age_seconds"):
            self._check_number(name, 0.0)

    def key(self) -> dict[str, str | bool | int | float]:
        """The part of the policy that a record must have been made with."""
        return {name: value for name, value in asdict(self).items() if name not in _NOT_IN_KEY}

    def _check_number(self, name: str, least: float) -> None:
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < least:
            self._refuse(name, f"a finite number of at least {least:g}")

    def _refuse(self, name: str, wanted: str) -> None:
        raise RudaValueError(f"[Policy] {name}: got {getattr(self, name)!r}, wanted {wanted}")


def mode_from_environment(environment: Mapping[str, str] | None = None) -> str:
    """The mode that RUDA_AUTOTUNE names; ``explore`` where it is not set.

    Raises:
        RudaValueError: it names none of the three.
    """
    given = os.environ if environment is None else environment
    return check_mode(given.get("RUDA_AUTOTUNE") or MODES[0], "RUDA_AUTOTUNE")


def check_mode(mode: str, name: str) -> str:
    """``mode`` if it is one; an error that names ``name`` and the three otherwise."""
    if mode not in MODES:
        raise RudaValueError(f"[{name}] got {mode!r}, wanted one of: {', '.join(MODES)}")
    return mode

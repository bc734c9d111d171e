"""The exceptions of tuning."""

from __future__ import annotations

from ruda_runtime.errors import RudaRuntimeError


class TuningError(RudaRuntimeError):
    """A candidate failed while it was tried; the cause is the exception's ``__cause__``.

    Nothing was recorded, and no other path was taken in its place.
    """


class WrongNumbersError(TuningError):
    """A candidate computes something else than the reference."""

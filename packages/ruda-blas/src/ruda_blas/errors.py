"""The exceptions of this package.

A family's error is a ``ValueError``; its ``...TypeError`` subclass is raised for a wrong dtype or a
wrong kind of argument and is a ``TypeError`` as well.
"""

from __future__ import annotations

from ruda_runtime.errors import RudaTypeError, RudaValueError


class BlasError(RudaValueError):
    """A wrong argument; the text names it, what it was and what was wanted."""


class BlasTypeError(BlasError, RudaTypeError):
    """A wrong dtype, or something that is no tensor."""


class Nf4Error(BlasError):
    """A wrong argument of an NF4 operation."""


class Nf4TypeError(Nf4Error, BlasTypeError):
    """A wrong dtype given to an NF4 operation."""

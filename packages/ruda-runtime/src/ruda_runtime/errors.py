"""The exceptions of ruda-runtime. The packages above derive theirs from the same base."""

from __future__ import annotations


class RudaError(Exception):
    """Base of every exception that a RUDA package raises on purpose."""


class RudaValueError(RudaError, ValueError):
    """A shape, a size or another value is wrong."""


class RudaTypeError(RudaError, TypeError):
    """A dtype, a device or the type of an argument is wrong."""


class UnsupportedError(RudaError, NotImplementedError):
    """This build has no kernel or feature for what was asked."""


class RudaRuntimeError(RudaError, RuntimeError):
    """A rule of use was broken, or the system refused something."""


class OutOfMemoryError(RudaError, MemoryError):
    """The text names the bytes asked for, what is free and the largest holders.

    The process can go on: free tensors, or ask for less.
    """


class DeviceError(RudaError, RuntimeError):
    """There is no such device or target, or it cannot be used here."""


class AbiMismatch(RudaError, ImportError):
    """Two installed packages do not fit each other; the text has the pip command to repair it."""

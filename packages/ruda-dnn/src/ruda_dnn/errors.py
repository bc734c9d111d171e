"""The exceptions of this package's operators.

Every family has one `...Error` (a ``ValueError``); its `...TypeError` subclass is raised for a
wrong dtype or a wrong kind of argument and is a ``TypeError`` as well.
"""

from __future__ import annotations

from ruda_runtime.errors import RudaTypeError, RudaValueError


class DnnError(RudaValueError):
    """A wrong argument; the text names it, what it was and what was wanted."""


class AttentionError(DnnError):
    """A wrong argument of attention."""


class AttentionTypeError(AttentionError, RudaTypeError):
    """A wrong dtype given to attention."""


class NormalizationError(DnnError):
    """A wrong argument of a normalisation."""


class NormalizationTypeError(NormalizationError, RudaTypeError):
    """A wrong dtype given to a normalisation."""


class ActivationError(DnnError):
    """A wrong argument of a gated activation."""


class ActivationTypeError(ActivationError, RudaTypeError):
    """A wrong dtype given to a gated activation."""


class LossError(DnnError):
    """A wrong argument of a loss."""


class LossTypeError(LossError, RudaTypeError):
    """A wrong dtype given to a loss."""


class RotaryError(DnnError):
    """A wrong argument of the rotary position embedding."""


class RotaryTypeError(RotaryError, RudaTypeError):
    """A wrong dtype given to the rotary position embedding."""


class SoftmaxError(DnnError):
    """A wrong argument of a softmax."""


class SoftmaxTypeError(SoftmaxError, RudaTypeError):
    """A wrong dtype given to a softmax."""


class OptimizerError(DnnError):
    """A wrong argument of an optimiser kernel."""


class OptimizerTypeError(OptimizerError, RudaTypeError):
    """A wrong dtype given to an optimiser kernel."""

"""The gated activation ``silu(gate) * up``. See README.md for the mathematics."""

from __future__ import annotations

from ruda_runtime import Tensor

from .. import _native
from .._tensors import dense, empty_like
from ..errors import ActivationError, ActivationTypeError

__all__ = ["ActivationError", "silu_mul", "silu_mul_backward"]


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """``round(silu(gate)) * up``: SiLU is rounded to storage before the product.

    Args:
        gate, up: one shape and one dtype (float32, float16 or bfloat16); any strides, no
            broadcasting.

    Returns:
        The product in that dtype.

    Raises:
        ActivationError: shapes differ; its TypeError subclass for a wrong dtype.
    """
    gate = dense(gate, "silu_mul", "gate", ActivationTypeError)
    up = dense(up, "silu_mul", "up", ActivationTypeError)
    out = empty_like(gate)
    _native.silu_mul_forward(gate, up, out)
    return out


def silu_mul_backward(
    gate: Tensor, up: Tensor, grad: Tensor, mask: tuple[bool, bool] = (True, True)
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients ``(dgate, dup)`` that ``mask`` asks for; None for the others.

    Raises:
        ActivationError: shapes differ; its TypeError subclass for a wrong dtype.
    """
    operation = "silu_mul_backward"
    gate = dense(gate, operation, "gate", ActivationTypeError)
    up = dense(up, operation, "up", ActivationTypeError)
    grad = dense(grad, operation, "grad", ActivationTypeError)
    dgate = empty_like(gate) if mask[0] else None
    dup = empty_like(gate) if mask[1] else None
    _native.silu_mul_backward(gate, up, grad, dgate, dup)
    return dgate, dup

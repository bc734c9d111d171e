"""AdamW and gradient statistics over many tensors in one launch. See README.md."""

from __future__ import annotations

from collections.abc import Sequence

from ruda_runtime import Tensor

from .. import _native
from ..errors import OptimizerError

__all__ = ["OptimizerError", "adamw_step", "gradient_norm", "unscale_gradients"]


def adamw_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    masters: Sequence[Tensor | None],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    *,
    step: int,
    learning_rate: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    weight_decay: float = 1e-2,
    gradient_scale: float = 1.0,
) -> None:
    """One AdamW update of all parameters, in place.

    Args:
        parameters: float32, float16 or bfloat16, contiguous.
        gradients: shape of the parameter; its dtype or float32, contiguous.
        masters: float32 copies; None where the parameter is float32 and so its own master.
        first_moments, second_moments: float32, zero before the first step.
        step: number of this step, counted from 1.
        gradient_scale: multiplies every gradient on the way in.

    Raises:
        OptimizerError: a wrong shape, number or list length; its TypeError subclass for a wrong
            dtype. Nothing is written.
    """
    _native.adamw_step(
        parameters,
        gradients,
        masters,
        first_moments,
        second_moments,
        step,
        learning_rate,
        betas[0],
        betas[1],
        epsilon,
        weight_decay,
        gradient_scale,
    )


def unscale_gradients(gradients: Sequence[Tensor], scale: float) -> bool:
    """Multiply contiguous gradients by ``scale`` in place; whether every stored value is finite.

    A scale of 1 leaves the memory untouched and only looks.

    Raises:
        OptimizerError: scale is not finite; its TypeError subclass for a wrong dtype.
    """
    return bool(_native.unscale_gradients(gradients, scale))


def gradient_norm(gradients: Sequence[Tensor], scale: float = 1.0) -> tuple[float, bool]:
    """The L2 norm of all gradients times ``scale``, and whether the scaled values are finite.

    Gradients (contiguous) are only read. The sum is float64 in an order that depends on the sizes
    alone, so it is the same for any number of threads.

    Raises:
        OptimizerError: scale is not finite; its TypeError subclass for a wrong dtype.
    """
    norm, finite = _native.gradient_norm(gradients, scale)
    return float(norm), bool(finite)

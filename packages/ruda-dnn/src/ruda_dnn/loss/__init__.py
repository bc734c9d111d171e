"""Cross entropy of a linear head, a chunk of tokens at a time. README.md has the mathematics."""

from __future__ import annotations

from typing import NamedTuple

from ruda_runtime import Tensor, empty

from .. import _native
from .._tensors import dense, dense_or_none, empty_like
from ..errors import LossError, LossTypeError

__all__ = ["LinearCrossEntropy", "LossError", "linear_cross_entropy"]


class LinearCrossEntropy(NamedTuple):
    """The sum over the valid rows, their number, and the gradients that were asked for."""

    loss: Tensor
    """float32, no dimensions."""
    valid_rows: Tensor
    """int64, no dimensions."""
    dhidden: Tensor | None
    """float32 ``[T, H]``; zero in ignored rows."""
    dhead: Tensor | None
    """float32 ``[V, H]``."""
    dbias: Tensor | None
    """float32 ``[V]``."""


def linear_cross_entropy(
    hidden: Tensor,
    head: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    token_chunk: int = 0,
    ignore_index: int = -100,
    gradients: tuple[bool, bool, bool] = (False, False, False),
) -> LinearCrossEntropy:
    """Sum of ``-log softmax(hidden @ head^T + bias)[target]`` over the whole vocabulary.

    The logits of ``token_chunk`` rows exist at a time, never those of all rows; rows whose target
    is ``ignore_index`` cost nothing. Gradients are computed in the same pass.

    Args:
        hidden: ``[T, H]``, float32, float16 or bfloat16; any strides.
        head: ``[V, H]``, one of the three dtypes; any strides.
        target: int64 ``[T]``, each ``ignore_index`` or in ``0..V-1``.
        bias: ``[V]`` or None; -inf removes a class.
        token_chunk: rows of logits at a time; 0: the fewest equal parts of at most 48 MiB.
        gradients: whether the gradients for hidden, head and bias are wanted. Without a bias there
            is no dbias.

    Raises:
        LossError: a wrong shape, or a target outside the vocabulary (its row is named and nothing
            is written); its TypeError subclass for a wrong dtype.
    """
    operation = "linear_cross_entropy"
    hidden = dense(hidden, operation, "hidden", LossTypeError)
    head = dense(head, operation, "head", LossTypeError)
    target = dense(target, operation, "target", LossTypeError)
    bias = dense_or_none(bias, operation, "bias", LossTypeError)
    loss = empty((), "float32")
    count = empty((), "int64")
    dhidden = empty_like(hidden, "float32") if gradients[0] else None
    dhead = empty_like(head, "float32") if gradients[1] else None
    dbias = empty_like(bias, "float32") if gradients[2] and bias is not None else None
    _native.linear_cross_entropy(
        hidden, head, bias, target, loss, count, dhidden, dhead, dbias, token_chunk, ignore_index
    )
    return LinearCrossEntropy(loss, count, dhidden, dhead, dbias)

"""Cross entropy of a linear head in NumPy float64: what the kernel is compared with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class LinearCrossEntropy(NamedTuple):
    loss: float
    valid_rows: int
    dhidden: Array
    dhead: Array
    dbias: Array


def linear_cross_entropy(
    hidden: Array,
    head: Array,
    bias: Array | None,
    target: NDArray[np.int64],
    ignore_index: int,
) -> LinearCrossEntropy:
    """``hidden[T, H]``, ``head[V, H]``, ``bias[V]``, ``target[T]``: the sum and its gradients."""
    valid = np.flatnonzero(target != ignore_index)
    dhidden = np.zeros_like(hidden)
    if valid.size == 0:
        return LinearCrossEntropy(0.0, 0, dhidden, np.zeros_like(head), np.zeros(head.shape[0]))
    with np.errstate(all="ignore"):
        logits = hidden[valid] @ head.T
        if bias is not None:
            logits = logits + bias
        largest = logits.max(axis=1, keepdims=True)
        terms = np.exp(logits - largest)
        sums = terms.sum(axis=1, keepdims=True)
        chosen = logits[np.arange(valid.size), target[valid]]
        loss = float(np.sum(np.log(sums[:, 0]) + largest[:, 0] - chosen))
        delta = terms / sums
        delta[np.arange(valid.size), target[valid]] -= 1.0
        dhidden[valid] = delta @ head
        return LinearCrossEntropy(
            loss, int(valid.size), dhidden, delta.T @ hidden[valid], delta.sum(axis=0)
        )

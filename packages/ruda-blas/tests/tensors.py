"""Tensors from NumPy arrays, for the tests of every target."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

import ruda_runtime as rr
from ruda_runtime import _native


def on_cuda() -> bool:
    """Whether this process's target is cuda."""
    return _native.cuda_chosen()


def tensor(array: np.ndarray | None) -> rr.Tensor | None:
    """``array`` as a tensor: on the host in its own memory where that can be shared; on a GPU a
    copy, with the same strides where those are of a slice (with steps, with axes in any order) of a
    larger array.
    """
    if array is None:
        return None
    axes = sorted(
        (axis for axis, size in enumerate(array.shape) if size > 1),
        key=lambda axis: -array.strides[axis],
    )
    if not on_cuda() or array.size == 0 or not axes or array.strides[axes[-1]] <= 0:
        return rr.Tensor.from_numpy(array)
    steps = [array.strides[axis] // array.itemsize for axis in axes]
    first = _offset(array) % steps[0]
    starts = [0, *(first % outer // inner for outer, inner in pairwise(steps))]
    sizes = [array.shape[axis] for axis in axes]
    extents = [sizes[0], *(outer // inner for outer, inner in pairwise(steps))]
    if any(outer % inner for outer, inner in pairwise(steps)) or any(
        start + size > extent for start, size, extent in zip(starts, sizes, extents)
    ):
        return rr.Tensor.from_numpy(array)

    gap = 0 if array.dtype.kind in "iub" else np.nan
    larger = np.full((*extents, steps[-1]), gap, array.dtype)
    places = [*((start, start + size) for start, size in zip(starts, sizes)), (0, 1)]
    rest = [axis for axis in range(array.ndim) if axis not in axes]
    values = array.transpose([*axes, *rest]).reshape((*sizes, 1))
    larger[tuple(slice(*place) for place in places)] = values
    view = rr.Tensor.from_numpy(larger)
    for axis, (start, stop) in enumerate(places):
        view = view.slice(axis, start, stop)
    order = [axes.index(axis) for axis in sorted(axes)]
    return view.permute([*order, len(axes)]).view(array.shape)


def _offset(array: np.ndarray) -> int:
    """Elements between the first one of its owner's memory and the array's."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return max(array.ctypes.data - owner.ctypes.data, 0) // array.itemsize

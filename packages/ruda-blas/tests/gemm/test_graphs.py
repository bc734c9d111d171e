"""Products in graphs: what a replay computes has the bits of a call."""

from __future__ import annotations

import numpy as np
import pytest

import ruda_runtime as rr
from ruda_blas import gemm, nf4
from ruda_blas.nf4 import Nf4Layout

from ..tensors import on_cuda


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_replays() -> None:
    """A split sum (with scratch memory), a batch and NF4, twice with other numbers."""
    a, b, batch = (rr.empty(shape) for shape in ((5, 1100), (1100, 40), (3, 40, 6)))
    layout = Nf4Layout(40, 64)
    packed, scales = nf4.quantize(rr.Tensor.from_numpy(draw(40, 64)))
    y, z, dx = rr.empty((5, 40)), rr.empty((3, 5, 6)), rr.empty((5, 64))

    def work() -> None:
        gemm.matmul(a, b, y)
        gemm.matmul(y, batch, z)
        nf4.input_grad(y, packed, scales, None, layout, out=dx)
        nf4.matmul(dx, packed, scales, None, layout, out=y)

    results = []
    for seed in (1, 2):
        for each in (a, b, batch):
            each.copy_from(draw(*each.shape, seed=seed))
        work()
        results.append([each.numpy().copy() for each in (y, z, dx)])
    with rr.Graph.capture() as graph:
        work()
    for seed, wanted in zip((1, 2), results):
        for each in (a, b, batch):
            each.copy_from(draw(*each.shape, seed=seed))
        graph.replay()
        for each, right in zip((y, z, dx), wanted):
            assert np.array_equal(each.numpy(), right)
    graph.close()


def test_quantize_cannot_be_captured_on_cuda() -> None:
    """It reads whether a value is NaN or infinite."""
    if not on_cuda():
        pytest.skip("about the cuda target")
    weight = rr.Tensor.from_numpy(draw(4, 64))
    with pytest.raises(RuntimeError, match="captur"), rr.Graph.capture():
        nf4.quantize(weight)
    assert len(nf4.quantize(weight)) == 2

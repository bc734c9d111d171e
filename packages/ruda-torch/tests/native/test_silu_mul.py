"""ruda_torch.silu_mul: values and gradients against float64, with torch's own as peer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ruda_torch
from ruda_dnn.activation import reference
from ruda_runtime.conformance import rounded

from .support import DTYPES, check, name_of, normal, on_ruda, same_bits, values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3,), (2, 7, 153), (64, 1536)])
def test_values_and_gradients(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    gate, up, grad = (normal(*shape, dtype=dtype, seed=seed, scale=2.0) for seed in range(3))
    device_gate, device_up = on_ruda(gate), on_ruda(up)
    out = ruda_torch.silu_mul(device_gate, device_up)
    out.backward(grad.to("ruda"))
    peer_gate, peer_up = gate.clone().requires_grad_(), up.clone().requires_grad_()
    peer = F.silu(peer_gate) * peer_up
    peer.backward(grad)

    def to_storage(silu: np.ndarray) -> np.ndarray:
        return rounded(silu, name_of(dtype))

    wanted = reference.silu_mul(values(gate), values(up), to_storage)
    dgate, dup = reference.silu_mul_backward(values(gate), values(up), values(grad), to_storage)
    check(out, wanted, dtype, peer=peer, name="out")
    check(device_gate.grad, dgate, dtype, peer=peer_gate.grad, name="dgate")
    check(device_up.grad, dup, dtype, peer=peer_up.grad, name="dup")


def test_only_the_wanted_gradient_is_computed() -> None:
    gate, up = (normal(4, 9, dtype=torch.float32, seed=seed) for seed in range(2))
    for trainable in ((True, False), (False, True)):
        tensors = [on_ruda(t, grad) for t, grad in zip((gate, up), trainable)]
        ruda_torch.silu_mul(*tensors).sum().backward()
        assert [t.grad is not None for t in tensors] == list(trainable)


def test_halves_of_one_projection() -> None:
    """gate and up as slices of one tensor: not contiguous."""
    both = normal(5, 40, dtype=torch.bfloat16, seed=0)
    device = on_ruda(both)
    out = ruda_torch.silu_mul(device[:, :20], device[:, 20:])
    dense = ruda_torch.silu_mul(
        on_ruda(both[:, :20].contiguous()), on_ruda(both[:, 20:].contiguous())
    )
    assert same_bits(out, dense)
    out.sum().backward()
    assert device.grad.shape == (5, 40)


def test_errors() -> None:
    gate = torch.ones(2, 3, device="ruda")
    with pytest.raises(ValueError, match=r"up: got shape \[3\], wanted gate's shape \[2, 3\]"):
        ruda_torch.silu_mul(gate, torch.ones(3, device="ruda"))
    with pytest.raises(TypeError, match="up: got dtype float16, wanted float32"):
        ruda_torch.silu_mul(gate, torch.ones(2, 3, dtype=torch.float16, device="ruda"))
    with pytest.raises(RuntimeError, match="same device: got up on cpu"):
        ruda_torch.silu_mul(gate, torch.ones(2, 3))

"""ruda_torch.rms_norm: values and gradients against float64, with torch's own as peer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ruda_torch
from ruda_dnn.normalization import reference

from .support import DTYPES, check, normal, on_ruda, same_bits, values

SHAPES = [(64,), (7, 33), (2, 5, 576), (300, 96)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight, grad = (
        normal(*size, dtype=dtype, seed=seed)
        for seed, size in enumerate((shape, shape[-1:], shape))
    )
    device_x, device_weight = on_ruda(x), on_ruda(weight)
    y = ruda_torch.rms_norm(device_x, device_weight, 1e-5)
    y.backward(grad.to("ruda"))
    peer_x, peer_weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    peer = F.rms_norm(peer_x, shape[-1:], peer_weight, 1e-5)
    peer.backward(grad)
    wanted, _ = reference.rms_norm(values(x), values(weight), 1e-5)
    dx, dweight = reference.rms_norm_backward(values(x), values(weight), values(grad), 1e-5)
    check(y, wanted, dtype, peer=peer, name="y")
    check(device_x.grad, dx, dtype, peer=peer_x.grad, long_reduction=True, name="dx")
    check(device_weight.grad, dweight, dtype, peer=peer_weight.grad, long_reduction=True, name="dw")


@pytest.mark.parametrize("dtype", DTYPES)
def test_float32_weight_and_no_weight(dtype: torch.dtype) -> None:
    x, grad = (normal(6, 40, dtype=dtype, seed=seed) for seed in (1, 2))
    weight = normal(40, dtype=torch.float32, seed=3)
    for given in (weight, None):
        device_x = on_ruda(x)
        device_weight = None if given is None else on_ruda(given)
        y = ruda_torch.rms_norm(device_x, device_weight, 1e-6)
        y.backward(grad.to("ruda"))
        plain = None if given is None else values(given)
        check(y, reference.rms_norm(values(x), plain, 1e-6)[0], dtype)
        dx, dweight = reference.rms_norm_backward(values(x), plain, values(grad), 1e-6)
        check(device_x.grad, dx, dtype, long_reduction=True)
        if device_weight is not None:
            check(device_weight.grad, dweight, torch.float32, long_reduction=True)


def test_default_eps_is_the_dtype_epsilon() -> None:
    x = normal(3, 8, dtype=torch.bfloat16, seed=0, scale=1e-3)
    wanted, _ = reference.rms_norm(values(x), None, torch.finfo(torch.bfloat16).eps)
    check(ruda_torch.rms_norm(on_ruda(x)), wanted, torch.bfloat16)


def test_only_the_wanted_gradient_is_computed() -> None:
    x, weight = normal(5, 16, dtype=torch.float32, seed=0), torch.ones(16)
    frozen = on_ruda(weight, grad=False)
    device_x = on_ruda(x)
    ruda_torch.rms_norm(device_x, frozen, 1e-5).sum().backward()
    assert frozen.grad is None
    assert device_x.grad is not None
    frozen_x, device_weight = on_ruda(x, grad=False), on_ruda(weight)
    ruda_torch.rms_norm(frozen_x, device_weight, 1e-5).sum().backward()
    assert frozen_x.grad is None
    assert device_weight.grad is not None


def test_strided_input_and_expanded_gradient() -> None:
    """`y.sum().backward()` hands over a gradient with stride 0."""
    x = normal(4, 32, dtype=torch.float32, seed=0)
    dense, other = on_ruda(x), on_ruda(x.repeat_interleave(2, dim=1))
    weight = on_ruda(normal(32, dtype=torch.float32, seed=1))
    y = ruda_torch.rms_norm(dense, weight, 1e-5)
    strided = ruda_torch.rms_norm(other[:, ::2], weight, 1e-5)
    assert same_bits(y, strided)
    y.sum().backward()
    strided.sum().backward()
    assert same_bits(dense.grad, other.grad[:, ::2])


def test_statistics_are_not_differentiable() -> None:
    x = on_ruda(normal(4, 32, dtype=torch.float32, seed=0))
    y, rstd = torch.ops.ruda.rms_norm_with_stats(x, None, 1e-5)
    assert y.requires_grad
    assert not rstd.requires_grad
    y.sum().backward()
    assert x.grad is not None


def test_errors() -> None:
    x = on_ruda(normal(4, 32, dtype=torch.float32, seed=0))
    with pytest.raises(ValueError, match=r"weight must have shape \[H\] = \[32\], got \[31\]"):
        ruda_torch.rms_norm(x, torch.ones(31, device="ruda"))
    with pytest.raises(ValueError, match="epsilon: got 0"):
        ruda_torch.rms_norm(x, None, 0.0)
    with pytest.raises(TypeError, match="weight: got dtype float16"):
        ruda_torch.rms_norm(x, torch.ones(32, dtype=torch.float16, device="ruda"))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        ruda_torch.rms_norm(x, torch.ones(32))
    for dtype in (torch.int64, torch.bool, torch.float64):
        for eps in (None, 1e-5):
            with pytest.raises(TypeError, match=r"^\[rms_norm\] x: got dtype"):
                ruda_torch.rms_norm(torch.ones(2, 4, device="ruda").to(dtype), None, eps)
    with pytest.raises(TypeError, match=r"x: got a tensor on cpu"):
        ruda_torch.rms_norm(torch.ones(3, 4), None, 1e-5)

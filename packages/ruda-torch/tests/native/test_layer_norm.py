"""ruda_torch.layer_norm and torch's own LayerNorm on the device, against float64."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ruda_torch
from ruda_dnn.normalization import reference

from .support import DTYPES, check, normal, on_ruda, same_bits, values

SHAPES = [(64,), (7, 33), (2, 5, 576), (300, 96)]


def sample(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """x, weight, bias and the output's gradient."""
    sizes = (shape, shape[-1:], shape[-1:], shape)
    return [normal(*size, dtype=dtype, seed=seed) for seed, size in enumerate(sizes)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("own", [True, False])
def test_values_and_gradients(own: bool, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight, bias, grad = sample(shape, dtype)
    tensors = [on_ruda(t) for t in (x, weight, bias)]
    if own:
        y = ruda_torch.layer_norm(*tensors, 1e-5)
    else:
        y = F.layer_norm(tensors[0], shape[-1:], tensors[1], tensors[2], 1e-5)
    y.backward(grad.to("ruda"))
    peers = [t.clone().requires_grad_() for t in (x, weight, bias)]
    peer = F.layer_norm(peers[0], shape[-1:], peers[1], peers[2], 1e-5)
    peer.backward(grad)
    wanted = reference.layer_norm(values(x), values(weight), values(bias), 1e-5)[0]
    # One row's error is that of one number, the scale's last rounding: nothing to compare.
    rows = len(shape) > 1
    check(y, wanted, dtype, peer=peer if rows else None, name="y")
    gradients = reference.layer_norm_backward(values(x), values(weight), values(grad), 1e-5)
    for tensor, gradient, other, name in zip(tensors, gradients, peers, ("dx", "dw", "db")):
        check(tensor.grad, gradient, dtype, peer=other.grad if rows else None,
              long_reduction=True, name=name)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float32_parameters_beside_16_bit_activations(dtype: torch.dtype) -> None:
    x, _, _, grad = sample((6, 40), dtype)
    _, weight, bias, _ = sample((6, 40), torch.float32)
    results = []
    for run in (
        lambda a, w, b: ruda_torch.layer_norm(a, w, b),
        lambda a, w, b: F.layer_norm(a, (40,), w, b),
    ):
        tensors = [on_ruda(t) for t in (x, weight, bias)]
        y = run(*tensors)
        y.backward(grad.to("ruda"))
        wanted = reference.layer_norm(values(x), values(weight), values(bias), 1e-5)[0]
        check(y, wanted, dtype)
        gradients = reference.layer_norm_backward(values(x), values(weight), values(grad), 1e-5)
        for tensor, gradient in zip(tensors, gradients):
            check(tensor.grad, gradient, tensor.dtype, long_reduction=True)
        results.append([y, *(t.grad for t in tensors)])
    assert all(same_bits(a, b) for a, b in zip(*results))


def test_several_normalised_dimensions() -> None:
    x, weight, bias = (
        normal(*s, dtype=torch.float32, seed=1) for s in ((3, 4, 5, 6), (5, 6), (5, 6))
    )
    tensors = [on_ruda(t) for t in (x, weight, bias)]
    y = F.layer_norm(tensors[0], (5, 6), tensors[1], tensors[2])
    y.square().sum().backward()
    peers = [t.double().requires_grad_() for t in (x, weight, bias)]
    peer = F.layer_norm(peers[0], (5, 6), peers[1], peers[2])
    peer.square().sum().backward()
    check(y, values(peer), x.dtype)
    for tensor, other in zip(tensors, peers):
        assert tensor.grad.shape == other.grad.shape
        check(tensor.grad, values(other.grad), x.dtype, long_reduction=True)


def test_statistics_of_the_aten_operator() -> None:
    x = on_ruda(normal(3, 4, 32, dtype=torch.bfloat16, seed=1), grad=False)
    y, mean, rstd = torch.native_layer_norm(x, (32,), None, None, 1e-5)
    assert mean.shape == rstd.shape == (3, 4, 1)
    assert mean.dtype == rstd.dtype == torch.float32
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = torch.native_layer_norm(mode.from_tensor(x), (32,), None, None, 1e-5)
    for real, fake in zip((y, mean, rstd), fakes):
        assert (real.shape, real.dtype, real.stride()) == (fake.shape, fake.dtype, fake.stride())


@pytest.mark.parametrize(
    ("shape", "dtype", "eps"),
    [((4, 8), torch.float64, 1e-5), ((0, 8), torch.float32, 1e-5), ((4, 8), torch.float32, 0.0)],
)
def test_what_the_kernel_does_not_take(
    shape: tuple[int, ...], dtype: torch.dtype, eps: float
) -> None:
    x, weight, bias, grad = sample(shape, dtype)
    tensors = [on_ruda(t) for t in (x, weight, bias)]
    if x.numel() and torch.ruda.get_device_properties().target == "cuda":  # and ATen has no other
        with pytest.raises((NotImplementedError, ValueError), match=r"cuda|eps"):
            F.layer_norm(tensors[0], shape[-1:], tensors[1], tensors[2], eps)
        return
    y = F.layer_norm(tensors[0], shape[-1:], tensors[1], tensors[2], eps)
    y.backward(grad.to("ruda"))
    peers = [t.clone().requires_grad_() for t in (x, weight, bias)]
    peer = F.layer_norm(peers[0], shape[-1:], peers[1], peers[2], eps)
    peer.backward(grad)
    torch.testing.assert_close(y.cpu(), peer)
    for tensor, other in zip(tensors, peers):
        torch.testing.assert_close(tensor.grad.cpu(), other.grad)


def test_second_derivatives_of_torchs_module() -> None:
    results = []
    for device in ("ruda", "cpu"):
        module = nn.LayerNorm(16).to(device)
        x = normal(5, 16, dtype=torch.float32, seed=2).to(device).requires_grad_()
        (first,) = torch.autograd.grad(module(x).pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        results.append(second.cpu())
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_only_the_wanted_gradients_are_computed() -> None:
    x, weight, bias, _ = sample((5, 16), torch.float32)
    for wanted in ((True, False, False), (False, True, False), (False, False, True)):
        tensors = [on_ruda(t, grad) for t, grad in zip((x, weight, bias), wanted)]
        ruda_torch.layer_norm(*tensors).sum().backward()
        assert [t.grad is not None for t in tensors] == list(wanted)


def test_strided_input_and_expanded_gradient() -> None:
    x = normal(4, 32, dtype=torch.float32, seed=0)
    dense, other = on_ruda(x), on_ruda(x.repeat_interleave(2, dim=1))
    weight = on_ruda(normal(32, dtype=torch.float32, seed=1))
    y = ruda_torch.layer_norm(dense, weight, weight)
    strided = ruda_torch.layer_norm(other[:, ::2], weight, weight)
    assert same_bits(y, strided)
    y.sum().backward()
    strided.sum().backward()
    assert same_bits(dense.grad, other.grad[:, ::2])


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_activation_dtype(low: torch.dtype) -> None:
    for dtype in (torch.float32, low):
        x = on_ruda(normal(3, 16, dtype=dtype, seed=0))
        weight, bias = (on_ruda(normal(16, dtype=torch.bfloat16, seed=s)) for s in (1, 2))
        with torch.autocast("ruda", dtype=low):
            y = ruda_torch.layer_norm(x, weight, bias)
        plain = [t if dtype == torch.bfloat16 else t.float() for t in (weight, bias)]
        assert y.dtype == dtype
        assert same_bits(y, ruda_torch.layer_norm(x, *plain))


def test_module() -> None:
    module = ruda_torch.LayerNorm(24, eps=1e-6)
    assert (module.weight.dtype, module.bias.dtype) == (torch.float32, torch.float32)
    with torch.no_grad():
        module.weight.copy_(normal(24, dtype=torch.float32, seed=1))
        module.bias.copy_(normal(24, dtype=torch.float32, seed=2))
    module.to("ruda")
    x = on_ruda(normal(3, 24, dtype=torch.bfloat16, seed=3))
    y = module(x)
    assert same_bits(y, ruda_torch.layer_norm(x, module.weight, module.bias, 1e-6))
    y.float().sum().backward()
    assert module.weight.grad.dtype == module.bias.grad.dtype == torch.float32
    assert list(module.state_dict()) == ["weight", "bias"]
    assert repr(module) == "LayerNorm(24, eps=1e-06, elementwise_affine=True, bias=True)"
    assert copy.deepcopy(module).weight.device.type == "ruda"
    module.reset_parameters()
    assert module.weight.eq(1).all() and module.bias.eq(0).all()
    assert ruda_torch.LayerNorm(8, bias=False).bias is None
    assert not list(ruda_torch.LayerNorm(8, elementwise_affine=False).parameters())


def test_errors() -> None:
    x = torch.ones(2, 8, device="ruda")
    with pytest.raises(ValueError, match=r"weight must have shape \[H\] = \[8\], got \[7\]"):
        ruda_torch.layer_norm(x, torch.ones(7, device="ruda"))
    with pytest.raises(ValueError, match=r"bias must have shape \[H\] = \[8\], got \[1, 8\]"):
        ruda_torch.layer_norm(x, None, torch.ones(1, 8, device="ruda"))
    with pytest.raises(ValueError, match="epsilon: got 0"):
        ruda_torch.layer_norm(x, None, None, 0.0)
    with pytest.raises(TypeError, match="weight: got dtype float16"):
        ruda_torch.layer_norm(x, torch.ones(8, dtype=torch.float16, device="ruda"))
    with pytest.raises(RuntimeError, match="same device: got weight on cpu"):
        ruda_torch.layer_norm(x, torch.ones(8))
    with pytest.raises(TypeError, match="x: got a tensor on cpu"):
        ruda_torch.layer_norm(torch.ones(2, 8))
    with pytest.raises(ValueError, match="width: got 0"):
        ruda_torch.LayerNorm(0)
    with pytest.raises(ValueError, match="eps: got 0"):
        ruda_torch.LayerNorm(8, eps=0.0)
    with pytest.raises(ValueError, match=r"x: got shape \[2, 7\], wanted \[\.\.\., 8\]"):
        ruda_torch.LayerNorm(8, device="ruda")(torch.ones(2, 7, device="ruda"))
    with pytest.raises(RuntimeError, match="normalized_shape"):
        F.layer_norm(x, (7,))

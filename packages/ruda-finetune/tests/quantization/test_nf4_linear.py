"""The NF4 layer: product, gradient, dtypes, state, copies."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from ruda_finetune import NF4Linear, QuantizationError

LIMIT = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 8e-3}
SHAPES = [(48, 64), (33, 65), (1, 7), (130, 40)]  # [out, in]


def make(out, inputs, bias=True, block=64, dtype=torch.float32):
    torch.manual_seed(out * 1000 + inputs)
    return NF4Linear.from_linear(torch.nn.Linear(inputs, out, bias=bias).to(dtype), block)


def close(got, wanted, limit):
    error = got.detach().cpu().double() - wanted
    scale = wanted.square().mean().sqrt()
    assert torch.isfinite(error).all()
    assert error.square().mean().sqrt() <= limit * scale
    assert error.abs().max() <= 50 * limit * scale


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("out, inputs", SHAPES)
def test_output_and_gradient(out, inputs, bias, dtype, device):
    layer = make(out, inputs, bias)
    weight = layer.dequantize().double()
    offset = layer.bias.detach().to(dtype).double() if bias else torch.zeros(out)
    x = torch.randn(2, 5, inputs).to(dtype)
    grad = torch.randn(2, 5, out).to(dtype)
    layer.to(device)
    moved = x.to(device).requires_grad_()
    y = layer(moved)
    assert y.dtype == dtype
    assert y.shape == (2, 5, out)
    close(y, x.double() @ weight.T + offset, LIMIT[dtype])
    y.backward(grad.to(device))
    assert moved.grad.dtype == dtype
    close(moved.grad, grad.double() @ weight, LIMIT[dtype])
    if bias:
        close(layer.bias.grad, grad.double().sum((0, 1)), 3 * LIMIT[dtype])


def test_frozen_bias(device):
    layer = make(33, 65).to(device).requires_grad_(False)
    x = torch.randn(4, 65)
    wanted = x.double() @ layer.dequantize().cpu().double().T + layer.bias.cpu().double()
    close(layer(x.to(device)), wanted, LIMIT[torch.float32])


def test_the_activation_decides_the_dtype(device):
    """The layer's stored dtype (that of the weight it was made from) plays no part."""
    layer = make(16, 64, dtype=torch.bfloat16).to(device)
    assert layer.bias.dtype == torch.bfloat16
    weight = layer.dequantize().cpu().double()
    for dtype, limit in LIMIT.items():
        x = torch.randn(3, 64).to(dtype)
        y = layer(x.to(device))
        assert y.dtype == dtype
        close(y, x.double() @ weight.T + layer.bias.detach().cpu().double(), limit)


@pytest.mark.parametrize("shape", [(0, 64), (64,), (1, 1, 2, 64), (2, 0, 64)])
def test_leading_dimensions(shape, device):
    layer = make(8, 64).to(device)
    assert layer(torch.ones(shape, device=device)).shape == (*shape[:-1], 8)


def test_strided_input_and_gradient(device):
    layer = make(8, 64, bias=False).to(device)
    weight = layer.dequantize().cpu().double()
    x = torch.randn(64, 6)
    moved = x.to(device).requires_grad_()
    layer(moved.t()).sum().backward()  # the gradient of sum() has stride 0
    close(moved.grad, weight.sum(0)[:, None].expand(64, 6), LIMIT[torch.float32])


def test_no_gradient_goes_to_the_weight():
    layer = make(8, 64)
    assert [name for name, _ in layer.named_parameters()] == ["bias"]
    x = torch.randn(2, 64, requires_grad=True)
    (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()  # first order only


def test_nothing_dense_is_kept(device):
    layer = make(128, 128, bias=False).to(device)
    x = torch.randn(4, 128, device=device, requires_grad=True)
    saved = []

    def keep(tensor):
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = layer(x)
    y.sum().backward()
    held = sum(t.numel() * t.element_size() for t in layer.state_dict().values())
    assert held == 128 * 128 // 2 + 128 * 128 // 64 * 4
    assert all(count < 128 * 128 for count in saved)


@pytest.mark.parametrize(
    "cast",
    [
        lambda m: m.half(),
        lambda m: m.to(torch.bfloat16),
        lambda m: m.double(),
        lambda m: m.to("cpu", torch.float16),
    ],
)
def test_scales_stay_float32(cast):
    layer = make(8, 64)
    scales, codebook = layer.scales.clone(), layer.codebook.clone()
    cast(layer)
    assert layer.scales.dtype == layer.codebook.dtype == torch.float32
    assert torch.equal(layer.scales, scales)  # not rounded on the way
    assert torch.equal(layer.codebook, codebook)
    assert layer.packed.dtype == torch.uint8
    assert layer.bias.dtype != torch.float32
    parent = torch.nn.Sequential(make(8, 64)).to(torch.bfloat16)
    assert parent[0].scales.dtype == torch.float32


def test_moving_with_a_cast_keeps_scales_exact():
    import ruda_torch  # noqa: F401 - registers the device

    layer = make(8, 64)
    scales = layer.scales.clone()
    layer.to("ruda:0", torch.bfloat16)
    assert layer.scales.device.type == layer.codebook.device.type == "ruda"
    assert layer.scales.dtype == torch.float32
    assert torch.equal(layer.scales.cpu(), scales)


def test_state_dict_round_trip():
    layer = make(8, 65)
    state = layer.state_dict()
    assert list(state) == ["bias", "packed", "scales"]
    other = NF4Linear(
        65, 8, torch.zeros_like(layer.packed), torch.zeros_like(layer.scales), bias=torch.zeros(8)
    )
    other.load_state_dict(state)
    x = torch.randn(3, 65)
    assert torch.equal(other(x), layer(x))


def test_meta_layer_gets_its_codebook_back():
    layer = make(8, 64).to("meta")
    state = make(8, 64).state_dict()
    layer.to_empty(device="cpu").load_state_dict(state)
    x = torch.randn(2, 64)
    assert torch.equal(layer(x), make(8, 64)(x))


def test_copies_and_pickles(device):
    layer = make(8, 64).to(device)
    x = torch.randn(2, 64, device=device)
    wanted = layer(x).cpu()
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x).cpu(), wanted)
        assert other.packed.data_ptr() != layer.packed.data_ptr()


def test_repr_names_the_layout():
    text = repr(make(8, 64, block=128))
    assert text == (
        "NF4Linear(in_features=64, out_features=8, bias=True, block_size=128, tile_rows=128)"
    )


def test_dequantize_dtype_and_odd_counts(device):
    layer = make(33, 65, bias=False).to(device)
    dense = layer.dequantize(torch.bfloat16)
    assert dense.device.type == device.type
    assert dense.dtype == torch.bfloat16
    assert torch.equal(dense.cpu(), layer.dequantize().cpu().to(torch.bfloat16))


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"in_features": 0}, "in_features"),
        ({"tile_rows": 0}, "tile_rows"),
        ({"block_size": 7}, "block_size"),
        ({"packed": torch.zeros(255, dtype=torch.uint8)}, r"packed must be .*\[256\]"),
        ({"packed": torch.zeros(256)}, "packed must be .*uint8"),
        ({"scales": torch.zeros(8, dtype=torch.float16)}, "scales must be .*float32"),
        ({"scales": torch.zeros(9)}, r"scales must be .*\[8\]"),
        ({"bias": torch.zeros(9)}, "bias"),
    ],
)
def test_bad_arguments(changes, text):
    arguments = {
        "in_features": 64,
        "out_features": 8,
        "packed": torch.zeros(256, dtype=torch.uint8),
        "scales": torch.zeros(8),
        **changes,
    }
    with pytest.raises(QuantizationError, match=text):
        NF4Linear(**arguments)


def test_wrong_input_width():
    with pytest.raises(QuantizationError, match="64 features"):
        make(8, 64)(torch.ones(2, 65))

"""The adapter layer against its formula in float64, over dense and NF4 bases."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from ruda_finetune import LoRALinear, NF4Linear

LIMIT = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 8e-3}


def make(base="nf4", rank=4, **options):
    torch.manual_seed(7)
    dense = nn.Linear(65, 33)
    layer = LoRALinear(
        NF4Linear.from_linear(dense) if base == "nf4" else dense, rank, 8.0, **options
    )
    with torch.no_grad():
        layer.lora_B.normal_(std=0.2)
    return layer


def dense_weight(layer):
    base = layer.base_layer
    weight = base.dequantize() if isinstance(base, NF4Linear) else base.weight
    return weight.detach().cpu().double()


def close(got, wanted, limit):
    error = got.detach().cpu().double() - wanted.detach()
    scale = wanted.detach().square().mean().sqrt()
    assert torch.isfinite(error).all()
    assert error.square().mean().sqrt() <= limit * scale
    assert error.abs().max() <= 50 * limit * scale


def formula(layer, x, grad):
    """Output and gradients of x, A and B, float64."""
    x = x.double().requires_grad_()
    down = layer.lora_A.detach().cpu().double().requires_grad_()
    up = layer.lora_B.detach().cpu().double().requires_grad_()
    y = x @ dense_weight(layer).T + layer.base_layer.bias.detach().cpu().to(grad.dtype).double()
    y = y + layer.scaling * (x @ down.T) @ up.T
    y.backward(grad.double())
    return y, x.grad, down.grad, up.grad


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("base", ["nf4", "dense"])
def test_output_and_gradients(base, dtype, device):
    layer = make(base)
    if base == "dense":
        layer.base_layer.to(dtype)
    torch.manual_seed(1)
    x, grad = torch.randn(2, 9, 65).to(dtype), torch.randn(2, 9, 33).to(dtype)
    wanted = formula(layer, x, grad)
    layer.to(device)
    layer.base_layer.requires_grad_(False)
    moved = x.to(device).requires_grad_()
    y = layer(moved)
    assert y.dtype == dtype
    y.backward(grad.to(device))
    limit = LIMIT[dtype]
    close(y, wanted[0], limit)
    close(moved.grad, wanted[1], limit)
    close(layer.lora_A.grad, wanted[2], 3 * limit)
    close(layer.lora_B.grad, wanted[3], 3 * limit)
    assert layer.lora_A.grad.dtype == layer.lora_B.grad.dtype == torch.float32


def test_half_precision_step_is_finite(device):
    """The trainable weights are float32, so a float16 step works with a loss scale."""
    layer = make("nf4").to(device)
    optimizer = torch.optim.SGD([layer.lora_A, layer.lora_B], lr=0.1)
    x = torch.randn(4, 65, dtype=torch.float16, device=device)
    before = layer.lora_A.detach().clone()
    (layer(x).float().square().mean() * 1024).backward()
    for parameter in (layer.lora_A, layer.lora_B):
        parameter.grad.div_(1024)
    optimizer.step()
    assert layer.lora_A.dtype == torch.float32
    assert torch.isfinite(layer.lora_A).all()
    assert not torch.equal(layer.lora_A, before)


def test_start_is_the_base_and_peft_initialisation():
    torch.manual_seed(7)
    base = nn.Linear(65, 33)
    layer = LoRALinear(base, 8, 16.0)
    x = torch.randn(3, 65)
    assert torch.equal(layer(x), base(x))
    assert layer.lora_A.shape == (8, 65)
    assert layer.lora_B.shape == (33, 8)
    assert (layer.lora_B == 0).all()
    bound = 1 / math.sqrt(65)  # kaiming_uniform_ with a = sqrt(5): sqrt(6 / ((1 + 5) * fan_in))
    assert layer.lora_A.abs().max() <= bound
    assert layer.lora_A.abs().max() > 0.95 * bound
    assert layer.lora_A.detach().std() == pytest.approx(bound / math.sqrt(3), rel=0.1)


def test_a_seed_gives_the_same_adapter_on_every_device(device):
    base = nn.Linear(65, 33)
    torch.manual_seed(7)
    wanted = LoRALinear(base).lora_A
    torch.manual_seed(7)
    layer = LoRALinear(copy.deepcopy(base).to(device))
    assert layer.lora_A.device.type == device.type
    assert torch.equal(layer.lora_A.cpu(), wanted)


def test_scaling():
    base = nn.Linear(8, 8)
    assert LoRALinear(base, 16, 32.0).scaling == 2.0
    assert LoRALinear(base, 16, 32.0, use_rslora=True).scaling == 8.0


def test_dropout_only_touches_the_update_in_training():
    layer = make("dense", dropout=0.5)
    x = torch.randn(400, 65)
    layer.eval()
    wanted = layer(x)
    assert torch.equal(layer(x), wanted)
    layer.train()
    torch.manual_seed(5)
    got = layer(x)
    torch.manual_seed(5)
    kept = nn.functional.dropout(x, 0.5)
    update = layer.scaling * kept @ layer.lora_A.T @ layer.lora_B.T
    torch.testing.assert_close(got, layer.base_layer(x) + update)
    assert not torch.allclose(got, wanted)


def test_adapter_dtype():
    layer = make("nf4", adapter_dtype=torch.bfloat16)
    assert layer.lora_A.dtype == layer.lora_B.dtype == torch.bfloat16
    assert layer(torch.randn(2, 65)).dtype == torch.float32


def test_autocast(device):
    layer = make("dense").to(device)
    layer.base_layer.requires_grad_(False)
    x = torch.randn(2, 65, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    close(y, layer(x).detach().cpu().double(), 1.5e-2)
    y.float().sum().backward()
    assert layer.lora_A.grad.dtype == torch.float32


@pytest.mark.parametrize("shape", [(0, 65), (65,), (2, 1, 3, 65)])
def test_leading_dimensions(shape, device):
    assert make().to(device)(torch.ones(shape, device=device)).shape == (*shape[:-1], 33)


def test_copies_pickles_and_repr():
    layer = make()
    x = torch.randn(2, 65)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))
    assert "rank=4, alpha=8, dropout=0, use_rslora=False, dtype=torch.float32" in repr(layer)


def test_a_hook_on_the_base_sees_its_own_result(device):
    layer = make("dense").to(device)
    seen = []
    layer.base_layer.register_forward_hook(lambda module, args, result: seen.append(result))
    x = torch.randn(2, 65, device=device)
    y = layer(x)
    wanted = torch.nn.functional.linear(x, layer.base_layer.weight, layer.base_layer.bias)
    assert torch.equal(seen[0].cpu(), wanted.cpu())
    assert not torch.allclose(y.cpu(), wanted.cpu())


def test_base_must_be_linear():
    with pytest.raises(TypeError, match="LayerNorm"):
        LoRALinear(nn.LayerNorm(4))

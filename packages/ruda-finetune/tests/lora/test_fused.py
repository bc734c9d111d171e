"""Layers that run as one autograd function: same values and gradients, less that is kept."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import ruda_torch  # noqa: F401 - registers the device
from ruda_finetune import LoRALinear, NF4Linear
from ruda_finetune.lora.fused import can_fuse, gated_down, project, remember_norm

IN, OUT = 96, 40
LIMIT = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 8e-3}


def layer(width: int, features: int, seed: int, **options) -> LoRALinear:
    torch.manual_seed(seed)
    bias = options.pop("bias", False)
    dense = nn.Linear(features, width, bias=bias)
    made = LoRALinear(NF4Linear.from_linear(dense), 4, 8.0, **options)
    with torch.no_grad():
        made.lora_B.normal_(std=0.2)
    made.base_layer.requires_grad_(False)
    return made.to("ruda:0")


def rows(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to("ruda:0")


def in_float64(made: LoRALinear, x: torch.Tensor) -> torch.Tensor:
    base = made.base_layer
    weight = base.dequantize().cpu().double()
    y = x @ (weight + made.scaling * made.lora_B.cpu().double() @ made.lora_A.cpu().double()).T
    return y if base.bias is None else y + base.bias.detach().cpu().double()


def close(got: torch.Tensor, wanted: torch.Tensor, limit: float) -> None:
    got, wanted = got.detach().cpu().double(), wanted.detach().double()
    assert got.shape == wanted.shape
    error, scale = got - wanted, wanted.square().mean().sqrt()
    assert error.square().mean().sqrt() <= limit * scale
    assert error.abs().max() <= 50 * limit * scale


def gradients(layers: list[LoRALinear]) -> list[torch.Tensor]:
    found = [value.grad for made in layers for value in (made.lora_A, made.lora_B)]
    for made in layers:
        made.lora_A.grad = made.lora_B.grad = None
    return found


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("normed", [False, True])
def test_projections_of_one_input(dtype: torch.dtype, normed: bool) -> None:
    layers = [layer(OUT, IN, 3), layer(24, IN, 4, bias=True), layer(OUT, IN, 5)]
    source = rows(2, 7, IN, dtype=dtype).requires_grad_()
    weight = 1 + 0.1 * rows(IN, seed=2)
    wide = source.detach().cpu().double().requires_grad_()
    if normed:
        x = torch.ops.ruda.rms_norm(source, weight, 1e-5)
        remember_norm(x, source, weight, 1e-5)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        wide_x = wide * scale * weight.cpu().double()
    else:
        x, wide_x = source, wide
    assert can_fuse(x, layers)
    outputs = project(x, layers)
    upstream = [rows(*y.shape, seed=9 + i, dtype=dtype) for i, y in enumerate(outputs)]
    torch.autograd.backward(outputs, upstream)
    got = gradients(layers)
    wanted = [in_float64(made, wide_x) for made in layers]
    torch.autograd.backward(wanted, [part.cpu().double() for part in upstream])
    wanted_gradients = [value.cpu() for value in gradients(layers)]
    for mine, other in zip(outputs, wanted):
        close(mine, other, 2 * LIMIT[dtype])  # of the norm and of the product
    close(source.grad, wide.grad, 3 * LIMIT[dtype])
    for mine, other in zip(got, wanted_gradients):
        assert mine.dtype == torch.float32
        close(mine, other, 3 * LIMIT[dtype])


def test_an_unused_output_and_a_frozen_input() -> None:
    layers = [layer(OUT, IN, 3), layer(24, IN, 4)]
    layers[0].lora_A.requires_grad_(False)
    x = rows(5, IN)
    first, _ = project(x, layers)
    first.sum().backward()
    got = gradients(layers)
    assert got[0] is None and got[2] is None and got[3] is None
    layers[0](x).sum().backward()
    assert torch.equal(gradients(layers)[1].cpu(), got[1].cpu())


def test_a_changed_input_is_kept_itself() -> None:
    source, weight = rows(5, IN).requires_grad_(), torch.ones(IN, device="ruda:0")
    made = layer(OUT, IN, 3)
    x = torch.ops.ruda.rms_norm(source, weight, 1e-5)
    remember_norm(x, source, weight, 1e-5)
    x.mul_(2)
    (y,) = project(x, [made])
    y.sum().backward()
    (got, _) = gradients([made])
    made(x.detach()).sum().backward()
    assert torch.equal(got.cpu(), gradients([made])[0].cpu())


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = layer(64, IN, 6), layer(64, IN, 7)
        self.down = layer(IN, 64, 8)

    def parts(self) -> list[LoRALinear]:
        return [self.gate, self.up, self.down]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = project(x, [self.gate, self.up])
        y = gated_down(gate, up, self.down)
        assert y is not None
        return y


@pytest.mark.parametrize("dtype", LIMIT)
def test_gated_down(dtype: torch.dtype) -> None:
    mlp, x = MLP(), rows(2, 7, IN, dtype=dtype).requires_grad_()
    upstream = rows(2, 7, IN, seed=3, dtype=dtype)
    y = mlp(x)
    y.backward(upstream)
    got = gradients(mlp.parts())
    wide = x.detach().cpu().double().requires_grad_()
    gate, up = in_float64(mlp.gate, wide), in_float64(mlp.up, wide)
    wanted = in_float64(mlp.down, F.silu(gate) * up)
    wanted.backward(upstream.cpu().double())
    close(y, wanted, 3 * LIMIT[dtype])
    close(x.grad, wide.grad, 3 * LIMIT[dtype])
    for mine, other in zip(got, gradients(mlp.parts())):
        close(mine, other.cpu(), 3 * LIMIT[dtype])


def test_a_second_backward_gives_the_same() -> None:
    mlp, x = MLP(), rows(5, IN).requires_grad_()
    y = mlp(x)
    y.sum().backward(retain_graph=True)
    first, dx = gradients(mlp.parts()), x.grad
    x.grad = None
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), dx.cpu())
    for mine, other in zip(gradients(mlp.parts()), first):
        assert torch.equal(mine.cpu(), other.cpu())


def test_checkpointing_leaves_the_down_product_out() -> None:
    mlp, x = MLP(), rows(5, IN).requires_grad_()
    mlp(x).sum().backward()
    wanted, dx = gradients(mlp.parts()), x.grad
    x.grad = None
    y = checkpoint(mlp, x, use_reentrant=False)
    with torch.profiler.profile() as profile:
        y.sum().backward()
    assert torch.equal(x.grad.cpu(), dx.cpu())
    for mine, other in zip(gradients(mlp.parts()), wanted):
        assert torch.equal(mine.cpu(), other.cpu())
    calls = {entry.key: entry.count for entry in profile.key_averages()}
    assert calls["ruda::nf4_lora_linear_backward"] == 3
    assert calls["ruda::nf4_lora_linear_from_low"] == 2  # gate and up, not down


def test_what_is_kept() -> None:
    """gate, up and the low-rank images; not the normalised input, nor silu(gate) * up."""
    mlp, source, weight = MLP(), rows(50, IN).requires_grad_(), torch.ones(IN, device="ruda:0")
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        x = torch.ops.ruda.rms_norm(source, weight, 1e-5)
        remember_norm(x, source, weight, 1e-5)
        mlp(x)
    own = {value.untyped_storage().data_ptr() for value in (*mlp.parameters(), *mlp.buffers())}
    own |= {source.untyped_storage().data_ptr(), weight.untyped_storage().data_ptr()}
    count = sum(size for pointer, size in kept.items() if pointer not in own)
    assert count <= 50 * 4 * (2 * 64 + 3 * 4 + 1) + 4096  # + rstd, and the allocator's rounding


def test_what_does_not_fuse() -> None:
    x = rows(5, IN).requires_grad_()
    plain = layer(OUT, IN, 3)
    assert can_fuse(x, [plain])
    with torch.no_grad():
        assert not can_fuse(x, [plain])
    with torch.autocast("ruda", torch.bfloat16):
        assert not can_fuse(x, [plain])
        (y,) = project(x, [plain])
        assert y.dtype == torch.bfloat16
    assert not can_fuse(x.cpu(), [plain])
    dropping = layer(OUT, IN, 3, dropout=0.5)
    assert not can_fuse(x, [dropping])
    assert can_fuse(x, [dropping.eval()])
    hooked = copy.deepcopy(plain)
    hooked.base_layer.register_forward_hook(lambda module, args, result: result * 2)
    assert not can_fuse(x, [hooked])
    (y,) = project(x, [hooked])
    assert not torch.allclose(y.cpu(), plain(x).cpu())
    trained = layer(OUT, IN, 3, bias=True)
    trained.base_layer.bias.requires_grad_(True)
    assert not can_fuse(x, [trained])
    project(x, [trained])[0].sum().backward()
    assert trained.base_layer.bias.grad is not None
    assert not can_fuse(x, [nn.Linear(IN, OUT).to("ruda:0")])

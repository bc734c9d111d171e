"""Every native operation is a dispatcher operator: opcheck, registrations, modes, first order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import ruda_torch

from .support import normal, on_ruda, same_bits

# test_autograd_registration knows CPU, CUDA and XPU only: the registrations are checked below.
CHECKS = ["test_schema", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic"]
DIFFERENTIABLE = [
    "rms_norm",
    "rms_norm_with_stats",
    "layer_norm",
    "layer_norm_with_stats",
    "silu_mul",
    "rotary",
    "nf4_linear",
    "nf4_lora_linear",
    "linear_cross_entropy",
]
OTHERS = [
    "rms_norm_backward",
    "layer_norm_backward",
    "silu_mul_backward",
    "rotary_backward",
    "nf4_linear_input_grad",
    "lora_low",
    "nf4_lora_linear_from_low",
    "nf4_lora_linear_backward",
    "linear_cross_entropy_with_gradients",
    "adamw_step_",
    "unscale_gradients_",
    "gradient_norm",
]
OPS = torch.ops.ruda


def f32(*shape: int, seed: int = 0) -> Tensor:
    return on_ruda(normal(*shape, dtype=torch.float32, seed=seed))


def nf4() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    packed = torch.randint(0, 256, (48 * 64 // 2,), dtype=torch.uint8, generator=generator)
    scales, codebook = torch.rand(48, generator=generator), torch.linspace(-1, 1, 16)
    return tuple(tensor.to("ruda") for tensor in (packed, scales, codebook))


def tables() -> tuple[Tensor, Tensor]:
    return f32(1, 5, 8, seed=7).detach(), f32(1, 5, 8, seed=8).detach()


def target() -> Tensor:
    return torch.tensor([1, 2, -100, 32, 0]).to("ruda")


def rstd() -> Tensor:
    return OPS.rms_norm_with_stats(f32(5, 64).detach(), None, 1e-5)[1]


def calls() -> dict[str, tuple[str, tuple]]:
    x, frozen = f32(5, 64), f32(5, 64, seed=1).detach()
    weight, head, bias = f32(64), f32(33, 64), f32(33)
    return {
        "rms_norm": ("rms_norm", (x, weight, 1e-5)),
        "rms_norm_plain": ("rms_norm", (frozen, None, 1e-5)),
        "rms_norm_with_stats": ("rms_norm_with_stats", (x, weight, 1e-5)),
        "rms_norm_backward": (
            "rms_norm_backward",
            (frozen, x.detach(), weight.detach(), rstd(), [True, True]),
        ),
        "rms_norm_backward_x": ("rms_norm_backward", (frozen, frozen, None, rstd(), [True, False])),
        "layer_norm": ("layer_norm", (x, weight, f32(64, seed=4), 1e-5)),
        "layer_norm_plain": ("layer_norm", (frozen, None, None, 1e-5)),
        "layer_norm_with_stats": ("layer_norm_with_stats", (x, weight, None, 1e-5)),
        "layer_norm_backward": (
            "layer_norm_backward",
            (frozen, frozen, rstd(), rstd(), weight.detach(), weight.detach(), [True, True, True]),
        ),
        "layer_norm_backward_x": (
            "layer_norm_backward",
            (frozen, frozen, rstd(), rstd(), None, None, [True, False, False]),
        ),
        "silu_mul": ("silu_mul", (x, f32(5, 64, seed=3))),
        "silu_mul_frozen_up": ("silu_mul", (x, frozen)),
        "silu_mul_backward": ("silu_mul_backward", (frozen, frozen, frozen, [False, True])),
        "rotary": ("rotary", (f32(2, 5, 3, 8), *tables())),
        "rotary_of_a_slice": ("rotary", (f32(2, 3, 5, 20).transpose(1, 2)[..., 4:12], *tables())),
        "rotary_backward": ("rotary_backward", (f32(2, 5, 3, 8).detach(), *tables())),
        "nf4_linear": ("nf4_linear", (x, *nf4(), bias.detach()[:0].new_zeros(48), 48, 64, 64, 16)),
        "nf4_linear_input_grad": (
            "nf4_linear_input_grad",
            (f32(5, 48).detach(), *nf4(), 48, 64, 64, 16),
        ),
        "nf4_lora_linear": (
            "nf4_lora_linear",
            (x, *nf4(), None, f32(4, 64), f32(48, 4), 0.5, *(48, 64, 64, 16)),
        ),
        "lora_low": ("lora_low", (frozen, f32(4, 64).detach(), 0.5)),
        "nf4_lora_linear_from_low": (
            "nf4_lora_linear_from_low",
            (frozen, f32(5, 4).detach(), *nf4(), None, f32(48, 4).detach(), 48, 64, 64, 16),
        ),
        "nf4_lora_linear_backward": (
            "nf4_lora_linear_backward",
            (
                *(f32(5, 48).detach(), frozen, f32(5, 4).detach(), *nf4(), f32(4, 64).detach()),
                *(f32(48, 4).detach(), 0.5, 48, 64, 64, 16, [True, False, True]),
            ),
        ),
        "linear_cross_entropy": ("linear_cross_entropy", (x, head, bias, target(), 2, -100)),
        "linear_cross_entropy_frozen_head": (
            "linear_cross_entropy",
            (x, head.detach(), None, target(), 0, -100),
        ),
        "linear_cross_entropy_with_gradients": (
            "linear_cross_entropy_with_gradients",
            (frozen, head.detach(), None, target(), 0, -100, [True, False, False]),
        ),
        "adamw_step_": (
            "adamw_step_",
            (
                *([frozen.clone()], [frozen], [frozen.clone()], [frozen.clone()]),
                *([frozen.square()], 1, 1e-3, 0.9, 0.99, 1e-8, 0.1, 1.0),
            ),
        ),
        "unscale_gradients_": ("unscale_gradients_", ([frozen.clone(), frozen.clone()], 0.5)),
        "gradient_norm": ("gradient_norm", ([frozen, frozen], 0.5)),
    }


@pytest.mark.parametrize("name", list(calls()))
def test_opcheck(name: str) -> None:
    operator, arguments = calls()[name]
    results = opcheck(getattr(OPS, operator).default, arguments, test_utils=CHECKS)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", DIFFERENTIABLE + OTHERS)
def test_kernels_are_registered(name: str) -> None:
    operator = f"ruda::{name}"
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for key in ("PrivateUse1", "Meta", "Autograd", "AutocastPrivateUse1"):
        assert has(operator, key), key


def test_every_operator_of_the_namespace_is_in_these_lists() -> None:
    registered = {
        name.removeprefix("ruda::").split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("ruda::")
    }
    assert set(DIFFERENTIABLE + OTHERS) <= registered


class Names(TorchDispatchMode):
    """The operators that pass below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_forward_and_backward_pass_through_the_dispatcher() -> None:
    x, weight = f32(5, 64), f32(64)
    with Names() as names:
        y = ruda_torch.silu_mul(ruda_torch.rms_norm(x, weight, 1e-5), x)
        loss, _ = ruda_torch.linear_cross_entropy(y, f32(33, 64).detach(), target())
        loss.backward()
    own = [name for name in names.seen if name.startswith("ruda::")]
    assert own == [
        "ruda::rms_norm_with_stats",
        "ruda::silu_mul",
        "ruda::linear_cross_entropy_with_gradients",
        "ruda::silu_mul_backward",
        "ruda::rms_norm_backward",
    ]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_create_graph_is_refused(name: str) -> None:
    operator, arguments = calls()[name]
    result = getattr(OPS, operator)(*arguments)
    first = result[0] if isinstance(result, tuple) else result
    shown = name.removesuffix("_with_stats")
    with pytest.raises(NotImplementedError, match=rf"\[{shown}\] backward got create_graph=True"):
        torch.autograd.grad(first.sum(), arguments[0], create_graph=True)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_forward_mode_differentiation_is_refused(name: str) -> None:
    operator, arguments = calls()[name]
    with forward_ad.dual_level(), torch.no_grad():
        first = forward_ad.make_dual(arguments[0].detach(), torch.ones_like(arguments[0]))
        with pytest.raises(NotImplementedError, match="forward-mode differentiation"):
            getattr(OPS, operator)(first, *arguments[1:])


def test_gradients_of_backward_operators_are_refused() -> None:
    grad = f32(5, 64)
    dgate, _ = OPS.silu_mul_backward(grad, f32(5, 64), f32(5, 64), [True, True])
    with pytest.raises(RuntimeError, match="silu_mul_backward is not implemented"):
        dgate.sum().backward()


def test_meta_tensors_give_shapes_and_errors() -> None:
    x = torch.empty(3, 5, 64, device="meta", dtype=torch.bfloat16)
    y = OPS.rms_norm(x, torch.empty(64, device="meta"), 1e-5)
    assert (y.shape, y.dtype, y.device.type) == (x.shape, x.dtype, "meta")
    with pytest.raises(ValueError, match=r"weight must have shape"):
        OPS.rms_norm(x, torch.empty(65, device="meta"), 1e-5)
    with pytest.raises(ValueError, match="up: got shape"):
        OPS.silu_mul(x, x[0])
    codes = torch.empty(48 * 32, dtype=torch.uint8, device="meta")
    small = torch.empty(48, device="meta")
    assert OPS.nf4_linear(x, codes, small, small, None, 48, 64, 64, 8).shape == (3, 5, 48)
    loss, count = OPS.linear_cross_entropy(
        x[0], torch.empty(9, 64, device="meta"), None, small[:5].long(), 0, -100
    )
    assert (loss.shape, loss.dtype, count.dtype) == ((), torch.float32, torch.int64)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_gives_the_same_gradients(use_reentrant: bool) -> None:
    weight = f32(64)

    def block(x: Tensor) -> Tensor:
        return ruda_torch.silu_mul(ruda_torch.rms_norm(x, weight, 1e-5), x)

    gradients = []
    for run in (block, lambda x: checkpoint(block, x, use_reentrant=use_reentrant)):
        x = f32(5, 64)
        weight.grad = None
        run(x).sum().backward()
        gradients.append((x.grad, weight.grad))
    assert same_bits(gradients[0][0], gradients[1][0])
    assert same_bits(gradients[0][1], gradients[1][1])

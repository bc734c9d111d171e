"""Which dtype every operation computes in under torch.autocast("ruda")."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ruda_torch

from .support import normal, on_ruda, same_bits

LOW = [torch.bfloat16, torch.float16]


def make(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return on_ruda(normal(*shape, dtype=dtype, seed=seed))


def nf4() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    packed = torch.randint(0, 256, (48 * 64 // 2,), dtype=torch.uint8, generator=generator)
    frozen = {"packed": packed, "scales": torch.rand(48, generator=generator)}
    frozen["codebook"] = torch.linspace(-1, 1, 16)
    return {key: tensor.to("ruda") for key, tensor in frozen.items()}


@pytest.mark.parametrize("low", LOW)
def test_rms_norm_keeps_the_activation_dtype(low: torch.dtype) -> None:
    for dtype in (torch.float32, low):
        x = make(3, 16, dtype=dtype)
        for weight_dtype in (torch.float32, torch.bfloat16, torch.float16):
            weight = make(16, dtype=weight_dtype, seed=1)
            with torch.autocast("ruda", dtype=low):
                y = ruda_torch.rms_norm(x, weight, 1e-5)
            assert y.dtype == dtype
            plain = weight if weight_dtype == dtype else weight.float()
            assert same_bits(y, ruda_torch.rms_norm(x, plain, 1e-5))
            y.float().sum().backward()
            assert weight.grad.dtype == weight_dtype


@pytest.mark.parametrize("low", LOW)
def test_silu_mul_takes_the_wider_dtype(low: torch.dtype) -> None:
    wide, narrow = make(3, 16), make(3, 16, dtype=low, seed=1)
    with torch.autocast("ruda", dtype=low):
        assert ruda_torch.silu_mul(wide, narrow).dtype == torch.float32
        assert ruda_torch.silu_mul(narrow, wide).dtype == torch.float32
        out = ruda_torch.silu_mul(narrow, narrow)
    assert out.dtype == low
    assert same_bits(out, ruda_torch.silu_mul(narrow, narrow))
    with pytest.raises(TypeError, match="up: got dtype"):
        ruda_torch.silu_mul(wide, narrow)


@pytest.mark.parametrize("low", LOW)
def test_nf4_linear_runs_in_the_low_dtype(low: torch.dtype) -> None:
    frozen, sizes = nf4(), {"out_features": 48, "in_features": 64}
    x, bias = make(3, 64), make(48, seed=2).detach()
    with torch.autocast("ruda", dtype=low):
        y = ruda_torch.nf4_linear(x, **frozen, bias=bias, **sizes)
        with torch.autocast("ruda", enabled=False):
            full = ruda_torch.nf4_linear(x, **frozen, bias=bias, **sizes)
    assert y.dtype == low
    assert full.dtype == torch.float32
    assert same_bits(y, ruda_torch.nf4_linear(x.to(low), **frozen, bias=bias.to(low), **sizes))
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize("low", LOW)
def test_linear_cross_entropy_lowers_its_operands_and_keeps_a_float32_loss(
    low: torch.dtype,
) -> None:
    hidden, head, bias = make(6, 16), make(20, 16, seed=1), make(20, seed=2)
    target = torch.arange(6).to("ruda")
    with torch.autocast("ruda", dtype=low):
        loss, _ = ruda_torch.linear_cross_entropy(hidden, head, target, bias)
    lowered = [tensor.detach().to(low) for tensor in (hidden, head, bias)]
    plain, _ = ruda_torch.linear_cross_entropy(lowered[0], lowered[1], target, lowered[2])
    assert loss.dtype == torch.float32
    assert same_bits(loss, plain)
    loss.backward()
    assert {tensor.grad.dtype for tensor in (hidden, head, bias)} == {torch.float32}


def test_default_dtype_is_bfloat16() -> None:
    with torch.autocast("ruda"):
        y = ruda_torch.nf4_linear(make(2, 64), **nf4(), out_features=48, in_features=64)
    assert y.dtype == torch.bfloat16

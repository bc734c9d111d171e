"""RMSNorm as a module."""

from __future__ import annotations

import copy

import pytest
import torch

import ruda_torch

from .support import normal, on_ruda, same_bits


def test_float32_weight_by_default_whatever_the_default_dtype() -> None:
    module = ruda_torch.RMSNorm(16)
    assert (module.weight.dtype, module.weight.device.type) == (torch.float32, "cpu")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert ruda_torch.RMSNorm(16).weight.dtype == torch.float32
    finally:
        torch.set_default_dtype(before)
    assert (
        ruda_torch.RMSNorm(16, dtype=torch.bfloat16, device="ruda").weight.dtype == torch.bfloat16
    )
    assert ruda_torch.RMSNorm(16, elementwise_affine=False).weight is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_built_on_the_cpu_and_moved(dtype: torch.dtype) -> None:
    module = ruda_torch.RMSNorm(24, eps=1e-6)
    with torch.no_grad():
        module.weight.copy_(normal(24, dtype=torch.float32, seed=1))
    weight = module.weight
    module.to("ruda")
    assert module.weight is weight  # the identity of the parameter survives the move
    x = on_ruda(normal(3, 24, dtype=dtype, seed=2))
    y = module(x)
    assert y.dtype == dtype
    assert same_bits(y, ruda_torch.rms_norm(x, module.weight, 1e-6))
    y.float().sum().backward()
    assert module.weight.grad.dtype == torch.float32


def test_state_dict_copy_and_text() -> None:
    module = ruda_torch.RMSNorm(8)
    assert list(module.state_dict()) == ["weight"]
    assert repr(module) == "RMSNorm(8, eps=1e-05, elementwise_affine=True)"
    assert copy.deepcopy(module.to("ruda")).weight.device.type == "ruda"
    assert not list(ruda_torch.RMSNorm(8, elementwise_affine=False).parameters())


def test_errors() -> None:
    with pytest.raises(ValueError, match="width: got 0"):
        ruda_torch.RMSNorm(0)
    with pytest.raises(ValueError, match="eps: got -1"):
        ruda_torch.RMSNorm(8, eps=-1.0)
    with pytest.raises(ValueError, match=r"x: got shape \[2, 7\], wanted \[\.\.\., 8\]"):
        ruda_torch.RMSNorm(8, device="ruda")(torch.ones(2, 7, device="ruda"))

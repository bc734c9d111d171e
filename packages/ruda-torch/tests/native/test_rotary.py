"""ruda_torch.rotary: values and gradients against float64, with Llama's formula as peer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ruda_torch
from ruda_dnn.rotary import reference

from .support import DTYPES, check, normal, on_ruda, same_bits, values


def formula(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos[:, :, None] + turned * sin[:, :, None]


def tables(batch: int, length: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Of unequal halves, which a backward pass may not assume to be equal."""
    angle = 3.0 * normal(2, batch, length, width, dtype=torch.float32, seed=9)
    return angle[0].cos().to(dtype), angle[1].sin().to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("table_dtype", [torch.float32, None])
@pytest.mark.parametrize("shape", [(1, 7, 3, 64), (2, 5, 2, 22)])
def test_values_and_gradients(
    shape: tuple[int, ...], table_dtype: torch.dtype | None, dtype: torch.dtype
) -> None:
    x, grad = (normal(*shape, dtype=dtype, seed=seed) for seed in (1, 2))
    cos, sin = tables(shape[0], shape[1], shape[3], table_dtype or dtype)
    device_x = on_ruda(x)
    y = ruda_torch.rotary(device_x, cos.to("ruda"), sin.to("ruda"))
    y.backward(grad.to("ruda"))
    peer_x = x.clone().requires_grad_()
    peer = formula(peer_x, cos.to(dtype), sin.to(dtype))
    peer.backward(grad)
    plain = values(cos), values(sin)
    same_tables = cos.dtype == dtype  # else the peer's tables are rounded
    check(y, reference.rotary(values(x), *plain), dtype, peer=peer if same_tables else None)
    wanted = reference.rotary_backward(values(grad), *plain)
    check(device_x.grad, wanted, dtype, peer=peer_x.grad if same_tables else None)
    assert y.is_contiguous()


def test_heads_of_a_projection_without_a_copy() -> None:
    """x as [B, H, T, D] transposed and as a slice of a wider tensor; an expanded gradient."""
    wide = normal(2, 5, 4, 40, dtype=torch.bfloat16, seed=3)
    cos, sin = (t.to("ruda") for t in tables(1, 5, 16, torch.float32))
    device = on_ruda(wide)
    view = device[..., 8:24]
    dense = on_ruda(wide[..., 8:24].contiguous())
    turned = on_ruda(wide[..., 8:24].transpose(1, 2).contiguous()).transpose(1, 2)
    wanted = ruda_torch.rotary(dense, cos, sin)
    for given in (view, turned):
        assert not given.is_contiguous()
        y = ruda_torch.rotary(given, cos, sin)
        assert same_bits(y, wanted) and y.is_contiguous()
    ruda_torch.rotary(view, cos, sin).sum().backward()
    wanted.sum().backward()
    assert same_bits(device.grad[..., 8:24], dense.grad)


def test_partial_rotation_copies_the_rest() -> None:
    x = normal(1, 4, 2, 24, dtype=torch.float32, seed=1)
    cos, sin = tables(1, 4, 8, torch.float32)
    device = on_ruda(x)
    y = ruda_torch.rotary(device, cos.to("ruda"), sin.to("ruda"))
    assert torch.equal(y.detach().cpu()[..., 8:], x[..., 8:])
    y.backward(x.to("ruda"))
    check(device.grad, reference.rotary_backward(values(x), values(cos), values(sin)), x.dtype)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_dtype_of_x(low: torch.dtype) -> None:
    for dtype in (torch.float32, low):
        x = on_ruda(normal(1, 4, 2, 8, dtype=dtype, seed=1))
        for table_dtype in (torch.float32, torch.bfloat16, torch.float16):
            cos, sin = (t.to("ruda") for t in tables(1, 4, 8, table_dtype))
            with torch.autocast("ruda", dtype=low):
                y = ruda_torch.rotary(x, cos, sin)
            if table_dtype != dtype:
                cos, sin = cos.float(), sin.float()
            assert y.dtype == dtype
            assert same_bits(y, ruda_torch.rotary(x, cos, sin))


def test_errors() -> None:
    x = torch.ones(2, 3, 1, 8, device="ruda")
    table = torch.ones(1, 3, 8, device="ruda")
    with pytest.raises(ValueError, match=r"cos: got shape \[3, 8\]"):
        ruda_torch.rotary(x, table[0], table[0])
    with pytest.raises(TypeError, match="cos: got dtype bfloat16, wanted float32"):
        ruda_torch.rotary(x, table.bfloat16(), table.bfloat16())
    with pytest.raises(RuntimeError, match="same device: got cos on cpu"):
        ruda_torch.rotary(x, table.cpu(), table)
    with pytest.raises(TypeError, match="x: got a tensor on cpu"):
        ruda_torch.rotary(x.cpu(), table, table)
    with pytest.raises(NotImplementedError, match="cos or sin that requires a gradient"):
        ruda_torch.rotary(x, table.clone().requires_grad_(), table)
    with pytest.raises(ValueError, match=r"cos: got shape \[1, 4, 8\], wanted \[B or 1, 3, R\]"):
        wrong = torch.ones(1, 4, 8, device="meta")
        ruda_torch.rotary(x.to("meta"), wrong, wrong)

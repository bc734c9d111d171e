"""torch.ops.ruda.nf4_lora_linear and its parts against float64 on the decoded weight."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from .support import DTYPES, check, normal, on_ruda, same_bits, values
from .test_nf4_linear import BLOCK, IN, OUT, quantized

OPS = torch.ops.ruda
SIZES = (OUT, IN, BLOCK, 16)
SCALING, RANK = 0.5, 4


def parts(frozen: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return frozen["packed"], frozen["scales"], frozen["codebook"]


def adapter(dtype: torch.dtype, rank: int = RANK) -> tuple[Tensor, Tensor]:
    return normal(rank, IN, dtype=dtype, seed=5), normal(OUT, rank, dtype=dtype, seed=6, scale=0.3)


def peer(x: Tensor, dense: Tensor, bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """What PEFT computes, in the activation's dtype."""
    low = F.linear(x, a.to(x.dtype))
    return F.linear(x, dense.to(x.dtype), bias) + F.linear(low, b.to(x.dtype)) * SCALING


@pytest.mark.parametrize("adapter_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [(), (1,), (5,), (2, 3, 11)])
def test_values_and_gradients(
    rows: tuple[int, ...], dtype: torch.dtype, adapter_dtype: torch.dtype
) -> None:
    frozen, dense = quantized()
    x, bias = normal(*rows, IN, dtype=dtype, seed=1), normal(OUT, dtype=dtype, seed=2)
    grad = normal(*rows, OUT, dtype=dtype, seed=3)
    a, b = adapter(adapter_dtype)
    device_x, device_a, device_b = on_ruda(x), on_ruda(a), on_ruda(b)
    y = OPS.nf4_lora_linear(
        device_x, *parts(frozen), bias.to("ruda"), device_a, device_b, SCALING, *SIZES
    )
    y.backward(grad.to("ruda"))
    leaves = [tensor.clone().requires_grad_() for tensor in (x, a, b)]
    wanted_by_peer = peer(leaves[0], dense, bias, leaves[1], leaves[2])
    wanted_by_peer.backward(grad)
    weight, down, up = dense.double().numpy(), values(a), values(b)
    wide_x, wide_grad = values(x).reshape(-1, IN), values(grad).reshape(-1, OUT)
    low, back = SCALING * wide_x @ down.T, SCALING * wide_grad @ up
    wanted = wide_x @ weight.T + values(bias) + low @ up.T
    check(y, wanted.reshape(*rows, OUT), dtype, peer=wanted_by_peer, name="y")
    dx = (wide_grad @ weight + back @ down).reshape(*rows, IN)
    check(device_x.grad, dx, dtype, peer=leaves[0].grad, name="dx")
    # the factors' gradients are as exact as the narrower of activation and adapter
    narrow = dtype if adapter_dtype == torch.float32 else adapter_dtype
    if dtype == torch.bfloat16:
        narrow = dtype
    for got, reference, kind in (
        (device_a.grad, back.T @ wide_x, "da"),
        (device_b.grad, wide_grad.T @ low, "db"),
    ):
        assert got.dtype == adapter_dtype
        check(got.to(narrow), reference, narrow, long_reduction=True, name=kind)


def test_parts_give_what_the_whole_gives() -> None:
    frozen, _ = quantized()
    x = on_ruda(normal(2, 5, IN, dtype=torch.float32, seed=1), grad=False)
    a, b = (tensor.to("ruda") for tensor in adapter(torch.float32))
    whole = OPS.nf4_lora_linear(x, *parts(frozen), None, a, b, SCALING, *SIZES)
    low = OPS.lora_low(x, a, SCALING)
    assert low.shape == (10, RANK)
    assert same_bits(OPS.nf4_lora_linear_from_low(x, low, *parts(frozen), None, b, *SIZES), whole)


def test_only_what_is_asked_for_is_computed() -> None:
    frozen, _ = quantized()
    a, b = (tensor.to("ruda") for tensor in adapter(torch.float32))
    x = on_ruda(normal(5, IN, dtype=torch.float32, seed=1), grad=False)
    grad = on_ruda(normal(5, OUT, dtype=torch.float32, seed=3), grad=False)
    low = OPS.lora_low(x, a, SCALING)
    arguments = (grad, x, low, *parts(frozen), a, b, SCALING, *SIZES)
    full = OPS.nf4_lora_linear_backward(*arguments, [True, True, True])
    for number in range(3):
        mask = [number == other for other in range(3)]
        result = OPS.nf4_lora_linear_backward(*arguments, mask)
        assert [part is not None for part in result] == mask
        assert same_bits(result[number], full[number])
    frozen_up = b.clone()
    down = a.clone().requires_grad_()
    OPS.nf4_lora_linear(x, *parts(frozen), None, down, frozen_up, SCALING, *SIZES).backward(grad)
    assert same_bits(down.grad, full[1])
    assert frozen_up.grad is None


def test_no_rows_strides_and_a_strided_gradient() -> None:
    frozen, dense = quantized()
    a, b = adapter(torch.float32)
    device_a, device_b = on_ruda(a), on_ruda(b)
    empty = on_ruda(torch.empty(2, 0, IN))
    y = OPS.nf4_lora_linear(empty, *parts(frozen), None, device_a, device_b, SCALING, *SIZES)
    assert y.shape == (2, 0, OUT)
    y.sum().backward()
    assert empty.grad.shape == (2, 0, IN)
    assert not device_a.grad.any() and not device_b.grad.any()
    x = normal(IN, 6, dtype=torch.float32, seed=1).t()
    y = OPS.nf4_lora_linear(on_ruda(x), *parts(frozen), None, device_a, device_b, SCALING, *SIZES)
    weight = dense.double().numpy() + SCALING * values(b) @ values(a)
    check(y, values(x) @ weight.T, torch.float32)
    device_a.grad = device_b.grad = None
    y.sum().backward()  # an expanded gradient
    ones = torch.ones(6, OUT, dtype=torch.float64).numpy()
    check(
        device_a.grad,
        SCALING * (ones @ values(b)).T @ values(x),
        torch.float32,
        long_reduction=True,
    )


def test_errors() -> None:
    frozen, _ = quantized()
    x = torch.ones(3, IN, device="ruda")
    a, b = (tensor.to("ruda") for tensor in adapter(torch.float32))

    def call(x: Tensor, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        return OPS.nf4_lora_linear(x, *parts(frozen), bias, a, b, SCALING, *SIZES)

    with pytest.raises(ValueError, match=rf"x: got shape \[3, 5\], wanted \[\.\.\., {IN}\]"):
        call(x[:, :5], a, b)
    with pytest.raises(ValueError, match=rf"lora_a: got shape .*, wanted \[r, {IN}\]"):
        call(x, a[:, 1:], b)
    with pytest.raises(ValueError, match=rf"lora_b: got shape .*, wanted \[{OUT}, {RANK}\]"):
        call(x, a, b[:, 1:])
    with pytest.raises(RuntimeError, match="same device"):
        call(x, a.cpu(), b)
    bias = torch.zeros(OUT, device="ruda", requires_grad=True)
    with pytest.raises(NotImplementedError, match="Add a trainable bias outside"):
        call(x, a, b, bias)

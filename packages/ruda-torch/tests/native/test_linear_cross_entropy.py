"""ruda_torch.linear_cross_entropy against float64, with linear + cross_entropy as peer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ruda_torch
from ruda_dnn.loss import reference

from .support import DTYPES, check, normal, on_ruda, same_bits, values

ROWS, WIDTH, CLASSES = 23, 48, 130


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    hidden = normal(ROWS, WIDTH, dtype=dtype, seed=1)
    head = normal(CLASSES, WIDTH, dtype=dtype, seed=2, scale=WIDTH**-0.5)
    bias = normal(CLASSES, dtype=dtype, seed=3)
    target = torch.randint(0, CLASSES, (ROWS,), generator=torch.Generator().manual_seed(4))
    target[::4] = -100
    return hidden, head, bias, target


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("token_chunk", [None, 5])
def test_values_and_gradients(dtype: torch.dtype, token_chunk: int | None) -> None:
    hidden, head, bias, target = inputs(dtype)
    device = [on_ruda(tensor) for tensor in (hidden, head, bias)]
    loss, count = ruda_torch.linear_cross_entropy(
        device[0], device[1], target.to("ruda"), device[2], token_chunk=token_chunk
    )
    assert loss.dtype == torch.float32
    assert loss.shape == count.shape == ()
    assert count.dtype == torch.int64
    assert int(count) == int((target != -100).sum())
    assert not count.requires_grad
    (loss / count).backward()
    peers = [tensor.clone().requires_grad_() for tensor in (hidden, head, bias)]
    peer = F.cross_entropy(F.linear(*peers), target, reduction="sum")
    (peer / int(count)).backward()
    wanted = reference.linear_cross_entropy(
        values(hidden), values(head), values(bias), target.numpy(), -100
    )
    check(loss, np.asarray(wanted.loss), torch.float32, name="loss")
    gradients = (wanted.dhidden, wanted.dhead, wanted.dbias)
    for name, tensor, gradient, other in zip(
        ("dhidden", "dhead", "dbias"), device, gradients, peers
    ):
        check(
            tensor.grad,
            gradient / int(count),
            dtype,
            peer=other.grad,
            long_reduction=True,
            name=name,
        )


def test_float32_loss_is_as_exact_as_torchs() -> None:
    hidden, head, bias, target = inputs(torch.float32)
    loss, _ = ruda_torch.linear_cross_entropy(
        hidden.to("ruda"), head.to("ruda"), target.to("ruda"), bias.to("ruda")
    )
    wanted = reference.linear_cross_entropy(
        values(hidden), values(head), values(bias), target.numpy(), -100
    ).loss
    assert abs(loss.item() - wanted) <= 2 * np.spacing(np.float32(wanted))


def test_frozen_head_gets_no_gradient_and_costs_none() -> None:
    hidden, head, _, target = inputs(torch.float32)
    device, frozen = on_ruda(hidden), on_ruda(head, grad=False)
    before = ruda_torch.memory_allocated()
    loss, _ = ruda_torch.linear_cross_entropy(device, frozen, target.to("ruda"))
    kept = ruda_torch.memory_allocated() - before
    assert kept < 2 * hidden.nbytes + 4096  # the hidden state's gradient; no logits, no dhead
    loss.backward()
    assert frozen.grad is None
    wanted = reference.linear_cross_entropy(
        values(hidden), values(head), None, target.numpy(), -100
    )
    check(device.grad, wanted.dhidden, torch.float32, long_reduction=True)


def test_without_gradients_the_loss_is_the_same() -> None:
    hidden, head, bias, target = inputs(torch.float32)
    arguments = [on_ruda(hidden), on_ruda(head), target.to("ruda"), on_ruda(bias)]
    loss, _ = ruda_torch.linear_cross_entropy(*arguments)
    with torch.no_grad():
        plain, _ = ruda_torch.linear_cross_entropy(*arguments)
    assert not plain.requires_grad
    assert same_bits(loss, plain)


def test_backward_twice_with_retain_graph_accumulates() -> None:
    hidden, head, _, target = inputs(torch.float32)
    device = on_ruda(hidden)
    loss, _ = ruda_torch.linear_cross_entropy(device, on_ruda(head, False), target.to("ruda"))
    loss.backward(retain_graph=True)
    once = device.grad.clone()
    (2.0 * loss).backward()
    assert torch.equal(device.grad.cpu(), (3.0 * once).cpu())


def test_leading_dimensions() -> None:
    hidden, head, _, target = inputs(torch.float32)
    flat, _ = ruda_torch.linear_cross_entropy(hidden.to("ruda"), head.to("ruda"), target.to("ruda"))
    shaped, count = ruda_torch.linear_cross_entropy(
        hidden.view(1, ROWS, WIDTH).to("ruda"), head.to("ruda"), target.view(1, ROWS).to("ruda")
    )
    assert same_bits(flat, shaped)
    assert int(count) > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_valid_is_a_differentiable_zero(dtype: torch.dtype) -> None:
    hidden, head, _, target = inputs(dtype)
    device, device_head = on_ruda(hidden), on_ruda(head)
    loss, count = ruda_torch.linear_cross_entropy(
        device, device_head, torch.full_like(target, -100).to("ruda")
    )
    assert (loss.item(), count.item()) == (0.0, 0)
    loss.backward()
    assert not device.grad.cpu().any()
    assert not device_head.grad.cpu().any()


@pytest.mark.parametrize("wrong", [CLASSES, -1])
def test_target_outside_the_vocabulary(wrong: int) -> None:
    hidden, head, _, target = inputs(torch.float32)
    target[3] = wrong
    with pytest.raises(ValueError, match=rf"target\[3\]: got {wrong}, wanted 0..129"):
        ruda_torch.linear_cross_entropy(on_ruda(hidden), on_ruda(head), target.to("ruda"))


def test_errors() -> None:
    hidden, head, _, target = inputs(torch.float32)
    with pytest.raises(ValueError, match=r"target: got shape \[22\], wanted \[23\]"):
        ruda_torch.linear_cross_entropy(on_ruda(hidden), on_ruda(head), target[1:].to("ruda"))
    with pytest.raises(TypeError, match="target: got dtype int32, wanted int64"):
        ruda_torch.linear_cross_entropy(on_ruda(hidden), on_ruda(head), target.int().to("ruda"))
    with pytest.raises(ValueError, match="token_chunk: got -3"):
        ruda_torch.linear_cross_entropy(
            on_ruda(hidden), on_ruda(head), target.to("ruda"), token_chunk=-3
        )

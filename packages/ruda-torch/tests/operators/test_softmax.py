"""softmax and log_softmax on the device, against float64 and with torch's own as peer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ruda_dnn.softmax import reference

from ..native.support import DTYPES, check, normal, on_ruda, same_bits, values

CASES = [((5,), 0), ((4, 33), 1), ((2, 7, 576), -1), ((3, 17, 5), 1), ((6, 70), 0), ((3, 40, 1), 1)]


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dim"), CASES)
def test_values_and_gradients(
    shape: tuple[int, ...], dim: int, dtype: torch.dtype, name: str
) -> None:
    x, grad = (normal(*shape, dtype=dtype, seed=seed, scale=2.0) for seed in (1, 2))
    run = getattr(F, name)
    device = on_ruda(x)
    y = run(device, dim)
    y.backward(grad.to("ruda"))
    other = x.clone().requires_grad_()
    peer = run(other, dim)
    peer.backward(grad)
    check(y, getattr(reference, name)(values(x), dim), dtype, peer=peer)
    wanted = getattr(reference, f"{name}_backward")(values(grad), values(y), dim)
    check(device.grad, wanted, dtype, long_reduction=True)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_what_the_kernel_does_not_take(name: str) -> None:
    run = getattr(F, name)
    for x, dim in (
        (normal(3, 4, dtype=torch.float64, seed=1), 1),
        (torch.empty(0, 4), 1),
        (torch.empty(3, 0), -1),
        (torch.tensor(2.0), 0),
    ):
        device, other = on_ruda(x), x.clone().requires_grad_()
        y, peer = run(device, dim), run(other, dim)
        torch.testing.assert_close(y.cpu(), peer)
        y.sum().backward()
        peer.sum().backward()
        torch.testing.assert_close(device.grad.cpu(), other.grad)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_dtype_argument_strides_and_out(name: str) -> None:
    x = normal(6, 8, 10, dtype=torch.bfloat16, seed=1)
    device = on_ruda(x, grad=False)
    run = getattr(torch, name)
    wide = run(device, -1, dtype=torch.float32)
    assert wide.dtype == torch.float32
    assert same_bits(wide, run(device.float(), -1))
    turned = device.transpose(0, 2)
    assert same_bits(run(turned, 0), run(turned.contiguous(), 0))
    out = torch.empty(1, device="ruda")
    run(device.float(), 1, out=out)
    torch.testing.assert_close(out.cpu(), run(x.float(), 1))


def test_masked_rows_and_second_derivatives() -> None:
    x = normal(4, 6, dtype=torch.float32, seed=3)
    x[1] = float("-inf")
    x[2, 3] = float("-inf")
    torch.testing.assert_close(
        F.softmax(on_ruda(x), -1).detach().cpu(), F.softmax(x, -1), equal_nan=True
    )
    results = []
    for device in ("ruda", "cpu"):
        y = normal(4, 6, dtype=torch.float32, seed=3).to(device).requires_grad_()
        (first,) = torch.autograd.grad(F.softmax(y, 0).pow(2).sum(), y, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), y)[0].cpu())
    torch.testing.assert_close(*results)


def test_errors() -> None:
    x = torch.ones(2, 3, device="ruda")
    with pytest.raises(IndexError, match="Dimension out of range"):
        F.softmax(x, 2)

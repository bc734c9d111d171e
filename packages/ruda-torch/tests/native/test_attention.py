"""ruda_torch.attention and varlen_attention: gradients, autocast, errors, captured graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ruda_torch
from ruda_dnn.attention import reference

from .support import DTYPES, check, normal, on_ruda, same_bits, values


def rows_first(tensor: torch.Tensor) -> np.ndarray:
    return values(tensor).swapaxes(1, 2)


OPTIONS = [
    {},
    {"causal": True},
    {"causal": True, "align": "top_left"},
    {"causal": True, "window": (6, None), "scale": 0.4},
    {"window": (3, 9)},
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("lengths", [(1, 40), (30, 50), (50, 30)])
def test_values_and_gradients(lengths: tuple[int, int], options: dict, dtype: torch.dtype) -> None:
    shapes = ((2, 6, lengths[0], 16), (2, 2, lengths[1], 16), (2, 2, lengths[1], 24))
    tensors = [normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
    leaves = [on_ruda(tensor) for tensor in tensors]
    out = ruda_torch.attention(*leaves, **options)
    assert out.shape == (2, 6, lengths[0], 24)
    assert out.transpose(1, 2).is_contiguous()
    grad = normal(*out.shape, dtype=dtype, seed=8)
    found = torch.autograd.grad(out, leaves, grad.to("ruda"))
    left, right = options.get("window", (None, None))
    seen = reference.visible(
        *lengths,
        left,
        0 if options.get("causal") else right,
        options.get("align", "bottom_right") == "bottom_right",
    )
    arrays = [rows_first(tensor) for tensor in tensors]
    wanted, _ = reference.attention(*arrays, seen, None, options.get("scale"))
    check(out, wanted.swapaxes(1, 2), dtype)
    gradients = reference.attention_backward(
        *arrays, rows_first(grad), seen, None, options.get("scale")
    )
    for gradient, right_one in zip(found, gradients, strict=True):
        if np.abs(right_one).max() < 1e-12:  # one key: its weight is constant
            assert np.abs(values(gradient)).max() < (1e-5 if dtype == torch.float32 else 5e-2)
        else:
            check(gradient, right_one.swapaxes(1, 2), dtype, long_reduction=True)
        assert gradient.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("shape", [(7,), (5, 7), (3, 5, 7), (2, 1, 5, 7), (2, 3, 1, 1)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_broadcast(shape: tuple[int, ...], kind: str) -> None:
    q, k, v = (on_ruda(normal(2, 3, n, 8, dtype=torch.float32, seed=n)) for n in (5, 7, 7))
    mask = normal(*shape, dtype=torch.float32, seed=4)
    if kind == "bool":
        mask = mask > -0.5
    out = ruda_torch.attention(q, k, v, mask.to("ruda"))
    array = mask.numpy() if kind == "bool" else values(mask)
    wanted, _ = reference.attention(
        *(rows_first(t) for t in (q, k, v)),
        *((array, None) if kind == "bool" else (None, array)),
    )
    check(out, wanted.swapaxes(1, 2), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_sequences(dtype: torch.dtype) -> None:
    ends = torch.tensor([0, 5, 5, 45, 130], dtype=torch.int32)
    tensors = [normal(130, heads, 16, dtype=dtype, seed=heads) for heads in (4, 2, 1)]
    tensors[2] = normal(130, 2, 16, dtype=dtype, seed=9)
    leaves = [on_ruda(tensor) for tensor in tensors]
    cu = ends.to("ruda")
    out = ruda_torch.varlen_attention(*leaves, cu, cu, causal=True)
    grad = normal(130, 4, 16, dtype=dtype, seed=5)
    out.backward(grad.to("ruda"))
    wanted = [np.zeros(tensor.shape) for tensor in (grad, *tensors)]
    for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        arrays = [values(tensor[None, begin:end]) for tensor in (*tensors, grad)]
        seen = reference.visible(end - begin, end - begin, None, 0)
        wanted[0][begin:end] = reference.attention(*arrays[:3], seen)[0][0]
        for total, part in zip(
            wanted[1:], reference.attention_backward(*arrays, seen), strict=True
        ):
            total[begin:end] = part[0]
    check(out, wanted[0], dtype)
    for leaf, right in zip(leaves, wanted[1:], strict=True):
        check(leaf.grad, right, dtype, long_reduction=True)


def test_only_the_wanted_gradients() -> None:
    q, k = (normal(1, 2, 20, 8, dtype=torch.float32, seed=i) for i in range(2))
    leaf = on_ruda(q)
    ruda_torch.attention(leaf, on_ruda(k, grad=False), on_ruda(k, grad=False)).sum().backward()
    other = on_ruda(k)
    ruda_torch.attention(on_ruda(q, grad=False), other, on_ruda(k, grad=False)).sum().backward()
    assert leaf.grad is not None and other.grad is not None


def test_same_bits_for_any_number_of_threads() -> None:
    tensors = [normal(1, heads, 300, 64, dtype=torch.float32, seed=heads) for heads in (9, 3, 3)]
    grad = normal(1, 9, 300, 64, dtype=torch.float32, seed=1).to("ruda")
    before, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            leaves = [on_ruda(tensor) for tensor in tensors]
            out = ruda_torch.attention(*leaves, causal=True)
            results.append([out, *torch.autograd.grad(out, leaves, grad)])
    finally:
        torch.set_num_threads(before)
    assert all(same_bits(one, two) for one, two in zip(*results, strict=True))


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_autocast(low: torch.dtype) -> None:
    leaves = [on_ruda(normal(1, 2, 9, 8, dtype=torch.float32, seed=i)) for i in range(3)]
    with torch.autocast("ruda", dtype=low):
        out = ruda_torch.attention(*leaves, causal=True)
    assert out.dtype == low
    plain = ruda_torch.attention(*(leaf.detach().to(low) for leaf in leaves), causal=True)
    assert same_bits(out, plain)
    out.float().sum().backward()
    assert all(leaf.grad.dtype == torch.float32 for leaf in leaves)


@pytest.mark.parametrize("packed", [False, True])
def test_operator_is_complete(packed: bool) -> None:
    shape = (9, 4, 8) if packed else (2, 4, 9, 8)
    q, k, v = (on_ruda(normal(*shape, dtype=torch.float32, seed=i)) for i in range(3))
    cu = torch.tensor([0, 4, 9], dtype=torch.int32).to("ruda") if packed else None
    arguments = (q, k, v, None, cu, cu, None, -1, 0, True)
    # the fourth check, of the autograd registration, knows CPU, CUDA and XPU only
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    found = torch.library.opcheck(torch.ops.ruda.attention.default, arguments, test_utils=checks)
    assert set(found.values()) == {"SUCCESS"}


def test_captured() -> None:
    leaves = [on_ruda(normal(1, 2, 9, 8, dtype=torch.float32, seed=i)) for i in range(3)]

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ruda_torch.attention(q, k, v, causal=True, window=(4, None))

    captured, plain = torch.compile(f, backend="aot_eager")(*leaves), f(*leaves)
    assert same_bits(captured, plain)
    for one, two in zip(
        torch.autograd.grad(captured.sum(), leaves),
        torch.autograd.grad(plain.sum(), leaves),
        strict=True,
    ):
        assert same_bits(one, two)


def test_errors() -> None:
    q = torch.ones(1, 4, 5, 8, device="ruda")
    with pytest.raises(ValueError, match=r"query: got shape \[4, 5, 8\], wanted \[batch"):
        ruda_torch.attention(q[0], q, q)
    with pytest.raises(ValueError, match="k: got 3 heads"):
        ruda_torch.attention(q, q[:, :3], q[:, :3])
    with pytest.raises(ValueError, match="mask: got shape"):
        ruda_torch.attention(q, q, q, torch.ones(3, 5, device="ruda"))
    with pytest.raises(ValueError, match="align: got 'left'"):
        ruda_torch.attention(q, q, q, align="left")
    with pytest.raises(ValueError, match="window: got"):
        ruda_torch.attention(q, q, q, window=(None, -2))
    with pytest.raises(TypeError, match="got a tensor on cpu"):
        ruda_torch.attention(q.cpu(), q, q)
    for mask in (torch.ones(5, 5, dtype=torch.int32), torch.ones(5, 5, dtype=torch.float16)):
        with pytest.raises(TypeError, match=r"wanted bool or float32$"):
            ruda_torch.attention(q, q, q, mask.to("ruda"))
    with pytest.raises(TypeError, match=r"wanted bool or float32 or float16$"):
        half = q.half()
        ruda_torch.attention(half, half, half, torch.ones(5, 5, dtype=torch.int32, device="ruda"))
    with pytest.raises(TypeError, match="got dtype float64"):
        ruda_torch.attention(q.double(), q.double(), q.double())
    with pytest.raises(NotImplementedError, match="mask that requires a gradient"):
        ruda_torch.attention(q, q, q, torch.zeros(5, 5, device="ruda").requires_grad_())
    cu = torch.tensor([0, 4], dtype=torch.int32, device="ruda")
    with pytest.raises(ValueError, match=r"cu_seqlens_q: got ends from 0 to 4"):
        ruda_torch.varlen_attention(q[0].transpose(0, 1), q[0].transpose(0, 1),
                                    q[0].transpose(0, 1), cu, cu)  # fmt: skip
    with pytest.raises(NotImplementedError, match="create_graph"):
        leaf = q.clone().requires_grad_()
        torch.autograd.grad(ruda_torch.attention(leaf, q, q).sum(), leaf, create_graph=True)

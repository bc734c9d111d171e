"""Scaled dot product attention: the fused kernels, what they leave to the math path, gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import ruda_torch

from .support import check, normal

D = "ruda"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    """softmax(scale * q @ k.T + mask) @ v in float64; rows that see nothing give zeros."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.mT * (scale if scale is not None else q.shape[-1] ** -0.5)
    if causal:
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if mask is not None:
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -torch.inf)
        else:
            scores = scores + mask
    peak = scores.amax(-1, keepdim=True)
    weights = (scores - peak.where(peak > -torch.inf, 0.0)).exp()
    total = weights.sum(-1, keepdim=True)
    return weights @ v / total.where(total > 0, 1.0)


def launches() -> int:
    """Launches of the packages' kernels: one for the fused kernel, more for the math path's
    products, none for ATen's kernel (float64)."""
    return ruda_torch.execution_stats()["native_launches"]


def run(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: torch.dtype,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    grouped: bool = False,
    layout: str = "plain",
) -> None:
    q_shape, k_shape = shapes
    inputs = [normal(*s, seed=i, dtype=dtype) for i, s in enumerate((q_shape, k_shape, k_shape))]
    leaves = []
    for tensor in inputs:
        moved = tensor.to(D)
        if layout == "heads last":  # as models have it: [B, L, H, D] seen as [B, H, L, D]
            moved = moved.transpose(1, 2).contiguous().transpose(1, 2)
        elif layout == "features apart":
            moved = moved.mT.contiguous().mT
        leaves.append(moved.requires_grad_())
    twins = [tensor.double().requires_grad_() for tensor in inputs]
    given = None if mask is None else mask.to(D)
    if given is not None and given.is_floating_point():
        given = given.to(dtype)
        mask = given.double().cpu()
    before = launches()
    out = F.scaled_dot_product_attention(
        *leaves, attn_mask=given, is_causal=causal, scale=scale, enable_gqa=grouped
    )
    assert launches() == before + 1
    assert out.transpose(1, 2).is_contiguous()
    wanted = reference(*twins, mask, causal, scale)
    check(out, wanted)
    grad = normal(*wanted.shape, seed=9, dtype=dtype)
    for ours, theirs in zip(
        torch.autograd.grad(out, leaves, grad.to(D)),
        torch.autograd.grad(wanted, twins, grad.double()),
        strict=True,
    ):
        if theirs.abs().max() < 1e-12:  # one key: the weights are constant
            assert ours.abs().max() < (1e-5 if dtype == torch.float32 else 5e-2)
        else:
            check(ours, theirs, long=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1), (5, 5), (33, 33), (2, 5), (5, 2)])
def test_values_and_gradients(lengths: tuple[int, int], causal: bool, dtype: torch.dtype) -> None:
    q_length, k_length = lengths
    run(((2, 3, q_length, 16), (2, 3, k_length, 16)), dtype, causal=causal)


@pytest.mark.parametrize("width", [8, 40, 64, 72, 80, 96, 128])
def test_widths(width: int) -> None:
    run(((1, 2, 9, width), (1, 2, 9, width)), torch.float32, causal=True)


@pytest.mark.parametrize("heads", [(28, 4), (24, 4), (40, 8), (5, 1), (16, 1), (4, 4)])
def test_grouped_heads(heads: tuple[int, int]) -> None:
    run(((2, heads[0], 6, 8), (2, heads[1], 6, 8)), torch.float32, causal=True, grouped=True)


def test_grouped_heads_are_not_copied() -> None:
    q, k = torch.randn(1, 16, 1, 64, device=D), torch.randn(1, 1, 4096, 64, device=D)
    torch.ruda.reset_peak_memory_stats()
    before = torch.ruda.memory_allocated()
    F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    assert torch.ruda.max_memory_allocated() - before < k.nbytes


@pytest.mark.parametrize("layout", ["heads last", "features apart"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts(layout: str, dtype: torch.dtype) -> None:
    run(((2, 3, 7, 16), (2, 3, 7, 16)), dtype, causal=True, layout=layout)


@pytest.mark.parametrize("shape", [(5, 7), (1, 1, 5, 7), (2, 1, 5, 7), (2, 4, 5, 7), (2, 1, 1, 7)])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_masks(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> None:
    mask = normal(*shape, seed=5) > -0.8 if kind == "bool" else normal(*shape, seed=5)
    run(((2, 4, 5, 16), (2, 2, 7, 16)), dtype, mask=mask, grouped=True, scale=0.3)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_see_nothing_give_zeros(kind: str, dtype: torch.dtype) -> None:
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    mask[1, 0, :, :3] = False  # left padding: rows 0..2 of the second sequence see nothing
    given = mask if kind == "bool" else torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    run(((2, 2, 5, 8), (2, 2, 5, 8)), dtype, mask=given)
    x = torch.ones(2, 2, 5, 8, device=D, dtype=dtype)
    out = F.scaled_dot_product_attention(
        x, x, x, attn_mask=given.to(D, dtype if kind == "float" else torch.bool)
    )
    assert not out[1, :, :3].any() and out[1, :, 3:].eq(1).all()


def test_large_scores_stay_finite() -> None:
    k = torch.full((1, 1, 64, 128), 1.0)
    q = torch.full((1, 1, 1, 128), -1e5 / 128)
    k[0, 0, 17] *= 0.95
    v = torch.arange(64.0).view(1, 1, 64, 1).expand(1, 1, 64, 128)
    out = F.scaled_dot_product_attention(q.to(D), k.to(D), v.to(D), scale=1.0)
    assert out.eq(17).all()


def test_equal_scores_give_the_mean() -> None:
    for length in (1, 15, 16, 17, 63, 64, 65, 255, 257):
        v = normal(1, 1, length, 8, seed=length)
        q, k = torch.zeros(1, 1, 3, 8, device=D), normal(1, 1, length, 8, seed=1).to(D)
        out = F.scaled_dot_product_attention(q, k, v.to(D))
        check(out, v.double().mean(2, keepdim=True).expand(1, 1, 3, 8))


def test_expanded_gradient() -> None:
    x = normal(1, 2, 6, 8)
    leaf, twin = x.to(D).requires_grad_(), x.double().requires_grad_()
    F.scaled_dot_product_attention(leaf, leaf, leaf, is_causal=True).sum().backward()
    reference(twin, twin, twin, None, True, None).sum().backward()
    check(leaf.grad, twin.grad, long=True)


@pytest.mark.parametrize("case", ["dropout", "mask gradient", "three dimensions"])
def test_what_the_math_path_takes(case: str) -> None:
    torch.manual_seed(0)
    q, k, v = (normal(2, 2, 5, 8, seed=i).to(D).requires_grad_() for i in range(3))
    before = launches()
    if case == "dropout":
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        torch.manual_seed(0)
        again = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        plain = F.scaled_dot_product_attention(q, k, v)
        assert torch.equal(out, again) and not torch.equal(out, plain) and out.isfinite().all()
        many = F.scaled_dot_product_attention(
            *(t.expand(4000, 2, 2, 5, 8).reshape(-1, 2, 5, 8) for t in (q, k, v)), dropout_p=0.5
        )
        mean = many.view(4000, 2, 2, 5, 8).mean(0)
        # 4000 draws: the mean of a unit-sized value is known to about 0.01
        torch.testing.assert_close(mean, plain, rtol=0.02, atol=0.05)
        assert (mean - plain).norm() <= 0.05 * plain.norm()
    elif case == "mask gradient":
        mask = normal(5, 5, seed=4).to(D).requires_grad_()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        (grad,) = torch.autograd.grad(out.sum(), mask)
        twin = mask.detach().cpu().double().requires_grad_()
        wanted = reference(q.detach().cpu().double(), k.detach().cpu().double(),
                           v.detach().cpu().double(), twin, False, None)  # fmt: skip
        check(out, wanted)
        check(grad, torch.autograd.grad(wanted.sum(), twin)[0], long=True)
    else:
        out = F.scaled_dot_product_attention(q[0], k[0], v[0])
        check(
            out,
            reference(*(t[:1].detach().cpu().double() for t in (q, k, v)), None, False, None)[0],
        )
    assert launches() > before + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [3, 12, 40])
def test_value_width(width: int, dtype: torch.dtype) -> None:
    tensors = [normal(2, 2, 35, size, seed=size, dtype=dtype) for size in (8, 8, width)]
    leaves = [tensor.to(D).requires_grad_() for tensor in tensors]
    twins = [tensor.double().requires_grad_() for tensor in tensors]
    before = launches()
    out = F.scaled_dot_product_attention(*leaves, is_causal=True)
    assert launches() == before + 1
    wanted = reference(*twins, None, True, None)
    check(out, wanted)
    grad = normal(*wanted.shape, seed=9, dtype=dtype)
    for ours, theirs in zip(
        torch.autograd.grad(out, leaves, grad.to(D)),
        torch.autograd.grad(wanted, twins, grad.double()),
        strict=True,
    ):
        check(ours, theirs, long=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_not_worse_than_torch(causal: bool, dtype: torch.dtype) -> None:
    tensors = [normal(1, heads, 300, 64, seed=heads, dtype=dtype) for heads in (9, 3, 3)]
    ours = [tensor.to(D).requires_grad_() for tensor in tensors]
    peers = [tensor.clone().requires_grad_() for tensor in tensors]
    twins = [tensor.double().requires_grad_() for tensor in tensors]
    grad = normal(1, 9, 300, 64, seed=5, dtype=dtype)
    options = {"is_causal": causal, "enable_gqa": True}
    out = F.scaled_dot_product_attention(*ours, **options)
    peer = F.scaled_dot_product_attention(*peers, **options)
    wanted = reference(*twins, None, causal, None)
    check(out, wanted, peer=peer)
    for mine, theirs, right in zip(
        torch.autograd.grad(out, ours, grad.to(D)),
        torch.autograd.grad(peer, peers, grad),
        torch.autograd.grad(wanted, twins, grad.double()),
        strict=True,
    ):
        check(mine, right, peer=theirs, long=True)


@pytest.mark.parametrize("shape", [(4, 5, 7), (1, 5, 7), (7,), (5, 1), (2, 4, 1, 1)])
def test_masks_with_missing_axes(shape: tuple[int, ...]) -> None:
    run(((2, 4, 5, 16), (2, 2, 7, 16)), torch.float32, mask=normal(*shape, seed=5), grouped=True)


def test_float32_mask_beside_bfloat16() -> None:
    q, k, v = (normal(2, 2, 9, 8, seed=i, dtype=torch.bfloat16) for i in range(3))
    mask = normal(9, 9, seed=4)
    before = launches()
    out = F.scaled_dot_product_attention(q.to(D), k.to(D), v.to(D), attn_mask=mask.to(D))
    assert launches() == before + 1
    check(out, reference(q.double(), k.double(), v.double(), mask.double(), False, None))


@pytest.mark.parametrize("masked", [False, True])
def test_float64_by_atens_kernel(masked: bool) -> None:
    tensors = [normal(2, heads, 9, 8, seed=heads).double() for heads in (4, 2, 2)]
    leaves = [tensor.to(D).requires_grad_() for tensor in tensors]
    twins = [tensor.clone().requires_grad_() for tensor in tensors]
    mask = normal(9, 9, seed=3) > -1 if masked else None
    before = launches()
    out = F.scaled_dot_product_attention(
        *leaves, None if mask is None else mask.to(D), is_causal=not masked, enable_gqa=True
    )
    assert launches() == before
    wanted = reference(*twins, mask, not masked, None)
    torch.testing.assert_close(out.cpu(), wanted)
    grad = normal(2, 4, 9, 8, seed=5).double()
    for ours, theirs in zip(
        torch.autograd.grad(out, leaves, grad.to(D)),
        torch.autograd.grad(wanted, twins, grad),
        strict=True,
    ):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_direct_calls_are_checked() -> None:
    operator = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    q = torch.ones(1, 4, 5, 8, device=D)
    for match, arguments in {
        "query's heads are no multiple": (q, q[:, :3], q[:, :3]),
        "the batches differ": (q, torch.ones(2, 4, 5, 8, device=D), q),
        "different widths": (q, torch.ones(1, 4, 5, 9, device=D), q),
        "different lengths": (q, q, q[:, :, :4]),
        "different numbers of heads": (q, q, q[:, :2]),
        "the dtypes differ": (q, q.half(), q),
        "four dimensions": (q[0], q[0], q[0]),
        "mask does not broadcast": (q, q, q, torch.ones(3, 5, device=D)),
        "dropout is not 0": (q, q, q, None, 0.5),
    }.items():
        with pytest.raises(RuntimeError, match=match):
            operator(*arguments)


def test_backend_choice_is_the_users() -> None:
    q = normal(1, 2, 5, 8).to(D)
    before = launches()
    with sdpa_kernel(SDPBackend.MATH):
        math = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert launches() > before + 1
    before = launches()
    with sdpa_kernel(SDPBackend.OVERRIDEABLE):
        fused = F.scaled_dot_product_attention(q, q, q, is_causal=True)
        with pytest.raises(RuntimeError, match="no enabled backend"):
            F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert launches() == before + 1
    torch.testing.assert_close(math, fused)


def test_double_backward_is_refused_not_wrong() -> None:
    q = normal(1, 1, 3, 8).to(D).requires_grad_()
    (grad,) = torch.autograd.grad(
        F.scaled_dot_product_attention(q, q, q).sum(), q, create_graph=True
    )
    with pytest.raises(RuntimeError, match=r"derivative|differentiate"):
        torch.autograd.grad(grad.sum(), q)


def test_empty_batch_and_length() -> None:
    for shape in [(0, 2, 5, 8), (2, 2, 0, 8)]:
        q = torch.ones(shape, device=D)
        k = torch.ones(shape[0], 2, 4, 8, device=D)
        assert F.scaled_dot_product_attention(q, k, k).shape == shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", ["plain", "heads last", "features apart"])
def test_captured_graphs_know_the_results(layout: str, dtype: torch.dtype) -> None:
    q, k = normal(2, 4, 5, 8, dtype=dtype).to(D), normal(2, 2, 5, 8, seed=1, dtype=dtype).to(D)
    if layout == "heads last":
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
    elif layout == "features apart":
        q = q.mT.contiguous().mT
    operator = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    torch.library.opcheck(operator.default, (q, k, k), test_utils="test_faketensor")


@pytest.mark.parametrize("masked", [False, True])
def test_captured_attention(masked: bool) -> None:
    q, k = (normal(2, h, 5, 8, seed=h).to(D).requires_grad_() for h in (4, 2))
    mask = (normal(5, 5, seed=3) > -1).to(D) if masked else None

    def f(q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask, enable_gqa=True)

    captured, plain = torch.compile(f, backend="aot_eager")(q, k), f(q, k)
    grad = normal(2, 4, 5, 8, seed=7).to(D)
    assert torch.equal(captured, plain)
    for ours, theirs in zip(
        torch.autograd.grad(captured, (q, k), grad),
        torch.autograd.grad(plain, (q, k), grad),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)

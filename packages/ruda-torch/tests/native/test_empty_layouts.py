"""Empty tensors of any layout give what contiguous ones give: their strides mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ruda_torch

from .support import same_bits
from .test_nf4_linear import BLOCK, IN, OUT, quantized

D = "ruda"


def layouts(shape: tuple[int, ...]) -> Iterator[Tensor]:
    """Tensors of ones, strided in every way that slicing, permuting and expanding give."""
    yield torch.ones(shape, device=D)
    yield torch.ones(shape[::-1], device=D).permute(*reversed(range(len(shape))))
    # the empty axis is a slice, so that the strides are those of a larger tensor
    larger = [max(size, 3) for size in shape]
    for step in (1, 2):
        base = torch.ones([*larger[:-1], step * larger[-1]], device=D)
        yield base[tuple(slice(0, size) for size in shape[:-1])][..., ::step][..., : shape[-1]]
        turned = torch.ones([step * larger[-1], *larger[:-1]], device=D).movedim(0, -1)
        yield turned[tuple(slice(0, size) for size in shape[:-1])][..., ::step][..., : shape[-1]]
    yield torch.ones((), device=D).expand(shape)


def attend(query: tuple[int, ...], key: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [query, key, key]


def varlen(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    ends = [torch.tensor([0, t.shape[0]], dtype=torch.int32, device=D) for t in (query, key)]
    return ruda_torch.varlen_attention(query, key, value, *ends)


def lora(x: Tensor) -> Tensor:
    frozen, _ = quantized()
    parts = frozen["packed"], frozen["scales"], frozen["codebook"]
    a, b = torch.ones(4, IN, device=D), torch.ones(OUT, 4, device=D)
    return torch.ops.ruda.nf4_lora_linear(x, *parts, None, a, b, 1.0, OUT, IN, BLOCK, 16)


def nf4(x: Tensor) -> Tensor:
    frozen, _ = quantized()
    return ruda_torch.nf4_linear(x, **frozen, out_features=OUT, in_features=IN, block_size=BLOCK)


def loss(hidden: Tensor) -> Tensor:
    target = torch.zeros(hidden.shape[:-1], dtype=torch.int64, device=D)
    return ruda_torch.linear_cross_entropy(
        hidden, torch.ones(5, hidden.shape[-1], device=D), target
    )[0]


def rotate(x: Tensor) -> Tensor:
    table = torch.ones(1, x.shape[1], 4, device=D)
    return ruda_torch.rotary(x, table, table)


CASES: list[tuple[str, Callable[..., Tensor], list[tuple[int, ...]]]] = [
    ("attention, no batch", ruda_torch.attention, attend((0, 2, 5, 8), (0, 2, 7, 8))),
    ("attention, no queries", ruda_torch.attention, attend((2, 2, 0, 8), (2, 2, 7, 8))),
    ("attention, no keys", ruda_torch.attention, attend((2, 2, 5, 8), (2, 2, 0, 8))),
    ("attention, one query, no keys", ruda_torch.attention, attend((1, 2, 1, 8), (1, 2, 0, 8))),
    ("attention, neither", ruda_torch.attention, attend((2, 2, 0, 8), (2, 2, 0, 8))),
    ("attention, no heads", ruda_torch.attention, attend((2, 0, 5, 8), (2, 1, 7, 8))),
    ("varlen_attention, nothing", varlen, attend((0, 2, 8), (0, 2, 8))),
    ("varlen_attention, no keys", varlen, attend((5, 2, 8), (0, 2, 8))),
    ("scaled_dot_product_attention", F.scaled_dot_product_attention,
     attend((2, 2, 0, 8), (2, 2, 7, 8))),
    ("rms_norm", ruda_torch.rms_norm, [(0, 8), (8,)]),
    ("rms_norm, inner axis", ruda_torch.rms_norm, [(3, 0, 8), (8,)]),
    ("layer_norm", ruda_torch.layer_norm, [(0, 8), (8,), (8,)]),
    ("aten::layer_norm", lambda x: F.layer_norm(x, (8,)), [(0, 8)]),
    ("softmax", lambda x: x.softmax(-1), [(0, 8)]),
    ("log_softmax, empty axis", lambda x: x.log_softmax(-1), [(3, 0)]),
    ("silu_mul", ruda_torch.silu_mul, [(0, 8), (0, 8)]),
    ("silu_mul, last axis", ruda_torch.silu_mul, [(3, 0), (3, 0)]),
    ("rotary, no batch", rotate, [(0, 3, 2, 8)]),
    ("rotary, no tokens", rotate, [(2, 0, 2, 8)]),
    ("nf4_linear", nf4, [(0, IN)]),
    ("nf4_lora_linear", lora, [(0, IN)]),
    ("linear_cross_entropy", loss, [(0, 8)]),
    ("mm", torch.mm, [(0, 8), (8, 5)]),
    ("mm, no sum", torch.mm, [(4, 0), (0, 5)]),
    ("bmm", torch.bmm, [(0, 3, 8), (0, 8, 5)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "run", "shapes"), CASES, ids=[case[0] for case in CASES])
def test_any_layout(name: str, run: Callable[..., Tensor], shapes: list[tuple[int, ...]]) -> None:
    results = []
    for tensors in zip(*(layouts(shape) for shape in shapes)):
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        out = run(*leaves)
        gradients = torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)
        assert out.isfinite().all()
        assert [g.shape for g in gradients if g is not None] == [
            leaf.shape for leaf, g in zip(leaves, gradients) if g is not None
        ]
        results.append([out, *gradients])
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            assert (left is None and right is None) or same_bits(left, right)

"""Matrix products through ruda-blas: values, layouts, out, and what is left to ATen."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import ruda_torch

from .support import check, normal

D = "ruda"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def launches() -> int:
    return ruda_torch.execution_stats()["native_launches"]


def layouts(tensor: Tensor) -> dict[str, Tensor]:
    """The same values on ruda in several memory layouts."""
    cols = tensor.shape[-1]
    wide = torch.full((*tensor.shape[:-1], 2 * cols + 3), torch.nan, dtype=tensor.dtype, device=D)
    sliced, strided = wide[..., 1 : cols + 1], wide.clone()[..., 2::2][..., :cols]
    sliced.copy_(tensor)
    strided.copy_(tensor)
    transposed = tensor.to(D).mT.contiguous().mT
    return {"rows": tensor.to(D), "cols": transposed, "sliced": sliced, "strided": strided}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 64, 33), (5, 7, 3), (64, 1, 65), (33, 130, 70)])
def test_mm(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, k, n = shape
    a, b = normal(m, k, seed=1, dtype=dtype), normal(k, n, seed=2, dtype=dtype)
    before = launches()
    result = a.to(D) @ b.to(D)
    assert launches() == before + 1
    check(result, a.double() @ b.double(), peer=a @ b)
    assert torch.equal(result, a.to(D) @ b.to(D))


@pytest.mark.parametrize("dtype", DTYPES)
def test_mm_layouts(dtype: torch.dtype) -> None:
    a, b = normal(9, 21, seed=1, dtype=dtype), normal(21, 14, seed=2, dtype=dtype)
    reference = a.double() @ b.double()
    for left, right in itertools.product(layouts(a).values(), layouts(b).values()):
        check(left @ right, reference)


def test_bmm_and_expanded_batches() -> None:
    a, b = normal(3, 5, 8, seed=1), normal(3, 8, 4, seed=2)
    check(torch.bmm(a.to(D), b.to(D)), a.double() @ b.double())
    one = b[:1].to(D).expand(3, 8, 4)
    check(torch.bmm(a.to(D), one), a.double() @ b[:1].double())
    q = normal(2, 6, 4, 8, seed=3)
    heads = q.to(D).transpose(1, 2)
    check(heads @ heads.mT, q.double().transpose(1, 2) @ q.double().transpose(1, 2).mT)


@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("alpha", [1.0, -2.0])
@pytest.mark.parametrize("rows", ["vector", "scalar", "row", "column", "full"])
def test_addmm(rows: str, alpha: float, beta: float) -> None:
    a, b = normal(6, 5, seed=1), normal(5, 4, seed=2)
    shape = {"vector": (4,), "scalar": (), "row": (1, 4), "column": (6, 1), "full": (6, 4)}[rows]
    c = normal(*shape, seed=3)
    reference = torch.addmm(c.double(), a.double(), b.double(), beta=beta, alpha=alpha)
    moved = c.to(D), a.to(D), b.to(D)
    check(torch.addmm(*moved, beta=beta, alpha=alpha), reference)
    out = torch.full((6, 4), torch.nan, device=D)
    check(torch.addmm(*moved, beta=beta, alpha=alpha, out=out), reference)
    if rows == "full":
        target = moved[0].clone()
        assert target.addmm_(moved[1], moved[2], beta=beta, alpha=alpha) is target
        check(target, reference)
        check(torch.addmm(*moved, beta=beta, alpha=alpha, out=moved[0]), reference)


def test_beta_zero_never_reads_the_input() -> None:
    a, b = normal(3, 5, seed=1), normal(5, 4, seed=2)
    nan = torch.full((3, 4), torch.nan, device=D)
    check(torch.addmm(nan, a.to(D), b.to(D), beta=0), a.double() @ b.double())
    check(nan.addmm_(a.to(D), b.to(D), beta=0), a.double() @ b.double())


@pytest.mark.parametrize("dtype", DTYPES)
def test_baddbmm(dtype: torch.dtype) -> None:
    a, b = normal(2, 6, 5, seed=1, dtype=dtype), normal(2, 5, 4, seed=2, dtype=dtype)
    c = normal(2, 6, 4, seed=3, dtype=dtype)
    reference = 0.5 * c.double() + 2 * (a.double() @ b.double())
    moved = c.to(D), a.to(D), b.to(D)
    check(torch.baddbmm(*moved, beta=0.5, alpha=2), reference)
    check(moved[0].clone().baddbmm_(*moved[1:], beta=0.5, alpha=2), reference)
    out = torch.empty_like(moved[0])
    check(torch.baddbmm(*moved, beta=0.5, alpha=2, out=out), reference)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_and_its_gradients(dtype: torch.dtype) -> None:
    x, w, b = (
        normal(*shape, seed=i, dtype=dtype) for i, shape in enumerate([(2, 7, 24), (18, 24), (18,)])
    )
    leaves = [t.to(D).requires_grad_() for t in (x, w, b)]
    twins = [t.double().requires_grad_() for t in (x, w, b)]
    grad = normal(2, 7, 18, seed=9, dtype=dtype)
    result = torch.nn.functional.linear(*leaves)
    reference = torch.nn.functional.linear(*twins)
    check(result, reference)
    for ours, theirs in zip(
        torch.autograd.grad(result, leaves, grad.to(D)),
        torch.autograd.grad(reference, twins, grad.double()),
        strict=True,
    ):
        check(ours, theirs, long=True)


def test_out_that_is_also_an_operand() -> None:
    a, b = normal(4, 4, seed=1), normal(4, 4, seed=2)
    reference = a.double() @ b.double()
    for which in (0, 1):
        moved = [a.to(D), b.to(D)]
        check(torch.mm(*moved, out=moved[which]), reference)
        moved = [a.to(D), b.to(D)]
        check(torch.mm(*moved, out=moved[which].t()), reference)
        moved = [a.to(D), b.to(D)]
        check(moved[which].addmm_(*moved, beta=0), reference)
    c = a.to(D)
    check(torch.addmm(c.t(), c, b.to(D), out=c), a.t().double() + reference)


def test_out_that_overlaps_itself() -> None:
    a = torch.ones(4, 4, device=D)
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.mm(a, a, out=torch.ones(1, 4, device=D).expand(4, 4))
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.ones(1, 4, device=D).expand(4, 4).addmm_(a, a)


@pytest.mark.parametrize("row_stride", [0, 1])
def test_out_of_one_row_with_any_row_stride(row_stride: int) -> None:
    a, b = normal(1, 64), normal(128, 256)
    spread = b.to(D)[::2, ::2]  # a layout that BLAS does not read in place
    out = torch.full((128,), torch.nan, device=D).as_strided((1, 128), (row_stride, 1))
    check(torch.mm(a.to(D), spread, out=out), a.double() @ b[::2, ::2].double())
    assert out.stride() == (row_stride, 1)


def test_out_of_wrong_size_or_layout() -> None:
    a, b = normal(3, 5, seed=1), normal(5, 4, seed=2)
    reference = a.double() @ b.double()
    out = torch.empty(0, device=D)
    check(torch.mm(a.to(D), b.to(D), out=out), reference)
    column = torch.empty(4, 3, device=D).mT
    check(torch.mm(a.to(D), b.to(D), out=column), reference)
    holes = torch.empty(3, 8, device=D)[:, ::2]
    check(torch.mm(a.to(D), b.to(D), out=holes), reference)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64, torch.uint8])
def test_other_dtypes_are_atens(dtype: torch.dtype) -> None:
    a = (normal(3, 5, seed=1).abs() * 3).to(dtype)
    b = (normal(5, 4, seed=2).abs() * 3).to(dtype)
    before = launches()
    torch.testing.assert_close((a.to(D) @ b.to(D)).cpu(), a @ b)
    assert launches() == before


def test_empty_sizes() -> None:
    for m, k, n in [(0, 3, 2), (2, 0, 3), (2, 3, 0)]:
        a, b = torch.ones(m, k, device=D), torch.ones(k, n, device=D)
        assert torch.equal((a @ b).cpu(), torch.zeros(m, n))
        c = torch.full((m, n), 2.0, device=D)
        assert torch.equal(torch.addmm(c, a, b, beta=0.5).cpu(), torch.full((m, n), 1.0))
    none = torch.bmm(torch.ones(0, 2, 3, device=D), torch.ones(0, 3, 4, device=D))
    assert none.shape == (0, 2, 4)


def test_nan_and_infinity_propagate() -> None:
    a = normal(3, 4, seed=1)
    a[0, 1], a[2, 2] = torch.nan, torch.inf
    b = normal(4, 2, seed=2)
    assert torch.equal((a.to(D) @ b.to(D)).cpu().isfinite(), (a @ b).isfinite())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: torch.mm(torch.ones(2, 3, device=D), torch.ones(2, 3, device=D)),
            "cannot be multi",
        ),
        (lambda: torch.mm(torch.ones(2, device=D), torch.ones(2, 3, device=D)), "must be a matrix"),
        (
            lambda: torch.mm(torch.ones(2, 3, device=D), torch.ones(3, 2, device=D).double()),
            "same dtype",
        ),
        (
            lambda: torch.bmm(torch.ones(2, 2, 3, device=D), torch.ones(3, 3, 2, device=D)),
            "Expected size for first two dimensions",
        ),
        (
            lambda: torch.addmm(
                torch.ones(7, device=D), torch.ones(2, 3, device=D), torch.ones(3, 2, device=D)
            ),
            "must match",
        ),
    ],
)
def test_errors_are_torchs(call, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        call()


def test_large_bfloat16_products() -> None:
    a = normal(257, 300, seed=1, dtype=torch.bfloat16)
    b = normal(300, 300, seed=2, dtype=torch.bfloat16)
    check(a.to(D) @ b.to(D), a.double() @ b.double(), peer=a @ b)

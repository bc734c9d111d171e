"""Reductions on the cuda target, against the CPU's in float64 or exactly."""

from __future__ import annotations

import pytest
import torch

import ruda_torch  # noqa: F401

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-12}
LAYOUTS = {
    "rows": lambda: torch.randn(5, 70),
    "transposed": lambda: torch.randn(70, 5).t(),
    "sliced": lambda: torch.randn(6, 4, 20)[1:, :, 3::2],
    "permuted": lambda: torch.randn(3, 4, 5, 6).permute(3, 1, 0, 2),
    "expanded": lambda: torch.randn(4, 1, 6).expand(4, 3, 6),
}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(3)


def pair(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """CPU and ruda, of the same strides where they are dense."""
    if not dtype.is_floating_point:
        x = (x * 4).round()
    x = x.to(dtype)
    return x, x.to("ruda").as_strided(x.shape, x.stride()) if x.is_contiguous() else x.to("ruda")


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    limit = TOLERANCE.get(actual.dtype, 0.0)
    torch.testing.assert_close(actual.cpu(), expected, rtol=limit, atol=limit, equal_nan=True)


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.dtype.is_floating_point else x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_and_means(layout: str, dtype: torch.dtype) -> None:
    x, y = pair(LAYOUTS[layout](), dtype)
    for dims in (None, 0, -1, (0, 1), (0, -1)):
        for keep in (False, True):
            if dims is None and keep:
                continue
            options = {} if dims is None else {"dim": dims, "keepdim": keep}
            same(y.sum(**options), wide(x).sum(**options).to(dtype))
            if dtype.is_floating_point:
                same(y.mean(**options), wide(x).mean(**options).to(dtype))


def test_dtype_arguments_and_promotion() -> None:
    x = torch.randn(3, 300)
    low = x.bfloat16()
    same(low.to("ruda").sum(1, dtype=torch.float32), low.double().sum(1).float())
    same(low.to("ruda").mean(dtype=torch.float64), low.double().mean())
    truth = x > 0.3
    same(truth.to("ruda").sum(), truth.sum())
    same(truth.to("ruda").sum(1, dtype=torch.float32), truth.sum(1, dtype=torch.float32))
    for dtype in (torch.int32, torch.uint8, torch.int8):
        whole = torch.randint(0, 9, (4, 5), dtype=dtype)
        same(whole.to("ruda").sum(0), whole.sum(0))
        same(whole.to("ruda").prod(1), whole.prod(1))
    with pytest.raises(RuntimeError, match="mean"):
        whole.to("ruda").mean()


def test_what_is_composed_of_sums() -> None:
    x, y = pair(torch.randn(5, 6), torch.float32)
    same(y.trace(), x.double().trace().float())
    same(up_to_nan(y).nansum(1), up_to_nan(x).double().nansum(1).float())
    same(y.int().nansum(), x.int().nansum())


def up_to_nan(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(x > 1, float("nan"))


def test_out_arguments() -> None:
    x, y = pair(torch.randn(3, 4), torch.float32)
    out = torch.empty(4, device="ruda")
    assert torch.sum(y, 0, out=out) is out
    same(out, x.sum(0))
    strided = torch.zeros(4, 2, device="ruda")[:, 0]
    torch.mean(y, 0, out=strided)
    same(strided, x.mean(0))


def test_empty_tensors() -> None:
    for shape, dim in (((0, 3), 0), ((2, 0), 0), ((2, 0), 1), ((0,), None)):
        x, y = pair(torch.randn(shape), torch.float32)
        for name in ("sum", "mean", "prod", "any", "all"):
            arguments = () if dim is None else (dim,)
            same(getattr(y, name)(*arguments), getattr(x, name)(*arguments))
    same(torch.empty(0, device="ruda").norm(), torch.empty(0).norm())
    with pytest.raises(RuntimeError, match=r"max\(\)"):
        torch.empty(0, device="ruda").max()
    with pytest.raises(IndexError, match="non-zero size"):
        torch.empty(0, 2, device="ruda").max(0)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int32, torch.bool], ids=str)
def test_extremes_and_places(dtype: torch.dtype) -> None:
    x, y = pair(torch.randn(4, 5, 33), dtype)
    if dtype == torch.float32:
        x[1, 2, 3] = x[1, 2, 8] = float("nan")
        x[2, 2, 3] = -float("inf")
        y = x.to("ruda")
    for name in ("amax", "amin"):
        same(getattr(y, name)((0, 2)), getattr(x, name)((0, 2)))
    for name in ("max", "min"):
        same(getattr(y, name)(), getattr(x, name)())
        for dim in (0, 1, -1):
            found, right = getattr(y, name)(dim), getattr(x, name)(dim)
            same(found.values, right.values)
            if dtype.is_floating_point:  # no ties that ATen may break otherwise
                same(found.indices, right.indices)
            kept = getattr(y, name)(dim, keepdim=True)
            assert kept.values.shape == kept.indices.shape == x.amax(dim, keepdim=True).shape
    if dtype == torch.bool:
        return
    for name in ("argmax", "argmin"):
        same(getattr(y, name)(1), getattr(x, name)(1))
        same(getattr(y, name)(), getattr(x, name)())
        same(getattr(y, name)(-1, keepdim=True), getattr(x, name)(-1, keepdim=True))


def test_ties_go_to_the_first() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], device="ruda")
    assert x.argmax(1).tolist() == [1, 0]
    assert x.max(1).indices.tolist() == [1, 0]
    long = torch.zeros(40000, device="ruda")
    long[[7000, 30000]] = 1.0
    assert long.argmax().item() == 7000


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int64, torch.uint8], ids=str)
def test_any_all_and_counts(dtype: torch.dtype) -> None:
    x = torch.randint(0, 5, (6, 20)) % 3
    x[2], x[4] = 0, 1
    x, y = pair(x.float() / 4, dtype)
    for name in ("any", "all"):
        same(getattr(y, name)(), getattr(x, name)())
        same(getattr(y, name)(1), getattr(x, name)(1))
        same(getattr(y, name)((0, 1)), getattr(x, name)((0, 1)))
    same(y.count_nonzero(), x.count_nonzero())
    same(y.count_nonzero(1), x.count_nonzero(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("order", [0, 1, 2, 3, float("inf"), -float("inf")])
def test_norms(dtype: torch.dtype, order: float) -> None:
    x, y = pair(torch.randn(5, 40), dtype)
    for dim in (None, 0, (0, 1)):
        same(torch.linalg.vector_norm(y, order, dim=dim),
             torch.linalg.vector_norm(x.double(), order, dim=dim).to(dtype))  # fmt: skip
    same(torch.linalg.vector_norm(y, order, 1, dtype=torch.float32),
         torch.linalg.vector_norm(x.double(), order, 1).float())  # fmt: skip


def test_norm_and_clipping() -> None:
    x, y = pair(torch.randn(5, 40), torch.float32)
    same(y.norm(), x.norm())
    same(y.norm(1, dim=0), x.norm(1, dim=0))
    parameters = [torch.nn.Parameter(torch.zeros(4, device="ruda")) for _ in range(2)]
    for parameter in parameters:
        parameter.grad = torch.full((4,), 3.0, device="ruda")
    total = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    assert total.item() == pytest.approx(72**0.5, rel=1e-6)
    assert parameters[0].grad.norm().item() == pytest.approx(0.5**0.5, rel=1e-5)


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_norms_of_nothing(order: float) -> None:
    x = torch.randn(3, 0)
    for dtype in (torch.float32, torch.bfloat16):
        y = x.to("ruda", dtype)
        same(torch.linalg.vector_norm(y, order, 1), torch.linalg.vector_norm(x.to(dtype), order, 1))
        same(torch.linalg.vector_norm(y, order), torch.linalg.vector_norm(x.to(dtype), order))
    weights = [torch.ones(2, device="ruda"), torch.ones(0, device="ruda")]
    for weight in weights:
        weight.grad = weight * 3
    assert torch.nn.utils.clip_grad_norm_(weights, 1.0).item() == pytest.approx(18**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_cumulative_sums(dtype: torch.dtype) -> None:
    x, y = pair(torch.randn(3, 7, 40), dtype)
    for dim in (0, 1, 2):
        same(y.cumsum(dim), wide(x).cumsum(dim).to(x.cumsum(dim).dtype))
    same(y.transpose(0, 2).cumsum(1), wide(x).transpose(0, 2).cumsum(1).to(x.cumsum(0).dtype))
    if dtype != torch.bool:
        y.cumsum_(1)
        same(y, wide(x).cumsum(1).to(dtype))
    same(torch.tensor(2.0, device="ruda").cumsum(0), torch.tensor(2.0))


def test_variances_and_logsumexp() -> None:
    x, y = pair(torch.randn(4, 50), torch.float32)
    same(y.var(), x.double().var().float())
    same(y.std(1, correction=0), x.double().std(1, correction=0).float())
    spread, middle = torch.var_mean(y, 1, keepdim=True)
    same(spread, x.double().var(1, keepdim=True).float())
    same(middle, x.double().mean(1, keepdim=True).float())
    same(y.logsumexp(1), x.double().logsumexp(1).float())


def test_long_reductions_are_split_and_bit_equal() -> None:
    x, y = pair(torch.randn(1, 50000), torch.float32)
    first = y.sum()
    same(first, x.double().sum().float())
    assert torch.equal(y.sum().cpu(), first.cpu())
    assert torch.equal(y.amax().cpu(), x.amax())
    tall, high = pair(torch.randn(3000, 3), torch.float32)
    same(high.sum(0), tall.double().sum(0).float())


def test_gradients() -> None:
    x = torch.randn(4, 6)
    weight = torch.randn(4, 6)
    results = []
    for device in ("cpu", "ruda"):
        leaf = x.detach().clone().to(device).requires_grad_()
        value = (leaf * weight.to(device)).sum(0).mean() + leaf.amax(1).sum() + leaf.norm()
        value.backward()
        results.append(leaf.grad.cpu())
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


def test_the_kernels_convert_what_they_sum() -> None:
    """No converted copy of the tensor is made first."""
    x = torch.randn(64, 96).bfloat16().to("ruda")
    torch.ruda.synchronize()
    for call in (lambda: x.sum(1, dtype=torch.float32), lambda: (x > 0).sum(0)):
        call()
        torch.ruda.reset_peak_memory_stats()
        before = torch.ruda.memory_allocated()
        call()
        mask = x.numel()
        assert torch.ruda.max_memory_allocated() - before <= mask + 4096

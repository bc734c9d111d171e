"""Operators under PyTorch's transforms, modes and threads."""

from __future__ import annotations

import threading

import torch
import torch.autograd.forward_ad as forward_ad
from torch.func import grad, hessian, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from .support import normal

D = "ruda"


def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w).softmax(-1).square().sum()


def test_vmap_and_hessian() -> None:
    x, w = normal(5, 3, seed=1), normal(3, 3, seed=2)
    ours = vmap(grad(f), (0, None))(x.to(D), w.to(D))
    torch.testing.assert_close(ours.cpu(), vmap(grad(f), (0, None))(x, w))
    ours = hessian(lambda v: f(v, w.to(D)))(x[0].to(D))
    torch.testing.assert_close(ours.cpu(), hessian(lambda v: f(v, w))(x[0]))


def test_random_numbers_under_vmap() -> None:
    base = torch.zeros(4, device=D)
    torch.manual_seed(0)
    rows = vmap(lambda k: torch.rand(3, device=D) + k, randomness="different")(base)
    assert rows.unique().numel() == 12
    rows = vmap(lambda k: torch.rand(3, device=D) + k, randomness="same")(base)
    assert torch.equal(rows, rows[:1].expand(4, 3))


def test_forward_mode() -> None:
    x = normal(5, 3, seed=1).to(D)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        tangent = forward_ad.unpack_dual((dual * dual).sum() + (dual @ dual.T).trace()).tangent
    torch.testing.assert_close(tangent, 4 * x.sum())


def test_dispatch_mode_sees_device_operators_only() -> None:
    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x = torch.ones(2, 2, device=D)
    with Log():
        torch.linalg.lstsq(x, x)
        torch.logsumexp(x, 0)
    assert "aten.logsumexp.default" in seen
    assert not [name for name in seen if "amax" in name or "exp_" in name]


def test_many_threads() -> None:
    faults = []

    def work(i: int) -> None:
        try:
            for _ in range(50):
                a = torch.full((40, 40), float(i), device=D)
                assert torch.all(a @ a == 40 * i * i) and torch.all(torch.sort(a).values == i)
                assert torch.cat([a, a]).sum().item() == 3200 * i
        except BaseException as fault:  # handed to the test's thread
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_python_indexing() -> None:
    base = torch.arange(12.0).view(4, 3)
    for index in (
        [0, 2], [True, False, True, False], (slice(None), [1]), None, (..., 0), torch.tensor(1),
        (slice(None, None, 2), slice(1, 3)), ([0, 1], [2, 0]), -1, (None, 1, None),
    ):  # fmt: skip
        assert torch.equal(base.to(D)[index].cpu(), base[index])
        ours, theirs = base.to(D), base.clone()
        ours[index] = 7.0
        theirs[index] = 7.0
        assert torch.equal(ours.cpu(), theirs)
    mask = base > 4
    assert torch.equal(base.to(D)[mask.to(D)].cpu(), base[mask])
    assert torch.equal(base.to(D)[mask.to(D)].cpu(), base.to(D).masked_select(mask.to(D)).cpu())


def test_shapes_that_depend_on_values() -> None:
    x = torch.tensor([3, 1, 3, 0, 1], device=D)
    unique, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    assert (unique.tolist(), inverse.tolist(), counts.tolist()) == (
        [0, 1, 3], [2, 1, 2, 0, 1], [1, 2, 2],
    )  # fmt: skip
    assert torch.nonzero(x).flatten().tolist() == [0, 1, 2, 4]
    assert torch.repeat_interleave(torch.tensor([1, 0, 2], device=D)).tolist() == [0, 2, 2]
    assert x.repeat_interleave(2)[:4].tolist() == [3, 3, 1, 1]
    assert torch.bincount(x).tolist() == [1, 2, 0, 2]
    assert torch.masked_select(x, x > 1).tolist() == [3, 3]
    assert torch.unique_consecutive(x).tolist() == [3, 1, 3, 0, 1]
    assert [part.tolist() for part in torch.where(x == 3)] == [[0, 2]]

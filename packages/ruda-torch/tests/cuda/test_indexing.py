"""Reading and writing by index, and what is made by position, on the cuda target."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ruda_torch  # noqa: F401

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool,
          torch.complex64]  # fmt: skip


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(7)


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype == torch.complex64:
        return torch.randn(shape, dtype=dtype)
    return (torch.randn(shape) * 9).to(dtype)


def up(value: object) -> object:
    """The same on ruda: tensors alone and in tuples."""
    if isinstance(value, torch.Tensor):
        return value.to("ruda")
    return tuple(up(each) for each in value) if isinstance(value, tuple) else value


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "ruda" and actual.dtype == expected.dtype
    assert torch.equal(actual.cpu(), expected)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    limit = 1.6e-2 if actual.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(actual.cpu(), expected, rtol=limit, atol=limit)


# ---- embedding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_embedding_and_its_gradient(dtype: torch.dtype, index: torch.dtype) -> None:
    weight = values(11, 24, dtype=dtype)
    tokens = torch.randint(0, 11, (3, 40), dtype=index)
    grad = values(3, 40, 24, dtype=dtype)
    for padding in (None, 4):
        leaf = weight.to("ruda").requires_grad_()
        right = weight.detach().float().requires_grad_()
        out = torch.nn.functional.embedding(tokens.to("ruda"), leaf, padding_idx=padding)
        reference = torch.nn.functional.embedding(tokens, right, padding_idx=padding)
        same(out.detach(), reference.detach().to(dtype))
        out.backward(grad.to("ruda"))
        reference.backward(grad.float())
        close(leaf.grad, right.grad.to(dtype))
        again = weight.to("ruda").requires_grad_()
        torch.nn.functional.embedding(tokens.to("ruda"), again, padding_idx=padding).backward(
            grad.to("ruda")
        )
        assert torch.equal(again.grad.cpu(), leaf.grad.cpu())


def test_embedding_refusals() -> None:
    weight = torch.randn(5, 4, device="ruda", requires_grad=True)
    embedding = torch.nn.functional.embedding
    for wrong in (5, -1, 2**40):
        with pytest.raises(IndexError, match=r"\[embedding\] index out of range: wanted 0 to 4"):
            embedding(torch.tensor([1, wrong], device="ruda"), weight)
    with pytest.raises(RuntimeError, match=r"same device: argument indices is on cpu"):
        embedding(torch.tensor([1]), weight)
    out = embedding(torch.tensor([1], device="ruda"), weight, scale_grad_by_freq=True)
    with pytest.raises(NotImplementedError, match="scale_grad_by_freq"):
        out.sum().backward()


# ---- x[...] -------------------------------------------------------------------------------------

INDICES = {
    "one": lambda: (torch.tensor([3, 0, -1, 3]),),
    "int32": lambda: (torch.tensor([3, 0, -1], dtype=torch.int32),),
    "matrix": lambda: (torch.randint(-4, 4, (2, 3)),),
    "second": lambda: (slice(None), torch.tensor([1, -5, 2])),
    "last": lambda: (Ellipsis, torch.tensor([1, 0])),
    "two": lambda: (torch.tensor([0, 3]), torch.tensor([4, -1])),
    "broadcast": lambda: (torch.tensor([[0], [3]]), torch.tensor([4, -1, 2])),
    "apart": lambda: (torch.tensor([0, 3]), slice(None), torch.tensor([4, -1])),
    "all": lambda: (torch.tensor([0, 3]), torch.tensor([1, 2]), torch.tensor([4, -1])),
    "mask": lambda: (torch.tensor([True, False, True, True]),),
    "mask of two": lambda: (torch.rand(4, 5) > 0.5,),
    "mask of all": lambda: (torch.rand(4, 5, 6) > 0.5,),
    "inner mask": lambda: (slice(1, 3), torch.tensor([True, False, True, True, False])),
    "mask and index": lambda: (torch.tensor([True, False, True, False]), torch.tensor([4, 0])),
    "new dimension": lambda: (None, torch.tensor([1, 2])),
    "empty": lambda: (torch.zeros(0, dtype=torch.int64),),
    "nothing": lambda: (torch.zeros(4, dtype=torch.bool),),
}


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("turned", [False, True])
def test_read(name: str, turned: bool) -> None:
    x = values(4, 5, 6) if not turned else values(6, 5, 4).permute(2, 1, 0)
    index = INDICES[name]()
    same(up(x)[up(index)], x[index])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_read_dtypes(dtype: torch.dtype) -> None:
    x = values(7, 3, dtype=dtype)
    index = torch.tensor([6, 0, 3])
    same(up(x)[up(index)], x[index])
    same(up(x)[index], x[index])  # an index on the CPU is moved
    mask = torch.rand(7, 3) > 0.4
    same(up(x)[up(mask)], x[mask])


@pytest.mark.parametrize("name", [name for name in INDICES if name != "new dimension"])
@pytest.mark.parametrize("turned", [False, True])
def test_write(name: str, turned: bool) -> None:
    base = values(4, 5, 6) if not turned else values(6, 5, 4)
    index = INDICES[name]()
    if name in ("one", "matrix"):
        index = (torch.tensor([2, 0]),)  # without repetition, whose last writer is not defined
    for new in (2.5, "row", "whole"):
        x, y = base.clone(), up(base.clone())
        if turned:
            x, y = x.permute(2, 1, 0), y.permute(2, 1, 0)
        shape = x[index].shape
        value = new
        if new == "row":
            value = values(*shape[-1:])
        elif new == "whole":
            value = values(*shape)
        x[index] = value
        y[up(index)] = up(value)
        same(y, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_added_writes(dtype: torch.dtype) -> None:
    x = values(6, 4, dtype=dtype)
    index = torch.randint(-6, 6, (50,))
    new = (values(50, 4) / 10).to(dtype)
    right = x.double().index_put((index,), new.double(), accumulate=True).to(dtype)
    close(up(x).index_put((up(index),), up(new), accumulate=True), right)
    two = (torch.randint(0, 6, (30,)), torch.randint(0, 4, (30,)))
    y = up(x)
    y.index_put_(up(two), up(torch.ones((), dtype=dtype)), accumulate=True)
    ones = torch.ones((), dtype=torch.double)
    close(y, x.double().index_put(two, ones, accumulate=True).to(dtype))


def test_gradient_of_a_read() -> None:
    x, index = values(5, 3), torch.tensor([1, 1, 4, 1])
    leaf, right = up(x).requires_grad_(), x.clone().requires_grad_()
    (leaf[up(index)] * 2).sum().backward()
    (right[index] * 2).sum().backward()
    close(leaf.grad, right.grad)


def test_index_refusals() -> None:
    x = torch.zeros(4, 5, device="ruda")
    for index in ((torch.tensor([4]),), (torch.tensor([0]), torch.tensor([-6]))):
        with pytest.raises(IndexError, match=r"\[index\] index out of range"):
            x[up(index)]
        with pytest.raises(IndexError, match=r"\[index_put_\] index out of range"):
            x[up(index)] = 1.0
    with pytest.raises(IndexError, match="shape of the mask"):
        x[torch.ones(3, dtype=torch.bool, device="ruda")]
    with pytest.raises(IndexError, match="dtype"):
        x[torch.tensor([1.0], device="ruda")]
    assert not x.any()


# ---- along a dimension --------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_select_add_copy_fill(dim: int) -> None:
    x = values(5, 6, 7)
    index = torch.tensor([3, 0, 3])
    part = values(*[3 if d == dim % 3 else n for d, n in enumerate(x.shape)])
    same(up(x).index_select(dim, up(index)), x.index_select(dim, index))
    close(up(x).index_add(dim, up(index), up(part), alpha=-2),
          x.index_add(dim, index, part, alpha=-2))  # fmt: skip
    once = torch.tensor([4, 1, 2])
    same(up(x).index_copy(dim, up(once), up(part)), x.index_copy(dim, once, part))
    same(up(x).index_fill(dim, up(once), 3.0), x.index_fill(dim, once, 3.0))
    turned, right = up(x).transpose(0, 2), x.clone().transpose(0, 2)
    turned.index_add_(0, up(index), up(torch.ones(3, 6, 5)))
    close(turned, right.index_add_(0, index, torch.ones(3, 6, 5)))
    same(up(x[0, 0, 0]).index_select(0, up(index[1:2])), x[0, 0, 0])
    with pytest.raises(IndexError, match=r"\[index_select\] index out of range"):
        up(x).index_select(dim, torch.tensor([-1], device="ruda"))


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_gather_and_scatter(dim: int, dtype: torch.dtype) -> None:
    x = values(4, 5, 6, dtype=dtype)
    shape = [3 if d == dim else n - 1 for d, n in enumerate(x.shape)]
    index = torch.rand([4 if d == dim else n - 1 for d, n in enumerate(x.shape)]).argsort(dim)
    index = index.narrow(dim, 0, 3)
    same(up(x).gather(dim, up(index)), x.gather(dim, index))
    source = values(4, 5, 6, dtype=dtype)
    same(up(x).scatter(dim, up(index), up(source)), x.scatter(dim, index, source))
    same(up(x).scatter(dim, up(index), 3), x.scatter(dim, index, 3))
    again = torch.randint(0, 4, shape)
    right = x.double().scatter_add(dim, again, source.double()).to(dtype)
    close(up(x).scatter_add(dim, up(again), up(source)), right)
    turned, expected = up(x).transpose(0, 1), x.clone().transpose(0, 1)
    turned.scatter_(0, up(index[:1, :1, :1]), 1)
    same(turned, expected.scatter_(0, index[:1, :1, :1], 1))


def test_gather_gradient_and_one_long_dimension() -> None:
    logits, labels = values(6, 9), torch.randint(0, 9, (6, 1))
    leaf, right = up(logits).requires_grad_(), logits.clone().requires_grad_()
    leaf.gather(1, up(labels)).sum().backward()
    right.gather(1, labels).sum().backward()
    close(leaf.grad, right.grad)
    index = torch.randint(0, 5, (300,))
    counts = torch.zeros(5, device="ruda").scatter_add_(0, up(index), torch.ones(300).to("ruda"))
    assert torch.equal(counts.cpu(), index.bincount(minlength=5).float())
    same(up(index).bincount(minlength=7), index.bincount(minlength=7))
    with pytest.raises(IndexError, match=r"\[gather\] index out of range: wanted 0 to 8"):
        up(logits).gather(1, torch.full((6, 1), 9, device="ruda"))
    with pytest.raises(RuntimeError, match="dtype"):
        up(logits).scatter(1, up(labels), up(labels))


# ---- masks --------------------------------------------------------------------------------------


def test_nonzero_and_masks() -> None:
    x = values(5, 40) * (torch.rand(5, 40) > 0.7)
    same(up(x).nonzero(), x.nonzero())
    for found, right in zip(up(x).nonzero(as_tuple=True), x.nonzero(as_tuple=True), strict=True):
        same(found, right)
    same(up(x[0, 0] * 0 + 1).nonzero(), torch.ones(()).nonzero())
    same(torch.zeros(3, 0, device="ruda").nonzero(), torch.zeros(3, 0).nonzero())
    mask = x > 0
    same(up(x).masked_select(up(mask)), x.masked_select(mask))
    same(up(x).masked_select(up(mask[0])), x.masked_select(mask[0]))
    source = values(200)
    same(up(x).masked_scatter(up(mask), up(source)), x.masked_scatter(mask, source))
    with pytest.raises(RuntimeError, match="wanted one for each"):
        up(x).masked_scatter(up(mask), up(source[:3]))
    same(up(x).take(torch.tensor([[3, -1]], device="ruda")), x.take(torch.tensor([[3, -1]])))
    assert repr(up(mask[0, :2])).startswith("tensor([")


# ---- joined and made by position ----------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat_and_stack(dim: int) -> None:
    parts = [values(2, 3, 4), values(2, 3, 4).transpose(1, 2).contiguous().transpose(1, 2)]
    there = [up(part) for part in parts]
    same(torch.cat(there, dim), torch.cat(parts, dim))
    same(torch.stack(there, dim), torch.stack(parts, dim))
    mixed = [parts[0], parts[1].double(), (parts[0] * 3).to(torch.int64)]
    same(torch.cat([up(part) for part in mixed], dim), torch.cat(mixed, dim))
    empty = torch.zeros(0)
    same(torch.cat([up(empty), there[0]], dim), torch.cat([empty, parts[0]], dim))
    out = torch.empty(0, device="ruda")
    torch.cat(there, dim, out=out)
    same(out, torch.cat(parts, dim))


def test_cat_refusals() -> None:
    x = torch.zeros(2, 3, device="ruda")
    with pytest.raises(RuntimeError, match=r"\[cat\] Expected all tensors to be on the same"):
        torch.cat([x, torch.zeros(2, 3)])
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        torch.cat([x, torch.zeros(2, 4, device="ruda")])


def test_sequences() -> None:
    for arguments in ((7,), (2, 9, 3), (5, -5, -2), (0.5, 2.0, 0.25)):
        same(torch.arange(*arguments, device="ruda"), torch.arange(*arguments))
    same(torch.arange(3, dtype=torch.bfloat16, device="ruda"), torch.arange(3.0).bfloat16())
    for steps in (0, 1, 2, 9):
        close(torch.linspace(-1, 2, steps, device="ruda"), torch.linspace(-1, 2, steps))
    whole = {"dtype": torch.int64}
    same(torch.linspace(-3, 9, 8, **whole, device="ruda"), torch.linspace(-3, 9, 8, **whole))
    same(torch.eye(3, 5, device="ruda"), torch.eye(3, 5))
    same(torch.eye(4, dtype=torch.bool, device="ruda"), torch.eye(4, dtype=torch.bool))
    x = values(3, 4)
    same(up(x).repeat(2, 1, 3), x.repeat(2, 1, 3))
    same(up(x).repeat_interleave(3, 0), x.repeat_interleave(3, 0))
    counts = torch.tensor([2, 0, 3])
    same(up(x).repeat_interleave(up(counts), 0), x.repeat_interleave(counts, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16], ids=str)
def test_arrangements(dtype: torch.dtype) -> None:
    x = values(2, 5, 7, dtype=dtype)
    for diagonal in (-2, 0, 3):
        same(up(x).tril(diagonal), x.tril(diagonal))
        same(up(x).transpose(1, 2).triu(diagonal), x.transpose(1, 2).triu(diagonal))
    same(up(x).triu_(1), x.triu(1))
    same(up(x).flip(0, 2), x.flip(0, 2))
    same(up(x).roll(2, 1), x.roll(2, 1))
    same(up(x).roll((1, -3), (0, 2)), x.roll((1, -3), (0, 2)))
    same(up(x).roll(-4), x.roll(-4))


def test_equality_and_membership() -> None:
    x = values(3, 4)
    assert torch.equal(up(x), up(x)) and not torch.equal(up(x), up(x + 1))
    assert not torch.equal(up(x), up(x[:2]))
    tokens, stops = torch.randint(0, 5, (4, 3)), torch.tensor([2, 4])
    same(torch.isin(up(tokens), up(stops)), torch.isin(tokens, stops))
    same(torch.isin(up(tokens), 2, invert=True), torch.isin(tokens, 2, invert=True))
    assert up(x)[1, 2].item() == x[1, 2].item()


# ---- order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_sort_and_topk(dtype: torch.dtype, dim: int) -> None:
    x = torch.randperm(240).sub(90).reshape(4, 60).to(dtype)  # without ties
    for descending in (False, True):
        found = up(x).sort(dim, descending=descending)
        right = x.sort(stable=True, dim=dim, descending=descending)
        same(found.values, right.values)
        same(found.indices, right.indices)
        found, right = up(x).topk(3, dim, descending), x.topk(3, dim, descending)
        same(found.values, right.values)
        same(found.indices, right.indices)
    same(up(x).argsort(dim), x.argsort(dim))
    with pytest.raises(RuntimeError, match="out of range"):
        up(x).topk(61)


def test_long_rows_are_sorted_in_chunks() -> None:
    x = torch.randint(0, 900, (2, 5000)).float()
    found, right = up(x).topk(7), x.sort(stable=True, descending=True)
    same(found.values, right.values[:, :7])
    same(found.indices, right.indices[:, :7])


def test_ties_keep_their_order() -> None:
    x = torch.randint(0, 5, (2, 90)).float()
    x[0, 7] = float("nan")
    for descending in (False, True):
        found = up(x).sort(1, descending=descending)
        right = x.sort(stable=True, dim=1, descending=descending)
        same(found.indices, right.indices)


# ---- processes of their own ---------------------------------------------------------------------


def run(arguments: list[str], **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUDA_")}
    double = {"RUDA_TARGET": "cuda", "RUDA_CUDA_DRIVER": "double"}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**kept, **double, **settings}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_launches_are_those_of_launch_py(request: pytest.FixtureRequest) -> None:
    """Dtypes, constants, promised alignment and grids, on the double."""
    if request.config.getoption("--target") != "double":
        pytest.skip("the driver double counts launches")
    script = Path(__file__).with_name("indexing_launches.py")
    done = run([str(script)], RUDA_DOUBLE_RECORD_ONLY="1")
    assert done.returncode == 0, done.stdout + done.stderr


QUEUED = """
import torch
import ruda_torch
table = torch.arange(1.0, 7.0, device="ruda").reshape(3, 2)
index = torch.tensor([2, 3, -4], device="ruda")
print(torch.nn.functional.embedding(index, table).tolist(), table[index].tolist())
table[index] = 0.0
table.index_add_(0, index, torch.ones(3, 2, device="ruda"))
print(table.tolist())
"""


def test_queued_indices_out_of_range_read_zeros_and_write_nothing(
    request: pytest.FixtureRequest,
) -> None:
    if request.config.getoption("--target") != "double":
        pytest.skip("starts a process on the driver double")
    done = run(["-c", QUEUED], RUDA_ASYNC="1", RUDA_TORCH_ASYNC="1")
    assert done.returncode == 0, done.stderr
    zeros = [[5.0, 6.0], [0.0, 0.0], [0.0, 0.0]]
    table = [[1.0, 2.0], [3.0, 4.0], [1.0, 1.0]]
    assert done.stdout == f"{zeros} {zeros}\n{table}\n"

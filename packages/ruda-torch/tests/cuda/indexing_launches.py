"""What reductions and indexing operators launch beside what launch.py of ruda_dnn/reduction and
ruda_dnn/indexing says, for test_indexing.py: a process of its own, on the driver double in
record-only mode.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import torch

import ruda_torch  # noqa: F401
from ruda_dnn.indexing import launch as indexing
from ruda_dnn.reduction import launch as reduction
from ruda_runtime.launch import Launch, View
from ruda_runtime.testing.launches import differences, scratch

NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float64: "float64",
         torch.int64: "int64", torch.int32: "int32", torch.bool: "bool",
         torch.complex64: "int64"}  # fmt: skip
FLAG = scratch((1,), "int32")


def new(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="ruda")


def view(tensor: torch.Tensor) -> View:
    return View(tensor.data_ptr(), NAMES[tensor.dtype], tuple(tensor.shape), tensor.stride())


def dims(
    x: torch.Tensor, out: torch.Tensor, axes: tuple[int, ...]
) -> tuple[reduction.Dims, reduction.Dims]:
    left = iter(out.stride())
    kept = [(n, (x.stride(d), next(left))) for d, n in enumerate(x.shape) if d not in axes]
    reduced = [(x.shape[d], (x.stride(d), 0)) for d in axes]
    one, two = (
        reduction.coalesced([n for n, _ in each], [s for _, s in each]) for each in (kept, reduced)
    )
    return one, two


LAYOUTS = [
    ((5, 70), None, (1,)),
    ((67, 7), None, (1,)),
    ((2, 2500), None, (1,)),
    ((45, 70), None, (0,)),
    ((30, 40), None, (0, 1)),
    ((3, 9, 20), None, (1,)),
    ((4, 5, 6), (2, 0, 1), (0, 2)),
    ((3, 4, 5, 6), (3, 1, 0, 2), (0, 2)),
    ((90_000,), None, (0,)),
    ((1200, 3), None, (0,)),
]


def reductions() -> Iterator[list[Launch]]:
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64):
        for shape, order, axes in LAYOUTS:
            x = new(*shape, dtype=dtype)
            x = x if order is None else x.permute(order)
            out = x.sum(axes)
            kept, reduced = dims(x, out, axes)
            said = partial(reduction.reduce, view(x), view(out), kept, reduced, scratch=scratch)
            yield said(combine="sum")
            x.amax(axes)
            yield said(combine="max")
            if dtype.is_floating_point:
                x.mean(axes)
                yield said(combine="sum", finish="divide", parameter=2.0)
                torch.linalg.vector_norm(x, 2, axes)
                yield said(combine="sum", mapping="square", finish="sqrt", parameter=2.0)
            if len(axes) > 1:
                continue
            places = x.argmax(axes[0])
            step = x.stride(axes[0])
            count = x.shape[axes[0]]
            yield reduction.locate(view(x), None, view(places), kept, count, step, largest=True,
                                   scratch=scratch)  # fmt: skip
            x.min(axes[0])
            yield reduction.locate(view(x), view(out), view(places), kept, count, step,
                                   largest=False, scratch=scratch)  # fmt: skip
    for dtype in (torch.float32, torch.int64):
        for axis in (0, 1, 2):
            x = new(4, 30, 20, dtype=dtype)
            yield reduction.cumulate(view(x), view(x.cumsum(axis)), axis)


def lookups() -> Iterator[list[Launch]]:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        for kind in (torch.int64, torch.int32):
            for inner in (1, 9, 32, 64, 300, 1030):
                table, index = new(11, inner, dtype=dtype), new(13, dtype=kind)
                out = table[index]
                shape = (1, 11, inner)
                yield indexing.take(view(table), view(index), view(out), shape, wrap=True,
                                    flag=FLAG)  # fmt: skip
                table[index] = out
                yield indexing.put(view(table), view(index), view(out), shape, wrap=True,
                                   flag=FLAG)  # fmt: skip
                if dtype in (torch.float32, torch.bfloat16, torch.int64):
                    table.index_add_(0, index, out)
                    yield indexing.accumulate(view(table), view(index), view(out), shape,
                                              flag=FLAG, scratch=scratch)  # fmt: skip
        for axis in (0, 1, 2):
            table, index = new(4, 5, 6, dtype=dtype), new(4, 5, 6, dtype=torch.int64)
            inner = (30, 6, 1)[axis]
            shape = (table.numel() // inner // table.shape[axis], table.shape[axis], inner)
            out = table.gather(axis, index)
            yield indexing.gather(view(table), view(index), view(out), shape, FLAG)
            table.scatter_(axis, index, out)
            yield indexing.scatter(view(table), view(index), view(out), shape, FLAG)
            if dtype in (torch.float32, torch.int64):
                table.scatter_add_(axis, index, out)
                yield indexing.scatter_add(view(table), view(index), view(out), shape, FLAG)
    table, index = new(7, 5), new(13, dtype=torch.int64)
    out = table[index, index]
    places = View(0, "int64", (13,), (1,))
    yield [
        *indexing.flatten(view(index), places, 7, 5, first=True, flag=FLAG),
        *indexing.flatten(view(index), places, 5, 1, first=False, flag=FLAG),
        *indexing.take(view(table), places, view(out), (1, 35, 1), flag=FLAG),
    ]


def arrangements() -> Iterator[list[Launch]]:
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        x = new(3, 20, 31, dtype=dtype)
        x.tril(1)
        yield indexing.triangle(view(x), view(x), 1, upper=False)
        x.triu()
        yield indexing.triangle(view(x), view(x), 0, upper=True)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for length in (70, 5000):
            x = new(4, length, dtype=dtype)
            found = x.topk(5)
            yield indexing.sort(view(x), *map(view, found), 5, largest=True, scratch=scratch)
            found = x.sort()
            yield indexing.sort(view(x), *map(view, found), length, largest=False,
                                scratch=scratch)  # fmt: skip


def calls() -> Iterator[list[Launch]]:
    yield from reductions()
    yield from lookups()
    yield from arrangements()


if __name__ == "__main__":
    torch.ruda.synchronize()
    found = differences(calls())
    print("\n".join(found))
    sys.exit(bool(found))

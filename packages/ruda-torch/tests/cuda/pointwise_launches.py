"""What pointwise operators launch beside what ruda_dnn/pointwise/launch.py says, for
test_pointwise.py: a process of its own, on the driver double in record-only mode.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

import ruda_torch  # noqa: F401
from ruda_dnn.pointwise import launch
from ruda_runtime.launch import Launch, View
from ruda_runtime.testing.launches import differences

NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16",
         torch.float64: "float64", torch.int64: "int64", torch.bool: "bool"}  # fmt: skip


def new(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="ruda")


def view(tensor: torch.Tensor) -> View:
    return View(tensor.data_ptr(), NAMES[tensor.dtype], tuple(tensor.shape), tensor.stride())


def layouts(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    yield new(64, 16, dtype=dtype)
    yield new(7, 9, dtype=dtype)
    yield new(65, dtype=dtype)[1:]
    yield new(40, 60, dtype=dtype).t()
    yield new(60, 80, dtype=dtype)[:, ::2]
    yield new(1, 50, dtype=dtype).expand(40, 50)
    yield new(3, 4, 5, 6, dtype=dtype).permute(3, 1, 0, 2)
    yield new(3, 4, 5, 6, 7, dtype=dtype)[::2].permute(4, 2, 0, 3, 1)
    yield new(2, 3, 2, 3, 2, 3, 2, 3, dtype=dtype).permute(7, 5, 3, 1, 6, 4, 2, 0)


def calls() -> Iterator[list[Launch]]:
    long = new(2**16 + 1, 2**15, dtype=torch.bool).t()  # more elements than 32 bits count
    turned = torch.empty(long.shape, dtype=torch.bool, device="ruda")
    turned.copy_(long)
    yield launch.copy(view(turned), view(long))
    del long, turned
    for dtype in NAMES:
        name = NAMES[dtype]
        for x in layouts(dtype):
            same = torch.empty(x.shape, dtype=dtype, device="ruda")
            if x.stride() != same.stride() or not x.is_contiguous():
                same.copy_(x)
                yield launch.copy(view(same), view(x))
            other = torch.int64 if dtype != torch.int64 else torch.float32
            converted = torch.empty(x.shape, dtype=other, device="ruda")
            converted.copy_(x)
            yield launch.copy(view(converted), view(x))
            torch.add(x, same, out=same)
            yield launch.pointwise("add", name, view(same), view(x), view(same))
            torch.mul(same, dtype == torch.bool or 2, out=same)
            yield launch.pointwise(
                "mul", name, view(same), view(same), 1 if dtype == torch.bool else 2
            )
            answer = torch.empty(x.shape, dtype=torch.bool, device="ruda")
            torch.lt(x, same, out=answer)
            yield launch.pointwise("lt", name, view(answer), view(x), view(same))
            torch.where(answer, x, same, out=same)
            yield launch.pointwise("where", name, view(same), view(answer), view(x), view(same))
            same.fill_(1)
            yield launch.pointwise("copy", name, view(same), 1)
            if dtype.is_floating_point:
                torch.addcmul(same, x, x, value=0.5, out=same)
                yield launch.pointwise("addcmul", name, view(same), view(same), view(x), view(x),
                                       0.5)  # fmt: skip
                torch.clamp(x, -1, 1, out=same)
                yield launch.pointwise("clamp", name, view(same), view(x), -1.0, 1.0)
    torch.add(new(64), new(64, dtype=torch.bfloat16), alpha=2, out=(out := new(64)))
    half = View(0, "bfloat16", (64,), (1,))
    yield launch.pointwise("add_scaled", "float32", view(out), view(out), half, 2)
    counted = torch.arange(70, device="ruda")
    yield launch.pointwise("arange", "int64", view(counted), 0, 1)


if __name__ == "__main__":
    torch.ruda.synchronize()
    found = differences(calls())
    print("\n".join(found))
    sys.exit(bool(found))

"""What random operators and nll_loss launch beside what launch.py of ruda_dnn/random and
ruda_dnn/nll_loss says, for test_random.py: a process of its own, on the driver double in
record-only mode.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

import ruda_torch  # noqa: F401
from ruda_dnn.nll_loss import launch as nll_loss
from ruda_dnn.random import launch as random
from ruda_runtime.launch import Launch, View
from ruda_runtime.testing.launches import differences, scratch

FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
WRONG = {"random": scratch((1,), "int32"), "nll_loss": scratch((1,), "int64")}


def new(*shape: int, dtype: torch.dtype, shifted: bool = False) -> torch.Tensor:
    """Contiguous; `shifted`: one element behind an aligned address."""
    count = torch.Size(shape).numel()
    return torch.empty(count + shifted, dtype=dtype, device="ruda")[int(shifted) :].view(shape)


def view(tensor: torch.Tensor, shape: tuple[int, ...] | None = None) -> View:
    name = str(tensor.dtype).removeprefix("torch.")
    return View(tensor.data_ptr(), name, shape or tuple(tensor.shape), tensor.stride())


def numbers() -> Iterator[list[Launch]]:
    for count, shifted in ((1, False), (5000, False), (1024, False), (700, True)):
        for dtype in FLOATING:
            y = new(count, dtype=dtype, shifted=shifted)
            y.uniform_(0, 2)
            yield random.uniform(view(y), 1, 0, 0.0, 2.0, 2.0)
            y.exponential_()
            yield random.exponential(view(y), 1, 0, -1.0, 1e-45)
            y.cauchy_()
            yield random.cauchy(view(y), 1, 0, 0.0, 1.0)
            y.normal_()
            yield random.normal(view(y), 1, 0, 0.0, 1.0)
            ones, mask = torch.native_dropout(y, 0.5, True)
            yield random.dropout(view(y), view(ones), view(mask), 1, 0, 2**31, 2.0)
            mask.bernoulli_(y)
            yield random.bernoulli_each(view(mask), view(y), WRONG["random"], 1, 0)
        for dtype in (*FLOATING[:3], torch.bool):
            y = new(count, dtype=dtype, shifted=shifted)
            y.bernoulli_(0.5)
            yield random.bernoulli(view(y), 1, 0, 2**31)
        for dtype in (torch.int64, torch.int32, torch.uint8):
            y = new(count, dtype=dtype, shifted=shifted)
            y.random_(0, 9)
            yield random.integers(view(y), 1, 0, 9, 0)


def losses() -> Iterator[list[Launch]]:
    log_likelihood, backward = torch.ops.aten.nll_loss_forward, torch.ops.aten.nll_loss_backward
    wrong = WRONG["nll_loss"]
    for dtype in FLOATING[:3]:
        for rows, classes in ((7, 5), (2100, 3), (3, 2100)):
            x, one = new(rows, classes, dtype=dtype), new(classes, dtype=dtype)
            target, dx = new(rows, dtype=torch.int64), view(x, (rows, classes, 1))
            for weight in (None, one):
                listed = None if weight is None else view(weight)
                for reduction in (0, 1, 2):
                    y, total = log_likelihood(x, target, weight, reduction, -100)
                    if reduction == 0:
                        yield nll_loss.forward_each(dx, view(target), listed, view(y), wrong, -100)
                    else:
                        yield nll_loss.forward(dx, view(target), listed, view(y), view(total),
                                               wrong, -100, reduction == 1)  # fmt: skip
                    backward(y, x, target, weight, reduction, -100, total)
                    divisor = view(total) if reduction == 1 else None
                    yield nll_loss.backward(view(y), view(target), listed, divisor, dx, -100,
                                            reduction == 0)  # fmt: skip
        x, target = new(2, 3, 4, 5, dtype=dtype), new(2, 4, 5, dtype=torch.int64)
        y, total = torch.ops.aten.nll_loss2d_forward(x, target, None, 1, -100)
        yield nll_loss.forward(view(x, (2, 3, 20)), view(target), None, view(y), view(total), wrong,
                               -100, True)  # fmt: skip


def calls() -> Iterator[list[Launch]]:
    yield from numbers()
    yield from losses()


if __name__ == "__main__":
    torch.ruda.synchronize()
    found = differences(calls())
    print("\n".join(found))
    sys.exit(bool(found))

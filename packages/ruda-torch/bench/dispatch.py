"""What a call costs: small operators on ruda beside the same operators on the CPU.

    python packages/ruda-torch/bench/dispatch.py

Microseconds of processor time a call from Python on one thread, tensors of a few elements, so that
dispatch is nearly all of it. Alternating, median of nine rounds. The ratio is the price of the
boxed kernel; operators with kernels of their own (mm, linear) may be below 1.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import ruda_torch  # noqa: F401

CALLS = 10_000
ROUNDS = 9


def operands(device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    x = (torch.arange(16.0) / 7 - 1).view(4, 4).to(device)
    return x, torch.ones(4, device=device), torch.tensor([1, 2], device=device), x > 0


OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda x, w, i, c: torch.add(x, x),
    "add_": lambda x, w, i, c: x.add_(0.0),
    "mul number": lambda x, w, i, c: x * 2.0,
    "sin": lambda x, w, i, c: torch.sin(x),
    "sum": lambda x, w, i, c: x.sum(),
    "softmax": lambda x, w, i, c: torch.softmax(x, -1),
    "where": lambda x, w, i, c: torch.where(c, x, x),
    "cat": lambda x, w, i, c: torch.cat([x, x]),
    "index": lambda x, w, i, c: x[i],
    "embedding": lambda x, w, i, c: torch.nn.functional.embedding(i, x),
    "layer_norm": lambda x, w, i, c: torch.nn.functional.layer_norm(x, (4,), w, w),
    "mm": lambda x, w, i, c: torch.mm(x, x),
    "linear": lambda x, w, i, c: torch.nn.functional.linear(x, x, w),
    "clone": lambda x, w, i, c: x.clone(),
    "view": lambda x, w, i, c: x.view(16),
}


def microseconds(call: Callable[..., torch.Tensor], arguments: tuple[torch.Tensor, ...]) -> float:
    begin = time.process_time()
    for _ in range(CALLS):
        call(*arguments)
    return (time.process_time() - begin) / CALLS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'operator':12} {'ruda':>7} {'cpu':>7} {'ratio':>6}")
    for name, call in OPERATORS.items():
        ours, theirs = operands("ruda"), operands("cpu")
        torch.testing.assert_close(call(*ours).cpu(), call(*theirs))
        rounds = [(microseconds(call, ours), microseconds(call, theirs)) for _ in range(ROUNDS)]
        on_ruda, on_cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{name:12} {on_ruda:7.2f} {on_cpu:7.2f} {on_ruda / on_cpu:6.2f}")


if __name__ == "__main__":
    main()

"""The native training operators beside PyTorch's own on the CPU.

    python packages/ruda-torch/bench/training_operators.py [--rounds 7] [--dry]

Forward and backward together, alternating in one process, median of the rounds; rows go to
bench/ledger.csv unless --dry is given. An operator whose result misses the criteria of
ruda_runtime.conformance at the timed shape is not timed: the script stops.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import ruda_torch
from ruda_runtime import conformance

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
import ledger

ROWS, WIDTH, INNER, CLASSES = 1024, 576, 1536, 49152
Run = Callable[[], list[Tensor]]


def values(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(shape)).to(dtype)


def leaves(tensors: list[Tensor], device: str, dtype: torch.dtype | None = None) -> list[Tensor]:
    return [t.detach().to(device, dtype or t.dtype).requires_grad_() for t in tensors]


def differentiate(function: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor) -> Run:
    """One forward and backward pass; gives the result and the inputs' gradients."""

    def run() -> list[Tensor]:
        result = function(*inputs)
        return [result.detach(), *torch.autograd.grad(result, inputs, grad)]

    return run


def milliseconds(run: Run) -> float:
    """One call after 50 ms of the same: the other side's threads, which spin for a while after
    their work, have gone to sleep by then, and this side's are awake."""
    warm = time.perf_counter() + 0.05
    while time.perf_counter() < warm:
        run()
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def conforms(ours: Run, exact: Run, dtype: torch.dtype) -> None:
    for result, reference in zip(ours(), exact()):
        conformance.check(
            result.cpu().double().numpy(),
            reference.double().numpy(),
            str(dtype).removeprefix("torch."),
            long_reduction=True,
        )


def compare(
    operation: str,
    shape: str,
    dtype: torch.dtype,
    own: Callable[..., Tensor],
    peer: Callable[..., Tensor],
    inputs: list[Tensor],
    arguments: argparse.Namespace,
) -> None:
    grad = torch.ones_like(peer(*inputs))
    ours = differentiate(own, leaves(inputs, "ruda"), grad.to("ruda"))
    theirs = differentiate(peer, leaves(inputs, "cpu"), grad)
    exact = differentiate(peer, leaves(inputs, "cpu", torch.float64), grad.double())
    conforms(ours, exact, dtype)
    theirs()
    pairs = [(milliseconds(ours), milliseconds(theirs)) for _ in range(arguments.rounds)]
    medians = [statistics.median(column) for column in zip(*pairs)]
    ratio = statistics.median(a / b for a, b in pairs)
    if arguments.dry:
        times = " ".join(f"{median:9.3f}" for median in medians)
        print(f"{operation:28} {shape:16} {dtype} {times} ms, ratio {ratio:.3f}")
        return
    ledger.append(
        operation,
        shape,
        str(dtype).removeprefix("torch."),
        *medians,
        "ms",
        "torch cpu",
        ledger.versions("ruda-dnn", "ruda-torch", "torch"),
        ratio=ratio,
    )


def cross_entropy(target: Tensor) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    on_ruda = target.to("ruda")

    def own(hidden: Tensor) -> Tensor:
        return ruda_torch.linear_cross_entropy(hidden, head_on_ruda, on_ruda)[0]

    def peer(hidden: Tensor) -> Tensor:
        logits = F.linear(hidden, head.to(hidden.dtype))
        return F.cross_entropy(logits, target, reduction="sum")

    head = values(CLASSES, WIDTH, dtype=torch.float32, scale=WIDTH**-0.5)
    head_on_ruda = head.to("ruda")
    return own, peer


def main() -> None:
    parser = argparse.ArgumentParser(description="Training operators beside PyTorch's.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dry", action="store_true", help="print, append nothing")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        compare(
            "rms_norm fwd+bwd",
            f"{ROWS}x{WIDTH}",
            dtype,
            lambda x, w: ruda_torch.rms_norm(x, w, 1e-5),
            lambda x, w: F.rms_norm(x, (WIDTH,), w, 1e-5),
            [values(ROWS, WIDTH, dtype=dtype), values(WIDTH, dtype=dtype)],
            arguments,
        )
        compare(
            "silu_mul fwd+bwd",
            f"{ROWS}x{INNER}",
            dtype,
            ruda_torch.silu_mul,
            lambda gate, up: F.silu(gate) * up,
            [values(ROWS, INNER, dtype=dtype), values(ROWS, INNER, dtype=dtype)],
            arguments,
        )
    own, peer = cross_entropy(torch.randint(0, CLASSES, (256,)))
    compare(
        "linear_cross_entropy fwd+bwd",
        f"256x{WIDTH}x{CLASSES}",
        torch.float32,
        own,
        peer,
        [values(256, WIDTH, dtype=torch.float32)],
        arguments,
    )


if __name__ == "__main__":
    main()

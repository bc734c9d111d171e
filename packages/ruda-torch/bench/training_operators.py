"""The native training operators beside PyTorch's own on the CPU.

    python packages/ruda-torch/bench/training_operators.py [--rounds 7] [--dry]

The forward pass alone, both passes together, and an optimiser's step, alternating in one process,
median of the rounds; rows go to bench/ledger.csv unless --dry is given. An operator whose result
misses the criteria of ruda_runtime.conformance at the timed shape is not timed: the script stops.
"""

from __future__ import annotations

import argparse
import functools
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
LARGE = (8192, 2048)  # 64 MiB in float32: nothing of it is in a cache at the next call
PARAMETERS = (10, 1024, 1024)  # of the optimiser, in ten tensors
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


def evaluate(function: Callable[..., Tensor], inputs: list[Tensor]) -> Run:
    """One forward pass without gradients."""

    def run() -> list[Tensor]:
        with torch.no_grad():
            return [function(*inputs)]

    return run


def milliseconds(run: Callable[[], object]) -> float:
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
    """A row for both passes; for inputs of 16 MiB and more also one for the forward pass."""
    result = peer(*inputs)  # a gradient of ones would leave nothing of softmax's
    grad = torch.randn_like(result) if result.dim() else torch.ones_like(result)
    ours = differentiate(own, leaves(inputs, "ruda"), grad.to("ruda"))
    theirs = differentiate(peer, leaves(inputs, "cpu"), grad)
    exact = differentiate(peer, leaves(inputs, "cpu", torch.float64), grad.double())
    conforms(ours, exact, dtype)
    if inputs[0].nbytes >= 1 << 24:
        alone = [evaluate(own, leaves(inputs, "ruda")), evaluate(peer, leaves(inputs, "cpu"))]
        time_pairs(f"{operation} fwd", shape, dtype, *alone, arguments)
    time_pairs(f"{operation} fwd+bwd", shape, dtype, ours, theirs, arguments)


def time_pairs(
    operation: str,
    shape: str,
    dtype: torch.dtype,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    arguments: argparse.Namespace,
) -> None:
    ours()
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


def rows(dtype: torch.dtype, arguments: argparse.Namespace) -> None:
    """The row-wise operators on a model's shape and on the large one."""
    for shape in ((ROWS, WIDTH), LARGE):
        name, width = "x".join(map(str, shape)), shape[-1]
        x = values(*shape, dtype=dtype)
        weight, bias = (values(width, dtype=dtype) for _ in range(2))
        compare(
            "rms_norm",
            name,
            dtype,
            lambda x, w: ruda_torch.rms_norm(x, w, 1e-5),
            lambda x, w: F.rms_norm(x, w.shape, w, 1e-5),
            [x, weight],
            arguments,
        )
        compare(
            "layer_norm",
            name,
            dtype,
            lambda x, w, b: F.layer_norm(x, w.shape, w, b),
            lambda x, w, b: F.layer_norm(x, w.shape, w, b),
            [x, weight, bias],
            arguments,
        )
        # Flat rows: of peaked ones the few large values alone make the errors' RMS.
        x = values(*shape, dtype=dtype, scale=0.3)
        for function in (F.softmax, F.log_softmax):
            run = functools.partial(function, dim=-1)
            compare(function.__name__, name, dtype, run, run, [x], arguments)
    for shape in ((ROWS, INNER), LARGE):
        compare(
            "silu_mul",
            "x".join(map(str, shape)),
            dtype,
            ruda_torch.silu_mul,
            lambda gate, up: F.silu(gate) * up,
            [values(*shape, dtype=dtype), values(*shape, dtype=dtype)],
            arguments,
        )


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Llama's formula."""
    half = x.shape[-1] // 2
    swapped = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos[:, :, None] + swapped * sin[:, :, None]


def rotary(dtype: torch.dtype, arguments: argparse.Namespace) -> None:
    angle = 3.0 * torch.randn(1, ROWS, 32).repeat(1, 1, 2)
    tables = [angle.cos().to(dtype), angle.sin().to(dtype)]
    on_ruda = [table.to("ruda") for table in tables]

    def peer(x: Tensor) -> Tensor:
        return turn(x, *(table.to(x.dtype) for table in tables))

    x = values(1, ROWS, 9, 64, dtype=dtype)
    compare(
        "rotary",
        f"1x{ROWS}x9x64",
        dtype,
        lambda x: ruda_torch.rotary(x, *on_ruda),
        peer,
        [x],
        arguments,
    )


def adamw(arguments: argparse.Namespace) -> None:
    """A step with clipping to a global norm that is above the limit."""

    def parameters(device: str) -> list[Tensor]:
        torch.manual_seed(1)
        made = [torch.randn(PARAMETERS[1:]) for _ in range(PARAMETERS[0])]
        for parameter in made:
            parameter.grad = torch.randn_like(parameter)
        result = [torch.nn.Parameter(p.to(device)) for p in made]
        for parameter, source in zip(result, made):
            parameter.grad = source.grad.to(device)
        return result

    own, peer = parameters("ruda"), parameters("cpu")
    ours = ruda_torch.AdamW(own, fused_step=True, max_grad_norm=1.0)
    theirs = torch.optim.AdamW(peer, fused=True)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(peer, 1.0)
        theirs.step()

    ours.step()
    step()
    for left, right in zip(own, peer):
        torch.testing.assert_close(left.cpu(), right, rtol=1e-5, atol=1e-6)
    shape = "x".join(map(str, PARAMETERS))
    time_pairs("AdamW with clipping", shape, torch.float32, ours.step, step, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description="Training operators beside PyTorch's.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dry", action="store_true", help="print, append nothing")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        rows(dtype, arguments)
        rotary(dtype, arguments)
    adamw(arguments)
    own, peer = cross_entropy(torch.randint(0, CLASSES, (256,)))
    compare(
        "linear_cross_entropy",
        f"256x{WIDTH}x{CLASSES}",
        torch.float32,
        own,
        peer,
        [values(256, WIDTH, dtype=torch.float32)],
        arguments,
    )


if __name__ == "__main__":
    main()

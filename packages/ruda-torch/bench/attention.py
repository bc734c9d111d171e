"""Attention beside PyTorch's scaled_dot_product_attention on the CPU, forward and backward.

    python packages/ruda-torch/bench/attention.py [--rounds 7] [--dry]

Alternating in one process, median of the rounds; rows go to bench/ledger.csv unless --dry is given.
The peer gets grouped heads (enable_gqa) or repeated keys and values, whichever is faster. The share
is that of the true FLOPs (causal pairs only) at the float32 GEMM rate of the same run. A case whose
result misses the criteria of ruda_runtime.conformance is not timed: the script stops.
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

HEADS, GROUPS, WIDTH = 9, 3, 64
Run = Callable[[], list[Tensor]]


def make(length: int, keys: int, dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    # [B, T, H, D] seen as [B, H, T, D], as a model's projections give it
    return [
        torch.randn(1, rows, heads, WIDTH, generator=generator).to(dtype).transpose(1, 2)
        for rows, heads in ((length, HEADS), (keys, GROUPS), (keys, GROUPS))
    ]


def differentiate(function: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor) -> Run:
    def run() -> list[Tensor]:
        out = function(*inputs)
        return [out.detach(), *torch.autograd.grad(out, inputs, grad)]

    return run


def leaves(tensors: list[Tensor], device: str, dtype: torch.dtype | None = None) -> list[Tensor]:
    return [t.detach().to(device, dtype or t.dtype).requires_grad_() for t in tensors]


def milliseconds(run: Run) -> float:
    """One call after 50 ms of the same, so that only this side's threads are awake."""
    warm = time.perf_counter() + 0.05
    while time.perf_counter() < warm:
        run()
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def grouped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def repeated(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    key, value = (t.repeat_interleave(HEADS // GROUPS, 1) for t in (key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def decoding(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


def gemm_rate() -> float:
    """GFLOP/s of our float32 product."""
    a, b = torch.randn(512, 1536, device="ruda"), torch.randn(1536, 1536, device="ruda")
    time_ms = statistics.median(milliseconds(lambda: [a @ b]) for _ in range(7))
    return 2 * 512 * 1536 * 1536 / time_ms / 1e6


def conforms(ours: Run, exact: Run, dtype: torch.dtype) -> None:
    for result, reference in zip(ours(), exact(), strict=True):
        conformance.check(
            result.cpu().double().numpy(),
            reference.double().numpy(),
            str(dtype).removeprefix("torch."),
            long_reduction=True,
        )


def report(
    operation: str,
    shape: str,
    dtype: torch.dtype,
    times: list[tuple[float, float]],
    share: float,
    dry: bool,
) -> None:
    ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(a / b for a, b in times)
    name = str(dtype).removeprefix("torch.")
    if dry:
        print(
            f"{operation:20} {shape:28} {name:9} ours {ours:9.3f} torch {theirs:9.3f} ms "
            f"ratio {ratio:.3f} share {share:.2f}"
        )
        return
    ledger.append(
        operation,
        shape,
        name,
        ours,
        theirs,
        "ms",
        "torch cpu",
        ledger.versions("ruda-dnn", "ruda-torch", "torch"),
        ratio=ratio,
        limit="true FLOPs / float32 GEMM rate of the process" if share else "",
        share=share,
    )


def causal_training(length: int, dtype: torch.dtype, rate: float, arguments) -> None:
    inputs = make(length, length, dtype)
    grad = torch.randn(1, HEADS, length, WIDTH).to(dtype)
    ours = differentiate(grouped, leaves(inputs, "ruda"), grad.to("ruda"))
    peers = [differentiate(f, leaves(inputs, "cpu"), grad) for f in (grouped, repeated)]
    conforms(
        ours, differentiate(grouped, leaves(inputs, "cpu", torch.float64), grad.double()), dtype
    )
    theirs = min(peers, key=milliseconds)
    rounds = arguments.rounds if length < 1024 else min(arguments.rounds, 7)
    times = [(milliseconds(ours), milliseconds(theirs)) for _ in range(rounds)]
    flops = HEADS * length * (length + 1) / 2 * WIDTH * 2 * 7
    share = flops / statistics.median(a for a, _ in times) / 1e6 / rate
    shape = f"B1 T{length} H{HEADS}/{GROUPS} D{WIDTH} causal"
    report("attention fwd+bwd", shape, dtype, times, share, arguments.dry)


def padded_mask(length: int, arguments) -> None:
    """A bool mask that says "causal, the first keys are padding" against causal itself."""
    inputs = leaves(make(length, length, torch.float32), "ruda")
    grad = torch.randn(1, HEADS, length, WIDTH).to("ruda")
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    mask[:, : length // 64] = False
    mask.fill_diagonal_(True)
    given = mask[None, None].to("ruda")
    ours = differentiate(lambda q, k, v: ruda_torch.attention(q, k, v, given), inputs, grad)
    plain = differentiate(lambda q, k, v: ruda_torch.attention(q, k, v, causal=True), inputs, grad)
    times = [(milliseconds(ours), milliseconds(plain)) for _ in range(arguments.rounds)]
    print(
        f"bool mask against causal, T {length}: "
        f"{statistics.median(a / b for a, b in times):.3f} of its time"
    )


def one_query(keys: int, dtype: torch.dtype, arguments) -> None:
    inputs = make(1, keys, dtype)
    on_ruda = [t.to("ruda") for t in inputs]
    with torch.no_grad():
        ours, theirs = (
            (lambda tensors=tensors: [decoding(*tensors)]) for tensors in (on_ruda, inputs)
        )
        conforms(ours, lambda: [decoding(*(t.double() for t in inputs))], dtype)
        times = [(milliseconds(ours), milliseconds(theirs)) for _ in range(arguments.rounds)]
    shape = f"B1 Tq1 Tk{keys} H{HEADS}/{GROUPS} D{WIDTH}"
    report("attention decoding", shape, dtype, times, 0.0, arguments.dry)


def main() -> None:
    parser = argparse.ArgumentParser(description="Attention beside PyTorch's.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dry", action="store_true", help="print, append nothing")
    parser.add_argument("--lengths", type=int, nargs="*", default=[256, 2048])
    parser.add_argument("--no-bf16", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rate = gemm_rate()
    for length in arguments.lengths:
        causal_training(length, torch.float32, rate, arguments)
        if not arguments.no_bf16:
            causal_training(length, torch.bfloat16, rate, arguments)
        padded_mask(length, arguments)
    for dtype in (torch.float32, torch.bfloat16):
        one_query(4096, dtype, arguments)


if __name__ == "__main__":
    main()

"""Kernels of ruda:0 beside their peers on the same machine, alternating in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import ledger

Call = Callable[[], object]
ROUNDS = 9


def paired(ours: Call, peer: Call, rounds: int = ROUNDS) -> tuple[float, float, float]:
    """(median ms of ours, of the peer, median of the paired ratios)."""
    for call in (ours, peer, ours, peer):
        call()
    first, second = [], []
    for _ in range(rounds):
        for call, times in ((ours, first), (peer, second)):
            started = time.perf_counter()
            call()
            times.append((time.perf_counter() - started) * 1e3)
    ratios = [a / b for a, b in zip(first, second)]
    return statistics.median(first), statistics.median(second), statistics.median(ratios)


def close(name: str, ours: object, peer: object, tolerance: float) -> None:
    """Refuse to time what is wrong."""
    import torch

    a, b = torch.as_tensor(ours).cpu().double(), torch.as_tensor(peer).double()
    error = ((a - b).norm() / b.norm()).item()
    if not error <= tolerance:
        raise SystemExit(f"[{name}] not timed: relative error {error:.2e}, wanted {tolerance:.0e}")


def gemm_rate() -> float:
    """GFLOP/s of our own float32 GEMM in this run: the limit that products are compared with."""
    import torch

    a = torch.randn(512, 4096, device="ruda:0")
    b = torch.randn(4096, 4096, device="ruda:0")
    mine, _, _ = paired(lambda: a @ b, lambda: None)
    return 2 * 512 * 4096 * 4096 / mine / 1e6


def main() -> None:
    import torch
    import torch.nn.functional as F

    import ruda_torch
    from ruda_blas import nf4

    names = ledger.versions("torch", "bitsandbytes", "ruda-torch")
    torch.manual_seed(0)

    def row(operation: str, shape: str, result: tuple[float, float, float], peer: str,
            limit: str = "", share: float = 0.0) -> None:  # fmt: skip
        ours, theirs, ratio = result
        ledger.append(
            operation, shape, "float32", ours, theirs, "ms", peer, names, ratio, limit, share
        )

    def both(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        host = torch.randn(*shape)
        return host.to("ruda:0"), host

    rate = gemm_rate()
    for m, k, n in [(512, 4096, 4096), (512, 576, 1536), (512, 1536, 576)]:
        (a, a0), (b, b0) = both(m, k), both(n, k)
        close("gemm", a @ b.T, a0 @ b0.T, 1e-5)
        result = paired(lambda: a @ b.T, lambda: a0 @ b0.T)  # noqa: B023
        row("gemm", f"{m}x{k}x{n}", result, "torch.mm (MKL)", "our largest GEMM",
            2 * m * k * n / result[0] / 1e6 / rate)  # fmt: skip

    import bitsandbytes.functional as bnb

    weight = torch.randn(4096, 4096)
    codes, state = bnb.quantize_4bit(weight, quant_type="nf4", blocksize=64)
    from ruda_finetune import NF4Linear

    linear = torch.nn.Linear(4096, 4096, bias=False)
    linear.weight.data.copy_(weight)
    layer = NF4Linear.from_linear(linear)
    dense = bnb.dequantize_4bit(codes, state)
    close("nf4.dequantize", layer.dequantize(), dense, 1e-6)
    import ruda_runtime

    view = ruda_runtime.Tensor.from_numpy(weight.numpy())
    row("nf4.quantize", "4096x4096",
        paired(lambda: nf4.quantize(view),
               lambda: bnb.quantize_4bit(weight, quant_type="nf4", blocksize=64)),
        "bitsandbytes")  # fmt: skip
    layer = layer.to("ruda:0")
    for m in (1, 512):
        x, x0 = both(m, 4096)
        close("nf4.matmul", layer(x), x0 @ dense.T, 1e-5)
        result = paired(
            lambda: layer(x),  # noqa: B023
            lambda: x0 @ bnb.dequantize_4bit(codes, state).T,  # noqa: B023
        )
        row("nf4.matmul", f"{m}x4096x4096", result, "bitsandbytes dequantize + mm",
            "our float32 GEMM" if m > 1 else "", 2 * m * 4096 * 4096 / result[0] / 1e6 / rate
            if m > 1 else 0.0)  # fmt: skip
    gradient, gradient0 = both(512, 4096)
    x.requires_grad_()

    def input_gradient() -> torch.Tensor:
        (found,) = torch.autograd.grad(output, x, gradient, retain_graph=True)
        return found

    output = layer(x)
    close("nf4.input_grad", input_gradient(), gradient0 @ dense, 1e-5)
    result = paired(input_gradient, lambda: gradient0 @ bnb.dequantize_4bit(codes, state))
    row("nf4.input_grad", "512x4096x4096", result, "bitsandbytes dequantize + mm",
        "our float32 GEMM", 2 * 512 * 4096 * 4096 / result[0] / 1e6 / rate)  # fmt: skip

    x, x0 = both(4096, 4096)
    w, w0 = both(4096)
    close("rms_norm", ruda_torch.rms_norm(x, w, 1e-6), F.rms_norm(x0, (4096,), w0, 1e-6), 1e-6)
    row("rms_norm", "4096x4096",
        paired(lambda: ruda_torch.rms_norm(x, w, 1e-6), lambda: F.rms_norm(x0, (4096,), w0, 1e-6)),
        "torch")  # fmt: skip
    gradient, gradient0 = both(4096, 4096)

    def train(function: Callable[..., torch.Tensor], seed: torch.Tensor,
              *inputs: torch.Tensor) -> Call:  # fmt: skip
        leaves = [value.detach().requires_grad_() for value in inputs]
        return lambda: torch.autograd.grad(function(*leaves), leaves, seed)

    row("rms_norm+backward", "4096x4096",
        paired(train(lambda a, b: ruda_torch.rms_norm(a, b, 1e-6), gradient, x, w),
               train(lambda a, b: F.rms_norm(a, (4096,), b, 1e-6), gradient0, x0, w0)),
        "torch")  # fmt: skip
    up, up0 = both(4096, 4096)
    close("silu_mul", ruda_torch.silu_mul(x, up), F.silu(x0) * up0, 1e-6)
    row("silu_mul", "4096x4096",
        paired(lambda: ruda_torch.silu_mul(x, up), lambda: F.silu(x0) * up0), "torch")  # fmt: skip
    row("silu_mul+backward", "4096x4096",
        paired(train(ruda_torch.silu_mul, gradient, x, up),
               train(lambda a, b: F.silu(a) * b, gradient0, x0, up0)), "torch")  # fmt: skip

    hidden, hidden0 = both(256, 576)
    head, head0 = both(49152, 576)
    target0 = torch.randint(0, 49152, (256,))
    target = target0.to("ruda:0")

    def our_loss(h: torch.Tensor) -> torch.Tensor:
        return torch.ops.ruda.linear_cross_entropy(h, head, None, target, 0, -100)[0]

    def their_loss(h: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(h @ head0.T, target0, reduction="sum")

    close("linear_cross_entropy", our_loss(hidden), their_loss(hidden0), 1e-5)
    row("linear_cross_entropy+backward", "256x576x49152",
        paired(train(our_loss, torch.tensor(1.0, device="ruda:0"), hidden),
               train(their_loss, torch.tensor(1.0), hidden0)), "torch")  # fmt: skip

    count = 10_000_000
    parameter, parameter0 = both(count)
    parameter.requires_grad_()
    parameter0.requires_grad_()
    parameter.grad, parameter0.grad = both(count)
    ours = ruda_torch.AdamW([parameter], lr=1e-3, fused_step=True, max_grad_norm=1.0)
    theirs = torch.optim.AdamW([parameter0], lr=1e-3, fused=True)

    def their_step() -> None:
        torch.nn.utils.clip_grad_norm_([parameter0], 1.0)
        theirs.step()

    row("adamw+clipping", f"{count}", paired(lambda: ours.step(), their_step), "torch fused")


if __name__ == "__main__":
    main()

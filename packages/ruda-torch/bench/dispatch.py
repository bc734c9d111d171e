"""What a call costs: small operators on ruda beside the same operators on the CPU.

    python packages/ruda-torch/bench/dispatch.py            # single operators
    python packages/ruda-torch/bench/dispatch.py --model    # a forward of one token instead

Microseconds of processor time a call from Python on one thread, tensors of a few elements, so that
dispatch is nearly all of it. Alternating, median of nine rounds. The model has SmolLM2-135M's
sizes and random float32 weights; the fused form needs ruda-finetune.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

import ruda_torch  # noqa: F401

CALLS = 4_000
ROUNDS = 9


def operands(device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    x = (torch.arange(16.0) / 7 - 1).view(4, 4).to(device)
    return x, torch.ones(4, device=device), torch.tensor([1, 2], device=device), x > 0


OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda x, w, i, c: torch.add(x, x),
    "add row": lambda x, w, i, c: x + w,
    "add_": lambda x, w, i, c: x.add_(0.0),
    "mul number": lambda x, w, i, c: x * 2.0,
    "lt number": lambda x, w, i, c: x < 0.5,
    "pow 2": lambda x, w, i, c: x.pow(2),
    "exp": lambda x, w, i, c: torch.exp(x),
    "addcmul_": lambda x, w, i, c: x.addcmul_(w, w, value=0.0),
    "sum": lambda x, w, i, c: x.sum(),
    "mean": lambda x, w, i, c: x.mean(-1, keepdim=True),
    "softmax": lambda x, w, i, c: torch.softmax(x, -1),
    "where": lambda x, w, i, c: torch.where(c, x, x),
    "cat": lambda x, w, i, c: torch.cat([x, x]),
    "index": lambda x, w, i, c: x[i],
    "embedding": lambda x, w, i, c: torch.nn.functional.embedding(i, x),
    "layer_norm": lambda x, w, i, c: torch.nn.functional.layer_norm(x, (4,), w, w),
    "mm": lambda x, w, i, c: torch.mm(x, x),
    "linear": lambda x, w, i, c: torch.nn.functional.linear(x, x, w),
    "empty": lambda x, w, i, c: torch.empty_like(x),
    "zero_": lambda x, w, i, c: c.zero_(),
    "clone": lambda x, w, i, c: x.clone(),
    "contiguous": lambda x, w, i, c: x.t().contiguous(),
    "view": lambda x, w, i, c: x.view(16),
    "transpose": lambda x, w, i, c: x.transpose(0, 1),
    "slice": lambda x, w, i, c: x[1:3],
    "expand": lambda x, w, i, c: w.expand(4, 4),
    "detach": lambda x, w, i, c: x.detach(),
}


def microseconds(call: Callable[[], Any], count: int) -> float:
    begin = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - begin) / count * 1e6


def show(name: str, ours: Callable[[], Any], theirs: Callable[[], Any], count: int) -> None:
    microseconds(ours, count)
    microseconds(theirs, count)
    rounds = [(microseconds(ours, count), microseconds(theirs, count)) for _ in range(ROUNDS)]
    on_ruda, on_cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"{name:12} {on_ruda:9.2f} {on_cpu:9.2f} {on_ruda / on_cpu:6.2f}", flush=True)


def time_operators() -> None:
    for name, call in OPERATORS.items():
        ours, theirs = operands("ruda"), operands("cpu")
        if name != "empty":
            torch.testing.assert_close(call(*ours).cpu(), call(*theirs))
        show(name, lambda: call(*ours), lambda: call(*theirs), CALLS)  # noqa: B023
    a = torch.randn(64, 64)
    b = a.to("ruda")
    show("mm 64x64", lambda: torch.mm(b, b), lambda: torch.mm(a, a), CALLS)
    for n in (1000, 1_000_000):
        few = max(1, 1_000_000 // n)
        p, q = torch.empty(n, device="ruda"), torch.empty(n)
        show(f"normal_ {n}", p.normal_, q.normal_, few)
        show(
            f"randperm {n}",
            lambda: torch.randperm(n, device="ruda"),  # noqa: B023
            lambda: torch.randperm(n),  # noqa: B023
            few,
        )


def time_model() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    cpu = LlamaForCausalLM(config).eval()
    ruda = LlamaForCausalLM(config).eval()
    ruda.load_state_dict(cpu.state_dict())
    ruda.to("ruda")
    token = torch.tensor([[5]])
    ids = token.to("ruda")

    def forward(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(inputs).logits

    for name in ("unfused", "fused"):
        if name == "fused":
            if find_spec("ruda_finetune") is None:
                return
            from ruda_finetune import fuse_model

            fuse_model(ruda)
        torch.testing.assert_close(
            forward(ruda, ids).cpu(), forward(cpu, token), rtol=1e-3, atol=1e-4
        )
        show(name, lambda: forward(ruda, ids), lambda: forward(cpu, token), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="store_true", help="time a forward of one token")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'operator':12} {'ruda us':>9} {'cpu us':>9} {'ratio':>6}")
    time_model() if arguments.model else time_operators()


if __name__ == "__main__":
    main()

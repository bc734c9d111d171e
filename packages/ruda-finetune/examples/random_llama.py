"""Three NF4 + LoRA steps of a small random Llama, the same on every target.

    python random_llama.py --target host --dtype float32 --json host.json
    python random_llama.py --target cuda --dtype float32 --json cuda.json

The two files hold the same losses, within the rounding of the dtype: weights are drawn on the CPU,
and the numbers behind dropout's masks do not depend on the target. Without a GPU the second line
runs on the driver double (RUDA_CUDA_DRIVER=double).

The model is transformers' Llama with RUDA's fused modules, or, with --model plain, the same
architecture written out below, which needs torch alone. No data and no tokenizer are read.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

VOCABULARY = 300
HIDDEN = 64
INTERMEDIATE = 96
HEADS = 4
KEY_HEADS = 2
LAYERS = 2
STEPS = 3


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=("host", "cuda"), required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--model", choices=("transformers", "plain"), default="transformers")
    parser.add_argument("--json", type=Path, help="where the losses go; printed otherwise")
    return parser.parse_args()


def transformers_llama() -> Any:
    """The library's model, its weights drawn by the library from torch's CPU generator."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=INTERMEDIATE,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KEY_HEADS,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        )
    )


def plain_llama() -> Any:
    """A pre-norm decoder with rotary positions, grouped key heads and a gated MLP."""
    import torch
    from torch import Tensor, nn

    import ruda_torch

    size = HIDDEN // HEADS

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj = nn.Linear(HIDDEN, HEADS * size, bias=False)
            self.k_proj = nn.Linear(HIDDEN, KEY_HEADS * size, bias=False)
            self.v_proj = nn.Linear(HIDDEN, KEY_HEADS * size, bias=False)
            self.o_proj = nn.Linear(HEADS * size, HIDDEN, bias=False)

        def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            batch, length, _ = x.shape
            query, key, value = (
                layer(x).view(batch, length, -1, size)
                for layer in (self.q_proj, self.k_proj, self.v_proj)
            )
            query, key = ruda_torch.rotary(query, cos, sin), ruda_torch.rotary(key, cos, sin)
            mixed = ruda_torch.attention(query, key, value, causal=True)
            return self.o_proj(mixed.reshape(batch, length, HEADS * size))

    class MLP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
            self.up_proj = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
            self.down_proj = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.down_proj(ruda_torch.silu_mul(self.gate_proj(x), self.up_proj(x)))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.self_attn, self.mlp = Attention(), MLP()
            self.input_norm, self.middle_norm = (
                ruda_torch.RMSNorm(HIDDEN),
                ruda_torch.RMSNorm(HIDDEN),
            )

        def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            x = x + self.self_attn(self.input_norm(x), cos, sin)
            return x + self.mlp(self.middle_norm(x))

    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.norm = ruda_torch.RMSNorm(HIDDEN)
            rates = 10000.0 ** (-torch.arange(0, size, 2) / size)
            angles = torch.arange(64)[:, None] * rates
            angles = torch.cat((angles, angles), -1)[None]  # [1, 64, size]
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)

        def forward(self, input_ids: Tensor) -> Tensor:
            x = self.embed_tokens(input_ids)
            cos, sin = (table[:, : x.shape[1]].to(x.dtype) for table in (self.cos, self.sin))
            for layer in self.layers:
                x = layer(x, cos, sin)
            return self.norm(x)

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Backbone()
            self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
            for weight in self.parameters():
                if weight.dim() == 2:
                    nn.init.normal_(weight, std=0.02)
            self.lm_head.weight = self.model.embed_tokens.weight

    return Llama()


def make_rows(count: int = 8) -> list[dict[str, list[int]]]:
    """Token rows of several lengths, the first part of each not learned."""
    import torch

    generator = torch.Generator().manual_seed(3)
    rows = []
    for index in range(count):
        length = 9 + (index * 5) % 14
        ids = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        rows.append({"input_ids": ids, "labels": [-100] * 3 + ids[3:]})
    return rows


def train(dtype_name: str, model_name: str) -> dict[str, Any]:
    import torch

    import ruda_torch
    from ruda_finetune import (
        CausalLMFinetuner,
        SFTCollator,
        SFTTrainer,
        TrainingBatches,
        fuse_model,
        inject_lora,
        quantize_nf4,
    )

    torch.manual_seed(11)
    model = transformers_llama() if model_name == "transformers" else plain_llama()
    quantize_nf4(model, "all-linear", block_size=32)
    model = model.to("ruda", dtype=getattr(torch, dtype_name))
    if model_name == "transformers":
        fuse_model(model)
    torch.manual_seed(1)
    inject_lora(model, rank=8, alpha=16.0, dropout=0.1)
    if model_name == "transformers":
        finetuner = CausalLMFinetuner.from_model(model)
    else:
        finetuner = CausalLMFinetuner(model.model, model.lm_head)
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = ruda_torch.AdamW(trained, lr=1e-2)
    data = TrainingBatches(make_rows(), SFTCollator(pad_token_id=0), 2, 1)
    trainer = SFTTrainer(finetuner, optimizer, "base", {}, data=data)
    losses, step_seconds = [], []
    for step in range(1, STEPS + 1):
        begin = time.perf_counter()
        losses.append(trainer.fit(steps=step).losses[-1])
        torch.ruda.synchronize()
        step_seconds.append(time.perf_counter() - begin)
    return {
        "model": model_name,
        "losses": losses,
        "seconds": sum(step_seconds),
        "step_seconds": step_seconds,
        "device": torch.ruda.get_device_name(),
        "execution": torch.ruda.execution_stats(),
    }


def main() -> None:
    arguments = read_arguments()
    os.environ["RUDA_TARGET"] = arguments.target  # read at the device's first use
    result = {"target": arguments.target, "dtype": arguments.dtype}
    result |= train(arguments.dtype, arguments.model)
    text = json.dumps(result, indent=1)
    if arguments.json is None:
        print(text)
    else:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()

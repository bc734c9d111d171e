"""What autograd keeps of a fused model with adapters over NF4, counted."""

from __future__ import annotations

import pytest
import torch

import ruda_torch  # noqa: F401 - registers the device
from ruda_finetune import CausalLMFinetuner, fuse_model, inject_lora, quantize_nf4

TOKENS, RANK = 64, 16
HIDDEN, INNER, KEYS = 576, 1536, 192  # of SmolLM2-135M


def model(layers: int, dtype: torch.dtype):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=97,
            hidden_size=HIDDEN,
            intermediate_size=INNER,
            num_hidden_layers=layers,
            num_attention_heads=9,
            num_key_value_heads=3,
        )
    )
    quantize_nf4(made, "all-linear")
    made.to(dtype)
    fuse_model(made)
    inject_lora(made, "all-linear", rank=RANK, alpha=RANK)
    return made.to("ruda:0").train()


def kept_bytes(made, checkpointing: bool = False) -> int:
    """Bytes of distinct storages in the graph of one loss, without the model's own."""
    finetuner = CausalLMFinetuner.from_model(made, activation_checkpointing=checkpointing)
    own = {value.untyped_storage().data_ptr() for value in (*made.parameters(), *made.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.nbytes
        return tensor

    ids = torch.arange(TOKENS)[None].to("ruda:0")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = finetuner(ids, ids)
    size = sum(kept.values())
    loss.backward()
    return size


@pytest.mark.parametrize(
    ("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 2)], ids=["float32", "bfloat16"]
)
def test_bytes_of_a_token_and_layer(dtype: torch.dtype, width: int) -> None:
    a_layer = (kept_bytes(model(3, dtype)) - kept_bytes(model(1, dtype))) / 2
    values = (
        2 * HIDDEN  # the residual stream before each norm
        + 2 * (HIDDEN + KEYS)  # q, k, v and attention's result
        + 2 * INNER  # gate and up
        + 7 * RANK  # the updates' narrow halves
    )
    statistics = 2 + 9  # of the norms and the attention heads, float32
    assert a_layer <= TOKENS * (width * values + 4 * statistics) + 2048

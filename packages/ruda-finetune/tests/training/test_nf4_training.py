"""LoRA on an NF4 base trains like LoRA on the dequantised weights as dense float32 layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ruda_finetune import (
    CausalLMFinetuner,
    NF4Linear,
    SFTCollator,
    SFTTrainer,
    TrainingBatches,
    fuse_model,
    inject_lora,
    quantize_nf4,
)


def losses(kit, device, dense, fused, steps=10, dtype=torch.float32, checkpointing=True, rate=1e-2):
    model = kit.tiny_llama()
    quantize_nf4(model, "all-linear", block_size=32)
    if dense:
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, NF4Linear):
                    layer = nn.Linear(child.in_features, child.out_features, bias=False)
                    layer.weight.data.copy_(child.dequantize())
                    setattr(parent, name, layer)
    model = model.to(device=device, dtype=dtype)
    if fused:
        fuse_model(model)
    torch.manual_seed(1)
    inject_lora(model, rank=8, alpha=32.0)
    finetuner = CausalLMFinetuner.from_model(model, activation_checkpointing=checkpointing)
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = kit.make_optimizer(trained, torch.device(device), lr=rate)
    data = TrainingBatches(kit.make_rows(), SFTCollator(pad_token_id=0), 2, 2)
    trainer = SFTTrainer(finetuner, optimizer, "base", {}, data=data)
    return trainer.fit(steps=steps).losses


@pytest.mark.parametrize("fused", [False, True])
def test_nf4_on_ruda_follows_dense_on_cpu(kit, fused):
    import ruda_torch  # noqa: F401 - registers the device

    expected = losses(kit, "cpu", dense=True, fused=False)
    assert max(expected) - min(expected) > 0.02 * expected[0]  # the run goes somewhere
    assert losses(kit, "ruda:0", dense=False, fused=fused) == pytest.approx(expected, rel=1e-3)


def test_bfloat16_activations_follow_float32(kit):
    import ruda_torch  # noqa: F401 - registers the device

    wide, half = (
        losses(kit, "ruda:0", dense=False, fused=True, steps=40, dtype=dtype, rate=3e-3)
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert half == pytest.approx(wide, rel=0.02)


def test_checkpointing_changes_no_loss(kit):
    """What is kept less and made again is the same to the bit."""
    import ruda_torch  # noqa: F401 - registers the device

    runs = [
        losses(kit, "ruda:0", dense=False, fused=True, steps=4, checkpointing=checkpointing)
        for checkpointing in (False, True)
    ]
    assert runs[0] == runs[1]

"""`ruda-finetune profile` and the arithmetic behind its table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ruda_finetune import fuse_model, inject_lora, quantize_nf4
from ruda_finetune.cli import profile


def event(name: str, ms: float, parent: Any = None, shapes: Any = ()) -> Any:
    return SimpleNamespace(
        name=name, self_cpu_time_total=ms * 1e3, cpu_parent=parent, input_shapes=shapes
    )


def test_what_an_operator_calls_belongs_to_it() -> None:
    backward = event("SomeBackward0", 7.0)
    outer = event("ruda::linear_cross_entropy", 3.0, backward, [[5, 4], [9, 4]])
    events = [
        backward,
        outer,
        event("aten::mm", 2.0, outer, [[5, 4], [4, 9]]),
        event("aten::mm", 4.0, backward, [[2, 3], [3, 5]]),
        event("aten::copy_", 1.0, backward),
    ]
    rows = {row.name: row for row in profile.make_rows(events, 1, 20.0, 1e9)}
    loss, products = rows["loss over the vocabulary"], rows["dense products"]
    assert (loss.ms, loss.calls) == (5.0, 1)
    assert loss.gflop == pytest.approx(2 * 2 * 5 * 4 * 9 / 1e9)  # with the gradient
    assert (products.ms, products.calls) == (4.0, 1)
    assert products.gflop == pytest.approx(2 * 2 * 3 * 5 / 1e9)
    assert products.gflops == pytest.approx(products.gflop / 4e-3)
    assert rows[profile.OTHER_OPERATORS].ms == 1.0
    assert rows[profile.UNACCOUNTED].ms == 10.0
    assert sum(row.share for row in rows.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "shapes", "wanted"),
    [
        ("ruda::nf4_linear", [[1, 6, 8], [20], [1], [16]], 2 * 6 * 8 * 5),
        ("ruda::nf4_linear_input_grad", [[1, 6, 5], [20], [1], [16]], 2 * 6 * 8 * 5),
        ("aten::addmm", [[5], [6, 8], [8, 5]], 2 * 6 * 8 * 5),
        ("aten::bmm", [[3, 6, 8], [3, 8, 5]], 3 * 2 * 6 * 8 * 5),
        ("aten::add", [[6, 8], [6, 8]], 0),
    ],
)
def test_flops(name: str, shapes: Any, wanted: float) -> None:
    assert profile.flops(name, shapes) == wanted


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_tiny_model(checkpointing: bool, capsys: pytest.CaptureFixture[str]) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    quantize_nf4(model)
    inject_lora(model, rank=4)
    model.to("ruda:0")
    fuse_model(model)
    device = torch.device("ruda:0")
    found = profile.profile_step(model, device, 16, checkpointing, "tiny", 4, torch.float32)
    rows = {row.name: row for row in found.rows}
    assert sum(row.ms for row in found.rows) == pytest.approx(found.step_ms)
    # two layers of seven; checkpointing runs most of them once more
    assert rows["linear layers, forward"].calls >= (20 if checkpointing else 14)
    weights = 2 * (4 * 32 * 32 + 3 * 32 * 64)
    assert (rows["linear layers, forward"].gflop or 0) >= 2 * 16 * weights / 1e9
    assert rows["loss over the vocabulary"].calls >= 1 and rows["optimiser"].calls >= 1
    assert found.peak_mib and found.gemm_gflops > 0
    profile.print_table(found)
    table = capsys.readouterr().out
    assert "| linear layers, forward |" in table and "| the whole step |" in table

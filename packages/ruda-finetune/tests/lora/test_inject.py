"""Injection: what is trainable afterwards, shared modules, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ruda_finetune import (
    AdapterError,
    LoRALinear,
    TargetModuleError,
    adapter_state_dict,
    inject_lora,
    load_adapter_state_dict,
    quantize_nf4,
)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"q_proj": nn.Linear(16, 16), "v_proj": nn.Linear(16, 8)})
            for _ in range(2)
        )
        self.lm_head = nn.Linear(16, 20)


KEYS = [
    f"layers.{i}.{name}.lora_{side}.weight"
    for i in range(2)
    for name in ("q_proj", "v_proj")
    for side in "AB"
]


def adapted(**options):
    model = Model()
    torch.manual_seed(1)
    inject_lora(model, rank=4, **options)
    return model


def test_only_adapters_are_trainable():
    model = Model()
    nn.functional.mse_loss(model.lm_head(model.embed.weight), torch.zeros(20, 20)).backward()
    report = inject_lora(model, rank=4)
    assert report.names == (
        "layers.0.q_proj",
        "layers.0.v_proj",
        "layers.1.q_proj",
        "layers.1.v_proj",
    )
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trainable == [key.removesuffix(".weight") for key in KEYS]
    assert all(p.grad is None for p in model.parameters())
    assert isinstance(model.lm_head, nn.Linear)


def test_adapters_do_not_depend_on_the_order_of_targets():
    first, second = Model(), Model()
    torch.manual_seed(1)
    inject_lora(first, ["q_proj", "v_proj"], rank=4)
    torch.manual_seed(1)
    inject_lora(second, ["v_proj", "layers.1.q_proj", "layers.0.q_proj"], rank=4)
    for a, b in zip(adapter_state_dict(first).values(), adapter_state_dict(second).values()):
        assert torch.equal(a, b)


def test_shared_module_gets_one_adapter_everywhere():
    model = Model()
    model.layers[1]["q_proj"] = model.layers[0]["q_proj"]
    model.alias = model.layers[0]["q_proj"]
    inject_lora(model, ["layers.1.q_proj"], rank=2)
    assert isinstance(model.alias, LoRALinear)
    assert model.alias is model.layers[0]["q_proj"] is model.layers[1]["q_proj"]
    assert isinstance(model.alias.base_layer, nn.Linear)
    assert list(adapter_state_dict(model)) == [
        "layers.0.q_proj.lora_A.weight",
        "layers.0.q_proj.lora_B.weight",
    ]


def test_second_injection_is_refused():
    model = adapted()
    with pytest.raises(AdapterError, match=r"already has 4 adapters .*'layers\.0\.q_proj'"):
        inject_lora(model, ["lm_head"])
    assert isinstance(model.lm_head, nn.Linear)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"rank": 0}, "rank"),
        ({"rank": 2.0}, "rank"),
        ({"rank": True}, "rank"),
        ({"alpha": 0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"alpha": "16"}, "alpha"),
        ({"adapter_dtype": torch.int8}, "adapter_dtype"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": -0.1}, "dropout"),
    ],
)
def test_bad_settings_change_nothing(options, text):
    model = Model()
    with pytest.raises(AdapterError, match=text):
        inject_lora(model, **options)
    assert all(p.requires_grad for p in model.parameters())
    assert not any(isinstance(m, LoRALinear) for m in model.modules())


def test_meta_model_is_refused():
    model = Model().to("meta")
    with pytest.raises(AdapterError, match=r"'layers\.0\.q_proj' has no values"):
        inject_lora(model)


def test_the_head_only_when_named():
    model = Model()
    inject_lora(model, ["lm_head", "q_proj"], rank=2)
    assert isinstance(model.lm_head, LoRALinear)


def test_a_bare_linear_layer_has_no_place_for_an_adapter():
    with pytest.raises(TargetModuleError, match="no linear layer"):
        inject_lora(nn.Linear(4, 4))


def test_state_round_trip_with_cast():
    model, other = adapted(), adapted(adapter_dtype=torch.bfloat16)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_()
    state = adapter_state_dict(model)
    assert list(state) == KEYS
    assert not any(t.requires_grad for t in state.values())
    load_adapter_state_dict(other, state)
    for key, tensor in adapter_state_dict(other).items():
        assert torch.equal(tensor, state[key].to(torch.bfloat16))


def rename(state):
    state["layers.0.q_proj.lora_C.weight"] = state.pop("layers.0.q_proj.lora_A.weight")


def drop(state):
    del state["layers.1.v_proj.lora_B.weight"]


def reshape(state):
    state["layers.1.q_proj.lora_A.weight"] = torch.zeros(3, 16)


def integers(state):
    state["layers.1.q_proj.lora_A.weight"] = torch.zeros(4, 16, dtype=torch.int64)


def compiled(state):
    for key in list(state):
        state["_orig_mod." + key] = state.pop(key)


@pytest.mark.parametrize(
    "damage, texts",
    [
        (rename, [r"missing: layers\.0\.q_proj\.lora_A", r"unexpected: layers\.0\.q_proj\.lora_C"]),
        (drop, [r"missing: layers\.1\.v_proj\.lora_B"]),
        (reshape, [r"layers\.1\.q_proj\.lora_A\.weight has shape \[3, 16\], wanted \[4, 16\]"]),
        (integers, [r"layers\.1\.q_proj\.lora_A\.weight is no floating tensor"]),
        (compiled, [r"prefix '_orig_mod\.': _orig_mod\.layers\.0\.q_proj\.lora_A"]),
    ],
)
def test_wrong_state_is_refused_whole(damage, texts):
    model = adapted()
    before = {key: tensor.clone() for key, tensor in adapter_state_dict(model).items()}
    state = {key: torch.ones_like(tensor) for key, tensor in before.items()}
    damage(state)
    for text in texts:
        with pytest.raises(AdapterError, match=text):
            load_adapter_state_dict(model, state)
    for key, tensor in adapter_state_dict(model).items():
        assert torch.equal(tensor, before[key])


def test_compiled_model_gives_clean_names():
    model = adapted()
    wrapped = torch.compile(model, backend="eager")
    assert list(adapter_state_dict(wrapped)) == KEYS
    load_adapter_state_dict(wrapped, adapter_state_dict(model))


def test_no_adapters():
    with pytest.raises(AdapterError, match="no adapters"):
        adapter_state_dict(Model())
    with pytest.raises(AdapterError, match="no adapters"):
        load_adapter_state_dict(Model(), {})


def test_nf4_model():
    model = Model()
    quantize_nf4(model)
    inject_lora(model, rank=4)
    assert [n for n, p in model.named_parameters() if p.requires_grad] == [
        key.removesuffix(".weight") for key in KEYS
    ]
    assert not any("base_layer.weight" in key for key in model.state_dict())

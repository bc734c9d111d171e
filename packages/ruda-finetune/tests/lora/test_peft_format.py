"""Adapters written here load in PEFT with the same outputs, and the other way round."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from ruda_finetune import (
    AdapterError,
    LoRALinear,
    adapter_state_dict,
    fuse_model,
    inject_lora,
    load_adapter,
    quantize_nf4,
    save_adapter,
)

peft = pytest.importorskip("peft")
IDS = torch.arange(3, 23)[None]


def llama(layers=2):
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=61,
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    ).eval()


def adapted(targets="all-linear", seed=2, **options):
    model = llama()
    inject_lora(model, targets, **{"rank": 4, "alpha": 12.0, **options})
    torch.manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, LoRALinear):
                module.lora_B.normal_(std=0.3)
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize(
    "targets",
    [
        "all-linear",
        ["q_proj", "v_proj"],
        ["model.layers.1.mlp.down_proj"],
        ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "lm_head"],
    ],
)
@pytest.mark.parametrize("options", [{}, {"use_rslora": True, "alpha": 2.5}])
def test_peft_loads_ours(tmp_path, targets, options):
    model = adapted(targets, **options)
    wanted = logits(model)
    assert not torch.allclose(wanted, logits(llama()), atol=1e-2)
    save_adapter(model, tmp_path / "adapter", base_model_name_or_path="some/base")
    theirs = peft.PeftModel.from_pretrained(llama(), str(tmp_path / "adapter"))
    torch.testing.assert_close(logits(theirs), wanted, rtol=1e-5, atol=1e-5)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "some/base"
    assert config["peft_type"] == "LORA"


def test_targets_are_written_as_short_as_they_are_exact(tmp_path):
    def written(targets):
        save_adapter(adapted(targets), tmp_path)
        return json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]

    assert written("all-linear") == [
        "down_proj",
        "gate_proj",
        "k_proj",
        "o_proj",
        "q_proj",
        "up_proj",
        "v_proj",
    ]
    assert written(["model.layers.1.self_attn.q_proj", "v_proj"]) == [
        "model.layers.1.self_attn.q_proj",
        "v_proj",
    ]


@pytest.mark.parametrize("name", ["default", "lora"])
@pytest.mark.parametrize(
    "targets",
    [
        "all-linear",
        ["q_proj", "v_proj"],
        r".*layers\.1\.mlp\.(up|down)_proj",
    ],
)
def test_ours_loads_peft(tmp_path, targets, name):
    config = peft.LoraConfig(
        r=4,
        lora_alpha=10,
        target_modules=targets,
        lora_dropout=0.1,
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(3)
    theirs = peft.get_peft_model(llama(), config, adapter_name=name).eval()
    wanted = logits(theirs)
    theirs.save_pretrained(tmp_path)
    directory = tmp_path if name == "default" else tmp_path / name
    model = llama()
    read = load_adapter(model, directory)
    assert read["r"] == 4
    model.eval()
    torch.testing.assert_close(logits(model), wanted, rtol=1e-5, atol=1e-5)
    layer = next(m for m in model.modules() if isinstance(m, LoRALinear))
    assert layer.dropout.p == 0.1
    assert layer.lora_A.requires_grad


@pytest.mark.parametrize("prepared", [False, True])
def test_round_trip_is_exact(tmp_path, prepared):
    model = adapted()
    save_adapter(model, tmp_path)
    other = adapted(seed=9) if prepared else llama()
    load_adapter(other, tmp_path)
    for key, tensor in adapter_state_dict(model).items():
        assert torch.equal(adapter_state_dict(other)[key], tensor)


def test_fused_nf4_model_round_trip(tmp_path, device):
    model = llama()
    quantize_nf4(model)
    fuse_model(model)
    inject_lora(model, rank=4)
    model.to(device)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, LoRALinear):
                module.lora_B.fill_(0.1)
    wanted = model(IDS.to(device)).logits
    save_adapter(model, tmp_path)
    other = llama()
    quantize_nf4(other)
    load_adapter(other, tmp_path)
    torch.testing.assert_close(logits(other), wanted.detach().cpu(), rtol=1e-4, atol=1e-4)


def edit_config(directory: Path, **changes):
    path = directory / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(directory: Path, change):
    path = directory / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file(change(tensors), path)


Q0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def renamed(tensors):
    tensors[Q0.replace("q_proj", "qq_proj")] = tensors.pop(Q0)
    return tensors


def dropped(tensors):
    return {key: value for key, value in tensors.items() if ".layers.1." not in key}


def compiled_inside(tensors):
    prefix = "base_model.model."
    return {key.replace(prefix, prefix + "_orig_mod."): tensor for key, tensor in tensors.items()}


def compiled_outside(tensors):
    return {"_orig_mod." + key: value for key, value in tensors.items()}


def mlx(tensors):
    return {
        k.removeprefix("base_model.model.").replace("lora_A.weight", "lora_a"): v
        for k, v in tensors.items()
    }


@pytest.mark.parametrize("prepared", [False, True], ids=["fresh", "adapted"])
@pytest.mark.parametrize(
    "change, text",
    [
        (renamed, r"missing: model\.layers\.0\.self_attn\.q_proj\.lora_A.*unexpected: .*qq_proj"),
        (dropped, r"missing: model\.layers\.1\.self_attn\.q_proj"),
        (compiled_inside, r"prefix '_orig_mod\.': _orig_mod\.model\.layers\.0"),
        (compiled_outside, r"key '_orig_mod\.base_model.* torch\.compile's '_orig_mod\.'"),
        (mlx, r"key 'model\.layers\.0.*' is not PEFT's"),
    ],
)
def test_wrong_tensors_are_refused(tmp_path, change, text, prepared):
    save_adapter(adapted(), tmp_path)
    edit_tensors(tmp_path, change)
    model = adapted(seed=9) if prepared else llama()
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(AdapterError, match=text):
        load_adapter(model, tmp_path)
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], p) for name, p in before.items())


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"r": 8}, r"shape \[4, 48\], wanted \[8, 48\]"),
        ({"use_dora": True}, "use_dora=True is not supported"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias='all'"),
        ({"peft_type": "IA3"}, "peft_type must be 'LORA', got 'IA3'"),
        ({"target_modules": ["q_proj", "typo_proj"]}, "no module is called 'typo_proj'"),
        ({"target_modules": "nothing.*"}, "matches no linear layer"),
        ({"target_modules": None}, "'target_modules' is missing"),
    ],
)
def test_wrong_configs_are_refused(tmp_path, changes, text):
    save_adapter(adapted(), tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors)  # without the record of the settings
    edit_config(tmp_path, **changes)
    model = llama()
    with pytest.raises(AdapterError, match=text):
        load_adapter(model, tmp_path)
    assert all(p.requires_grad for p in model.parameters())


def test_config_of_another_save_is_refused(tmp_path):
    save_adapter(adapted(), tmp_path)
    edit_config(tmp_path, lora_alpha=99)
    with pytest.raises(AdapterError, match="not of one save"):
        load_adapter(llama(), tmp_path)


def test_adapted_model_with_other_settings_is_refused(tmp_path):
    save_adapter(adapted(), tmp_path)
    with pytest.raises(AdapterError, match="lora_alpha is 12, but the model's adapters have 16"):
        load_adapter(adapted(alpha=16.0), tmp_path)
    with pytest.raises(AdapterError, match="r is 4, but the model's adapters have 8"):
        load_adapter(adapted(rank=8), tmp_path)


def test_other_base_is_refused(tmp_path):
    save_adapter(adapted(), tmp_path)
    with pytest.raises(AdapterError, match=r"missing: model\.layers\.2"):
        load_adapter(llama(layers=3), tmp_path)


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(AdapterError, match=r"no adapter_config\.json"):
        load_adapter(llama(), tmp_path / "nowhere")
    (tmp_path / "adapters.safetensors").write_bytes(b"")
    with pytest.raises(AdapterError, match=r"it holds adapters\.safetensors"):
        load_adapter(llama(), tmp_path)
    save_adapter(adapted(), tmp_path)
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(AdapterError, match="is damaged"):
        load_adapter(llama(), tmp_path)
    weights.unlink()
    with pytest.raises(AdapterError, match=r"no adapter_model\.safetensors"):
        load_adapter(llama(), tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(AdapterError, match="not valid JSON"):
        load_adapter(llama(), tmp_path)


def test_full_disk_leaves_the_old_adapter(tmp_path, monkeypatch):
    save_adapter(adapted(), tmp_path)
    (tmp_path / "README.md").write_text("mine")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    count = 0

    def full(handle):
        nonlocal count
        count += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_adapter(adapted(rank=8), tmp_path)
    assert count == 1
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_saving_again_replaces_and_keeps_other_files(tmp_path):
    save_adapter(adapted(), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    model = adapted(rank=8)
    save_adapter(model, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "notes.txt",
    ]
    other = llama()
    load_adapter(other, tmp_path)
    torch.testing.assert_close(logits(other), logits(model))


def test_nothing_to_save(tmp_path):
    with pytest.raises(AdapterError, match="no adapters"):
        save_adapter(llama(), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_wrappers_are_refused_and_compiled_models_are_not(tmp_path):
    model = adapted()
    with pytest.raises(AdapterError, match="Sequential wraps a LlamaForCausalLM under '0'"):
        save_adapter(torch.nn.Sequential(model), tmp_path)
    save_adapter(torch.compile(model, backend="eager"), tmp_path)
    other = llama()
    load_adapter(other, tmp_path)
    torch.testing.assert_close(logits(other), logits(model))

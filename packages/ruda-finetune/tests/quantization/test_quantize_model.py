"""Converting models: which layers, in what order, and what is refused."""

from __future__ import annotations

import gc
import math
import warnings
import weakref

import pytest
import torch
from torch import nn

from ruda_finetune import (
    NF4Linear,
    QuantizationError,
    TargetModuleError,
    inject_lora,
    quantize_nf4,
    resolve_targets,
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(16, 16)
        self.v_proj = nn.Linear(16, 8, bias=False)
        self.norm = nn.LayerNorm(16)


class Model(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.lm_head = nn.Linear(16, 20, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight

    def get_output_embeddings(self):
        return self.lm_head


def kinds(model):
    return {name: type(m).__name__ for name, m in model.named_modules()}


def test_all_linear_leaves_the_head():
    model = Model()
    report = quantize_nf4(model, "all-linear", block_size=32, tile_rows=64)
    assert len(report.names) == report.total == 6
    assert report.matched == {"all-linear": 6}
    assert kinds(model)["layers.2.v_proj"] == "NF4Linear"
    assert kinds(model)["lm_head"] == "Linear"
    assert model.layers[0].q_proj.block_size == 32
    assert model.layers[0].q_proj.tile_rows == 64
    assert model.layers[0].q_proj.bias is not None


def test_head_found_by_tied_weight_or_name():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(9, 4)
            self.body = nn.Linear(4, 4)
            self.out = nn.Linear(4, 9, bias=False)
            self.out.weight = self.words.weight
            self.lm_head = nn.Linear(4, 9)

    assert resolve_targets(Plain()).names == ("body",)


def test_exact_names_and_endings():
    model = Model()
    assert resolve_targets(model, ["layers.1.q_proj"]).names == ("layers.1.q_proj",)
    report = resolve_targets(model, ["v_proj", "layers.0.q_proj", "layers.0.v_proj"])
    assert report.names == (
        "layers.0.q_proj",
        "layers.0.v_proj",
        "layers.1.v_proj",
        "layers.2.v_proj",
    )
    assert report.matched == {"v_proj": 3, "layers.0.q_proj": 1, "layers.0.v_proj": 1}
    assert report.lines() == ["v_proj: 3/6", "layers.0.q_proj: 1/6", "layers.0.v_proj: 1/6"]
    assert resolve_targets(model, ["lm_head"]).names == ("lm_head",)
    assert resolve_targets(model, ["1.q_proj"]).names == ("layers.1.q_proj",)
    with pytest.raises(TargetModuleError):
        resolve_targets(model, ["proj"])  # an ending starts at a dot


@pytest.mark.parametrize(
    "targets, text",
    [
        (["q_proj", "typo_proj"], "no module is called 'typo_proj'; near names: .*q_proj"),
        (["layers.0.q_porj"], "near names: layers.0.q_proj"),
        (["layers.7.q_proj"], r"near names: layers.\d.q_proj"),
        (["embed_tokens", "lm_head"], "'embed_tokens', which is of type Embedding"),
        (["norm"], "'layers.0.norm', which is of type LayerNorm"),
        (["layers"], "ModuleList"),
        ([], "empty"),
        ([""], "non-empty names"),
        ([3], "non-empty names"),
        ("q_proj", r"write \['q_proj'\]"),
    ],
)
def test_bad_targets_change_nothing(targets, text):
    model = Model()
    before = kinds(model)
    with pytest.raises(TargetModuleError, match=text):
        quantize_nf4(model, targets)
    with pytest.raises(TargetModuleError, match=text):
        inject_lora(model, targets)
    assert kinds(model) == before
    assert all(p.requires_grad for p in model.parameters())


def test_few_matches_are_warned_about():
    model = nn.Module()
    model.layers = nn.ModuleList(Block() for _ in range(11))
    model.other = nn.ModuleDict({"rare_proj": nn.Linear(2, 2)})
    with pytest.warns(UserWarning, match="rare_proj: 1/23"):
        resolve_targets(model, ["rare_proj"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve_targets(model, ["layers.0.q_proj"])  # asked for by its full name
        resolve_targets(model, ["q_proj"])


def test_gpt2_conv1d_is_named():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2))
    with pytest.raises(TargetModuleError, match="Conv1D"):
        resolve_targets(model)
    with pytest.raises(TargetModuleError, match="Conv1D"):
        resolve_targets(model, ["c_attn"])


@pytest.mark.parametrize("how", ["parameter", "memory"])
def test_tied_weight_is_refused_by_name(how):
    model = Model(tied=how == "parameter")
    if how == "memory":
        model.lm_head.weight = nn.Parameter(model.embed_tokens.weight.data)
    before = kinds(model)
    with pytest.raises(QuantizationError, match=r"'lm_head' is tied to embed_tokens\.weight"):
        quantize_nf4(model, ["q_proj", "lm_head"])
    assert kinds(model) == before  # found before anything was converted


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_value_names_the_module_and_keeps_finished_layers(value):
    model = Model()
    with torch.no_grad():
        model.layers[1].q_proj.weight[3, 5] = value
    with pytest.raises(QuantizationError, match=r"'layers\.1\.q_proj'.*1 values that are NaN"):
        quantize_nf4(model)
    after = kinds(model)
    assert after["layers.0.q_proj"] == after["layers.0.v_proj"] == "NF4Linear"
    assert after["layers.1.q_proj"] == after["layers.2.q_proj"] == "Linear"
    with torch.no_grad():
        model.layers[1].q_proj.weight[3, 5] = 0.0
    rest = [n for n, kind in kinds(model).items() if kind == "Linear" and n != "lm_head"]
    quantize_nf4(model, rest)
    assert sum(kind == "NF4Linear" for kind in kinds(model).values()) == 6


def test_shared_module_is_replaced_everywhere():
    model = Model()
    model.layers[1].q_proj = model.layers[0].q_proj
    model.alias = model.layers[0].q_proj
    report = quantize_nf4(model, ["layers.1.q_proj"])
    assert report.names == ("layers.0.q_proj",)
    assert isinstance(model.alias, NF4Linear)
    assert model.alias is model.layers[0].q_proj is model.layers[1].q_proj


def test_dense_weights_are_released_one_by_one(monkeypatch):
    model = Model()
    model.alias = model.layers[0].q_proj
    dense = [layer for block in model.layers for layer in (block.q_proj, block.v_proj)]
    weights = [weakref.ref(layer.weight) for layer in dense]
    del dense
    alive = []
    convert = NF4Linear.from_linear

    def watched(linear, *arguments):
        alive.append(sum(weight() is not None for weight in weights))
        return convert(linear, *arguments)

    monkeypatch.setattr(NF4Linear, "from_linear", watched)
    quantize_nf4(model)
    gc.collect()
    assert all(weight() is None for weight in weights)
    # the loop's own variable may hold the layer before the current one
    assert all(count <= 6 - done + 1 for done, count in enumerate(alive))
    assert alive[-1] <= 2


def test_order_and_devices():
    model = Model()
    quantize_nf4(model, ["q_proj"])
    with pytest.raises(TargetModuleError, match=r"'layers\.0\.q_proj' is already an NF4 layer"):
        quantize_nf4(model, ["q_proj"])
    inject_lora(model, ["q_proj"])
    with pytest.raises(TargetModuleError, match="before inject_lora"):
        quantize_nf4(model, ["v_proj"])
    with pytest.raises(QuantizationError, match=r"'layers\.0\.q_proj' has no values"):
        quantize_nf4(Model().to("meta"))
    with pytest.raises(QuantizationError, match="positive even"):
        quantize_nf4(Model(), block_size=3)


def test_model_on_ruda_is_refused():
    import ruda_torch  # noqa: F401 - registers the device

    with pytest.raises(QuantizationError, match=r"'layers\.0\.q_proj' is on ruda:0"):
        quantize_nf4(Model().to("ruda:0"))


def test_mode_and_bias_are_kept():
    model = Model().eval()
    bias = model.layers[0].q_proj.bias
    quantize_nf4(model)
    assert model.layers[0].q_proj.bias is bias
    assert not model.layers[0].q_proj.training

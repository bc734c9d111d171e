"""Quantising while reading: the same layers as `quantize_nf4` makes, without a dense copy."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from torch import nn

from ruda_finetune import (
    FinetuneError,
    LoRALinear,
    ModelFileError,
    NF4Linear,
    TargetModuleError,
    quantize_nf4,
)
from ruda_finetune.loading import load_hf_nf4_model, load_model, load_nf4_safetensors


@pytest.fixture(params=["cpu", "ruda:0"])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def save(tiny_model: Any, tmp_path: Path) -> Callable[..., Path]:
    def inner(model_type: str = "llama", shards: bool = False, **changes: Any) -> Path:
        directory = tmp_path / f"{model_type}-{len(list(tmp_path.iterdir()))}"
        tiny_model(model_type, **changes).save_pretrained(
            directory, max_shard_size="900KB" if shards else "1GB"
        )
        return directory

    return inner


def rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    file = directory / "model.safetensors"
    tensors = {k: v.clone() for k, v in safetensors.torch.load_file(file).items()}
    change(tensors)
    safetensors.torch.save_file(tensors, file)
    return directory


def dense_then_quantised(directory: Path, **options: Any) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    quantize_nf4(model, **options)
    return model.eval()


def same_state(ours: nn.Module, theirs: nn.Module) -> None:
    left, right = ours.state_dict(), theirs.state_dict()
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name].cpu(), right[name].cpu()), name


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma"])
@pytest.mark.parametrize("shards", [False, True])
def test_directory_equals_quantize_nf4(
    model_type: str, shards: bool, device: str, save: Any, some_ids: torch.Tensor
) -> None:
    directory = save(model_type, shards)
    loaded = load_model(directory, device=device)
    reference = dense_then_quantised(directory)
    same_state(loaded.model, reference)
    assert len(loaded.report.quantized) == 14
    assert {t.device for t in loaded.model.state_dict().values()} == {torch.device(device)}
    assert {b.device for b in loaded.model.buffers()} == {torch.device(device)}
    with torch.no_grad():
        got = loaded.model(some_ids.to(device)).logits.cpu()
        wanted = reference(some_ids).logits
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_gguf_equals_quantize_nf4(
    device: str, tiny_model: Any, write_gguf: Any, some_ids: torch.Tensor
) -> None:
    path = write_gguf(tiny_model("llama"), "llama").path
    loaded = load_model(path, device=device)
    dense = load_model(path, device="cpu", quantize="none").model
    with torch.no_grad():
        unquantised = dense(some_ids).logits
    quantize_nf4(dense)
    same_state(loaded.model, dense)
    with torch.no_grad():
        got = loaded.model(some_ids.to(device)).logits.cpu()
        torch.testing.assert_close(got, dense(some_ids).logits, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(got, unquantised, atol=1e-3)  # it was quantised


def test_chosen_layers_and_block_size(save: Any) -> None:
    directory = save("llama")
    loaded = load_model(
        directory,
        target_modules=["q_proj", "model.layers.1.mlp.down_proj"],
        block_size=32,
        tile_rows=64,
        device="cpu",
    )
    names = [n for n, m in loaded.model.named_modules() if isinstance(m, NF4Linear)]
    assert names == [
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.mlp.down_proj",
    ]
    assert list(loaded.report.quantized) == names
    assert loaded.report.targets is not None
    assert loaded.report.targets.matched == {"q_proj": 2, "model.layers.1.mlp.down_proj": 1}
    layer = loaded.model.model.layers[0].self_attn.q_proj
    assert (layer.block_size, layer.tile_rows) == (32, 64)
    assert layer.scales.numel() == 256 * 256 // 32
    assert loaded.report.elements["nf4"] == 2 * 256 * 256 + 256 * 512
    same_state(
        loaded.model,
        dense_then_quantised(directory, target_modules=["q_proj", names[2]], block_size=32),
    )


def test_biases_stay_dense(save: Any) -> None:
    """Qwen2 has biases; whichever of weight and bias is read first."""
    model = load_model(save("qwen2"), device="cpu", dtype=torch.bfloat16).model
    layer = model.model.layers[0].self_attn.q_proj
    assert isinstance(layer, NF4Linear)
    assert layer.bias.dtype == torch.bfloat16
    assert float(layer.bias.detach().float().mean()) == pytest.approx(0.8, abs=0.05)
    assert layer.scales.dtype == layer.codebook.dtype == torch.float32


def test_an_untied_head_may_be_named(save: Any) -> None:
    model = load_model(save("llama"), device="cpu", target_modules=["lm_head"]).model
    assert isinstance(model.lm_head, NF4Linear)
    assert type(model.model.layers[0].mlp.up_proj) is nn.Linear


@pytest.mark.parametrize("kind", ["directory", "gguf"])
def test_a_tied_head_is_refused(kind: str, save: Any, tiny_model: Any, write_gguf: Any) -> None:
    if kind == "directory":
        path = save("llama", tie_word_embeddings=True)
    else:
        path = write_gguf(tiny_model("llama", tie_word_embeddings=True), "llama").path
    with pytest.raises(
        TargetModuleError,
        match=r"the weight of 'lm_head' is tied to model.embed_tokens.weight.*leave it out",
    ):
        load_model(path, device="cpu", target_modules=["lm_head"])


def test_nan_in_a_quantised_weight_is_named(save: Any) -> None:
    name = "model.layers.1.mlp.gate_proj.weight"
    directory = rewrite(save("llama"), lambda t: t[name][5, 6].fill_(float("nan")))
    with pytest.raises(ModelFileError, match=rf"{directory}: tensor '{name}'.*NaN"):
        load_model(directory, device="cpu")


def test_one_dense_tensor_at_a_time(
    tiny_model: Any, write_gguf: Any, save: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a weight is packed, it is the only dense target weight in memory."""
    import ruda_finetune.quantization as quantization

    real, seen = quantization.pack_nf4, []

    def watch(weight: torch.Tensor, block_size: int) -> Any:
        layers = {(256, 256), (128, 256), (512, 256), (256, 512)}
        tensors = [o for o in gc.get_objects() if type(o) in (torch.Tensor, nn.Parameter)]
        dense = {t.data_ptr() for t in tensors if not t.is_meta and tuple(t.shape) in layers}
        seen.append(dense | {weight.data_ptr()})
        return real(weight, block_size)

    paths = [write_gguf(tiny_model("llama"), "llama").path, save("llama"), save("llama", True)]
    gc.collect()
    monkeypatch.setattr(quantization, "pack_nf4", watch)
    gc.freeze()  # what is there already need not be looked at
    try:
        for path in paths:
            seen.clear()
            load_model(path, device="cpu")
            assert len(seen) == 14
            assert max(len(dense) for dense in seen) == 1
    finally:
        gc.unfreeze()


# --- load_nf4_safetensors on any module -------------------------------------------------------


class Plain(nn.Module):
    """No transformers: a shared module, a tied parameter, buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.first = nn.Linear(8, 6)
        self.again = self.first
        self.second = nn.Linear(6, 8, bias=False)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


def plain_checkpoint(directory: Path, **changes: Any) -> Path:
    torch.manual_seed(0)
    state = {
        "embed.weight": torch.randn(10, 8),
        "first.weight": torch.randn(6, 8),
        "first.bias": torch.randn(6),
        "second.weight": torch.randn(8, 6),
        "scale": torch.tensor([1.5, 2.5, 3.5]),
        "count": torch.tensor(7),
    } | changes
    directory.mkdir(exist_ok=True)
    safetensors.torch.save_file(
        {k: v for k, v in state.items() if v is not None}, directory / "model.safetensors"
    )
    return directory


def on_meta() -> Plain:
    with torch.device("meta"):
        return Plain()


def test_plain_module(tmp_path: Path, device: str) -> None:
    directory = plain_checkpoint(tmp_path)
    model = on_meta()
    report = load_nf4_safetensors(
        model,
        directory,
        ["first", "second"],
        device,
        parameter_dtypes={"first.bias": torch.float32},
        buffer_dtypes={"scale": torch.float16},
    )
    stored = safetensors.torch.load_file(directory / "model.safetensors")
    assert isinstance(model.first, NF4Linear)
    assert model.again is model.first
    assert model.head.weight is model.embed.weight
    assert model.embed.weight.dtype == torch.bfloat16  # the default
    assert torch.equal(model.embed.weight.cpu(), stored["embed.weight"].to(torch.bfloat16))
    assert torch.equal(model.first.bias.detach().cpu(), stored["first.bias"])
    assert (model.scale.dtype, model.scale.tolist()) == (torch.float16, [1.5, 2.5, 3.5])
    assert (model.count.dtype, int(model.count)) == (torch.int64, 7)
    dense = nn.Linear(8, 6)
    with torch.no_grad():
        dense.weight.copy_(stored["first.weight"])
    assert torch.equal(model.first.packed.cpu(), NF4Linear.from_linear(dense).packed)
    assert report.quantized == ("first", "second")
    assert report.ties == (("embed.weight", "head.weight"),)
    everything = [*model.parameters(), *model.buffers()]
    assert {str(t.device) for t in everything} == {device}


def test_aliases_in_the_file(tmp_path: Path) -> None:
    """A shared module may be stored under its other name; both names must agree."""
    weight = torch.randn(6, 8)
    plain_checkpoint(
        tmp_path, **{"first.weight": None, "again.weight": weight, "head.weight": None}
    )
    model = on_meta()
    load_nf4_safetensors(model, tmp_path, ["second"], "cpu", torch.float32)
    assert torch.equal(model.first.weight, weight)
    plain_checkpoint(tmp_path, **{"again.weight": weight})
    with pytest.raises(ModelFileError, match=r"'first.weight'.*tied in the model but differ"):
        load_nf4_safetensors(on_meta(), tmp_path, ["second"], "cpu")


def test_nothing_changes_when_the_file_does_not_fit(tmp_path: Path) -> None:
    plain_checkpoint(tmp_path, **{"second.weight": torch.zeros(8, 7), "count": None})
    model = on_meta()
    with pytest.raises(ModelFileError) as caught:
        load_nf4_safetensors(model, tmp_path, ["first"], "cpu")
    assert "1 tensors are missing in the file: count" in str(caught.value)
    assert "second.weight has shape [8, 7] in the file, [8, 6] in the model" in str(caught.value)
    assert all(t.is_meta for t in (*model.parameters(), *model.buffers()))
    assert type(model.first) is nn.Linear


def test_parameters_must_be_on_meta(tmp_path: Path) -> None:
    plain_checkpoint(tmp_path)
    with pytest.raises(FinetuneError, match=r"must be on the meta device.*embed.weight"):
        load_nf4_safetensors(Plain(), tmp_path, ["first"], "cpu")


def test_dtype_of_a_packed_weight(tmp_path: Path) -> None:
    plain_checkpoint(tmp_path)
    with pytest.raises(FinetuneError, match=r"names weights that become NF4: first.weight"):
        load_nf4_safetensors(
            on_meta(),
            tmp_path,
            ["first"],
            "cpu",
            parameter_dtypes={"first.weight": torch.float32},
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_a_buffer_nobody_computes(tmp_path: Path, dtype: torch.dtype) -> None:
    plain_checkpoint(tmp_path)
    model = on_meta()
    mask = torch.zeros(4, dtype=dtype)
    model.second.register_buffer("mask", mask.to("meta"), persistent=False)
    with pytest.raises(ModelFileError, match=r"Plain does not compute them: second\.mask"):
        load_nf4_safetensors(model, tmp_path, ["first"], "cpu")
    model.second.register_buffer("mask", mask, persistent=False)  # real values are kept
    load_nf4_safetensors(model, tmp_path, ["first"], "cpu")
    assert torch.equal(model.second.mask, mask)


# --- load_hf_nf4_model ------------------------------------------------------------------------


def test_hf_model_with_adapters(save: Any, device: str, some_ids: torch.Tensor) -> None:
    directory = save("llama", tie_word_embeddings=True)
    model = load_hf_nf4_model(
        directory, ["q_proj", "v_proj"], device, torch.float32, rank=4, alpha=8.0
    )
    adapters = [m for m in model.modules() if isinstance(m, LoRALinear)]
    assert len(adapters) == 4
    assert all(isinstance(m.base_layer, NF4Linear) for m in adapters)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    trainable = [n for n, p in model.named_parameters() if p.requires_grad]
    assert len(trainable) == 8
    reference = dense_then_quantised(directory, target_modules=["q_proj", "v_proj"])
    with torch.no_grad():  # B is zero at the start
        got, wanted = model(some_ids.to(device)).logits.cpu(), reference(some_ids).logits
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_hf_model_defaults(save: Any) -> None:
    model = load_hf_nf4_model(save("qwen2"), device="cpu")
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert sum(isinstance(m, LoRALinear) for m in model.modules()) == 14
    assert model.generation_config.eos_token_id == 2


def test_hf_model_of_another_class(save: Any, tiny_model: Any, tmp_path: Path) -> None:
    """A backbone alone, with its own class."""
    tiny_model("llama").model.save_pretrained(tmp_path / "backbone")
    model = load_hf_nf4_model(
        tmp_path / "backbone", device="cpu", auto_class=transformers.AutoModel
    )
    assert type(model).__name__ == "LlamaModel"
    with pytest.raises(ModelFileError, match=r"\[load_hf_nf4_model\] no AutoModelForMaskedLM"):
        load_hf_nf4_model(save("llama"), device="cpu", auto_class=transformers.AutoModelForMaskedLM)

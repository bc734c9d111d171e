"""Safetensors directories: dense loading against transformers, ties, dtypes, damaged files."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from ruda_finetune import FinetuneError, ModelFileError, TargetModuleError
from ruda_finetune.loading import load_model
from ruda_finetune.loading.hashes import file_sha256


def load_dense(path: Path, **options: Any) -> Any:
    return load_model(path, **{"quantize": "none", "device": "cpu"} | options)


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(ids).logits


@pytest.fixture
def save(tiny_model: Any, tmp_path: Path) -> Callable[..., Path]:
    """`(model_type, shards=False, **config changes) -> directory`."""

    def inner(model_type: str = "llama", shards: bool = False, **changes: Any) -> Path:
        directory = tmp_path / f"{model_type}-{len(list(tmp_path.iterdir()))}"
        model = tiny_model(model_type, **changes)
        model.save_pretrained(directory, max_shard_size="900KB" if shards else "1GB")
        return directory

    return inner


def rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    """Change the tensors of `model.safetensors`."""
    file = directory / "model.safetensors"
    tensors = {k: v.clone() for k, v in safetensors.torch.load_file(file).items()}
    change(tensors)
    safetensors.torch.save_file(tensors, file)
    return directory


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral", "gemma", "gpt2"])
@pytest.mark.parametrize("shards", [False, True])
def test_equals_transformers(
    model_type: str, shards: bool, save: Any, some_ids: torch.Tensor
) -> None:
    directory = save(model_type, shards)
    assert (directory / "model.safetensors.index.json").exists() == shards
    loaded = load_dense(directory, target_modules=None if model_type == "gpt2" else "all-linear")
    reference = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    assert torch.equal(logits(loaded.model, some_ids), logits(reference, some_ids))
    ours, theirs = loaded.model.state_dict(), reference.state_dict()
    assert list(ours) == list(theirs)
    buffers = dict(reference.named_buffers())
    for name, buffer in loaded.model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
        assert buffer.dtype == buffers[name].dtype
    assert loaded.tokenizer is None
    assert loaded.source.format == "safetensors"
    assert not any(p.is_meta for p in loaded.model.parameters())


def test_demo_sized_names(save: Any) -> None:
    """The hash is the file's own; for shards, one of their names and hashes."""
    single = load_dense(save("llama")).source
    data = (single.path / "model.safetensors").read_bytes()
    assert single.sha256 == hashlib.sha256(data).hexdigest() == single.files["model.safetensors"]
    assert single.nbytes == len(data)
    sharded = load_dense(save("llama", shards=True)).source
    assert len(sharded.files) > 1
    lines = "".join(f"{n} {file_sha256(sharded.path / n)}\n" for n in sorted(sharded.files))
    assert sharded.sha256 == hashlib.sha256(lines.encode()).hexdigest()


def test_tokenizer_and_generation_config(save: Any, smollm2: Path) -> None:
    from ruda_finetune.loading import load_gguf_tokenizer, open_gguf

    directory = save("llama")
    load_gguf_tokenizer(open_gguf(smollm2)).save_pretrained(directory)
    config = {"eos_token_id": [2, 7], "temperature": 0.3, "do_sample": True}
    (directory / "generation_config.json").write_text(json.dumps(config))
    loaded = load_dense(directory)
    assert loaded.tokenizer("Hello").input_ids == [19556]
    assert loaded.model.generation_config.eos_token_id == [2, 7]
    assert loaded.model.generation_config.temperature == 0.3


# --- dtypes -----------------------------------------------------------------------------------


def test_default_dtype_on_the_host_is_float32(save: Any, some_ids: torch.Tensor) -> None:
    """Half precision on a CPU is many times slower: bfloat16 files are computed in float32."""
    directory = save("llama")

    def halve(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({k: v.to(torch.bfloat16) for k, v in tensors.items()})

    rewrite(directory, halve)
    loaded = load_dense(directory)
    assert loaded.dtype == torch.float32
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert loaded.config.dtype == torch.float32
    assert loaded.report.stored == {"BF16": len(loaded.model.state_dict())}
    half = load_dense(directory, dtype=torch.bfloat16)
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    assert half.model.model.rotary_emb.inv_freq.dtype == torch.float32
    for name, value in half.model.state_dict().items():
        assert torch.equal(value.float(), loaded.model.state_dict()[name]), name


def test_parameter_and_buffer_dtypes(save: Any) -> None:
    loaded = load_dense(
        save("llama"),
        dtype=torch.bfloat16,
        parameter_dtypes={"model.norm.weight": torch.float32},
        buffer_dtypes={"model.rotary_emb.inv_freq": torch.float64},
    )
    assert loaded.model.model.norm.weight.dtype == torch.float32
    assert loaded.model.model.rotary_emb.inv_freq.dtype == torch.float64
    assert loaded.model.lm_head.weight.dtype == torch.bfloat16
    assert set(loaded.report.elements) == {"bfloat16", "float32"}


@pytest.mark.parametrize("attribute", ["_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"])
def test_modules_kept_in_float32(
    attribute: str, save: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers.LlamaForCausalLM, attribute, ["o_proj", "norm"])
    loaded = load_dense(save("llama"), dtype=torch.bfloat16)
    for name, parameter in loaded.model.named_parameters():
        kept = "o_proj" in name or name == "model.norm.weight"  # not input_layernorm
        assert parameter.dtype == (torch.float32 if kept else torch.bfloat16), name


def test_dtypes_for_unknown_names(save: Any) -> None:
    directory = save("llama")
    with pytest.raises(FinetuneError, match=r"parameter_dtypes names what is no parameter.*: x.y"):
        load_dense(directory, parameter_dtypes={"x.y": torch.float32})
    with pytest.raises(FinetuneError, match=r"buffer_dtypes names what is no buffer.*: lm_head.w"):
        load_dense(directory, buffer_dtypes={"lm_head.weight": torch.float32})
    with pytest.raises(FinetuneError, match=r"cannot be torch\.int8"):
        load_dense(directory, parameter_dtypes={"model.norm.weight": torch.int8})


# --- ties -------------------------------------------------------------------------------------


def test_tied_weights_are_one_tensor(save: Any) -> None:
    loaded = load_dense(save("llama", tie_word_embeddings=True))
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert loaded.report.ties == (("model.embed_tokens.weight", "lm_head.weight"),)
    assert loaded.report.parameters == sum(p.numel() for p in loaded.model.parameters())


def test_the_head_alone_may_hold_the_tied_weight(save: Any) -> None:
    directory = rewrite(
        save("llama", tie_word_embeddings=True),
        lambda t: t.update({"lm_head.weight": t.pop("model.embed_tokens.weight")}),
    )
    model = load_dense(directory).model
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not model.lm_head.weight.is_meta


def test_both_names_in_the_file(save: Any) -> None:
    directory = rewrite(
        save("llama", tie_word_embeddings=True),
        lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}),
    )
    model = load_dense(directory).model
    assert model.lm_head.weight is model.model.embed_tokens.weight
    rewrite(directory, lambda t: t["lm_head.weight"][-1, -1].add_(1))
    with pytest.raises(ModelFileError, match=r"lm_head.weight.*tied in the model but differ"):
        load_dense(directory)


# --- files that do not fit --------------------------------------------------------------------


def test_every_difference_is_listed(save: Any) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.norm.weight"]
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.0.mlp.extra.weight"] = torch.zeros(1)
        tensors["model.layers.0.self_attn.q_proj.weight"] = torch.zeros(256, 255)
        tensors["model.layers.0.input_layernorm.weight"] = torch.zeros(256, dtype=torch.int32)

    directory = rewrite(save("llama"), change)
    with pytest.raises(ModelFileError) as caught:
        load_dense(directory)
    for part in (
        str(directory),
        "2 tensors are missing in the file: ",
        "model.norm.weight",
        "model.layers.1.mlp.up_proj.weight",
        "1 tensors of the file have no place in the model: model.layers.0.mlp.extra.weight",
        "q_proj.weight has shape [256, 255] in the file, [256, 256] in the model",
        "input_layernorm.weight is stored as I32",
    ):
        assert part in str(caught.value)


def test_old_rotary_buffers_are_skipped(save: Any) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    directory = rewrite(save("llama"), lambda t: t.update({name: torch.ones(32)}))
    assert load_dense(directory).report.skipped == {name: "the model computes it"}


def test_nan_is_named(save: Any) -> None:
    for value in ("nan", "inf", "-inf"):
        directory = rewrite(
            save("llama"), lambda t, v=value: t["lm_head.weight"][7, 3].fill_(float(v))
        )
        with pytest.raises(ModelFileError, match=r"'lm_head.weight' has values that are NaN or"):
            load_dense(directory)


def test_config_of_another_model(save: Any) -> None:
    directory = save("llama")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"hidden_size": 128}))
    with pytest.raises(ModelFileError, match=r"\[96, 256\] in the file, \[96, 128\] in the model"):
        load_dense(directory)


def test_quantised_checkpoint(save: Any) -> None:
    directory = save("llama")
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=r"quantised already \(gptq\).*original checkpoint"):
        load_dense(directory)


def test_remote_code_is_never_run(save: Any, tmp_path: Path) -> None:
    directory = save("llama")
    marker = tmp_path / "marker"
    (directory / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    config = json.loads((directory / "config.json").read_text())
    config |= {
        "model_type": "evil",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match="never run"):
        load_dense(directory)
    assert not marker.exists()


def _no_config(directory: Path) -> None:
    (directory / "config.json").unlink()


def _bad_config(directory: Path) -> None:
    (directory / "config.json").write_text("{")


def _no_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()


def _only_pickles(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    torch.save({}, directory / "pytorch_model.bin")


def _truncate(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _cut_header(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:50])


def _pickle(directory: Path) -> None:
    torch.save({"a": torch.zeros(3)}, directory / "model.safetensors")


def _empty(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"")


def _both(directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_no_config, r"has no config\.json"),
        (_bad_config, r"config\.json is no config of a model"),
        (_no_weights, r"has neither model\.safetensors nor model\.safetensors\.index\.json"),
        (_only_pickles, r"pytorch_model\.bin: pickled weights are never read"),
        (_truncate, r"model\.safetensors \(\d+ bytes\) is no readable safetensors file.*truncated"),
        (_cut_header, r"model\.safetensors \(50 bytes\) is no readable safetensors file"),
        (_pickle, r"model\.safetensors \(\d+ bytes\) is no readable safetensors file"),
        (_empty, r"model\.safetensors \(0 bytes\) is no readable safetensors file"),
        (_both, r"has both model\.safetensors and model\.safetensors\.index\.json"),
    ],
)
def test_damaged_directories(damage: Any, message: str, save: Any) -> None:
    directory = save("llama")
    damage(directory)
    with pytest.raises(ModelFileError, match=message):
        load_dense(directory)


def _index(directory: Path, change: Callable[[dict[str, str]], Any]) -> None:
    file = directory / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    change(index["weight_map"])
    file.write_text(json.dumps(index))


def _shards(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors"))


def _outside(directory: Path) -> None:
    first = _shards(directory)[0]
    shutil.move(first, directory.parent / first.name)
    _index(directory, lambda m: m.update({k: f"../{v}" for k, v in m.items() if v == first.name}))


def _absolute(directory: Path) -> None:
    first = _shards(directory)[0]
    target = directory.parent / first.name
    shutil.move(first, target)
    _index(directory, lambda m: m.update({k: str(target) for k, v in m.items() if v == first.name}))


def _link(directory: Path) -> None:
    first = _shards(directory)[0]
    shutil.move(first, directory.parent / "elsewhere")
    first.symlink_to(directory.parent / "elsewhere")


def _missing_shard(directory: Path) -> None:
    _shards(directory)[1].unlink()


def _unlisted(directory: Path) -> None:
    _index(directory, lambda m: m.pop("model.norm.weight"))


def _listed_elsewhere(directory: Path) -> None:
    names = [p.name for p in _shards(directory)]
    _index(
        directory,
        lambda m: m.update({"model.norm.weight": names[m["model.norm.weight"] == names[0]]}),
    )


def _not_json(directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_text("[]")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_outside, r"names the shard '\.\./model-.*', which lies outside"),
        (_absolute, r"names the shard '/.*', which lies outside"),
        (_link, r"names the shard 'model-.*', which lies outside"),
        (_missing_shard, r"names the shard 'model-00002-.*', which does not exist"),
        (_unlisted, r"1 tensors are in the shard but not listed for it: model\.norm\.weight"),
        (_listed_elsewhere, r"1 tensors are (listed|in the shard).*: model\.norm\.weight"),
        (_not_json, r"model\.safetensors\.index\.json is no index of safetensors shards"),
    ],
)
def test_damaged_shards(damage: Any, message: str, save: Any) -> None:
    directory = save("llama", shards=True)
    damage(directory)
    with pytest.raises(ModelFileError, match=message):
        load_dense(directory)


def test_links_of_a_hugging_face_cache(save: Any, some_ids: torch.Tensor) -> None:
    """There every file of a snapshot is a link into the model's blobs."""
    original = save("llama", shards=True)
    model = original.parent / "models--me--tiny"
    snapshot, blobs = model / "snapshots" / "abc", model / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(original.iterdir())):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))
    loaded = load_dense(snapshot)
    assert torch.equal(logits(loaded.model, some_ids), logits(load_dense(original).model, some_ids))


def test_wrong_arguments(save: Any, tmp_path: Path) -> None:
    directory = save("llama")
    with pytest.raises(ModelFileError, match=r"does not exist; models are never downloaded"):
        load_dense(tmp_path / "HuggingFaceTB" / "SmolLM2-135M")
    with pytest.raises(ModelFileError, match="is one file of a model: give its directory"):
        load_dense(directory / "model.safetensors")
    with pytest.raises(ModelFileError, match="quantize must be 'nf4' or 'none': got 'int8'"):
        load_model(directory, quantize="int8", device="cpu")  # type: ignore[arg-type]
    with pytest.raises(ModelFileError, match=r"dtype must be one of .*: got torch.int8"):
        load_dense(directory, dtype=torch.int8)
    with pytest.raises(ModelFileError, match="is no device"):
        load_dense(directory, device="rudder:0")
    with pytest.raises(ModelFileError, match="meta device"):
        load_dense(directory, device="meta")
    with pytest.raises(TargetModuleError, match="needs target_modules"):
        load_model(directory, target_modules=None, device="cpu")
    with pytest.raises(TargetModuleError, match=r"no module is called 'q_prj'; near names: q_proj"):
        load_dense(directory, target_modules=["q_prj"])

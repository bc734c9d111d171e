"""GGUF files as models: logits of transformers' own loader, and what it leaves out."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from ruda_finetune import ModelFileError
from ruda_finetune.loading import load_gguf, load_model

# family -> (architecture in the file, general.name, config changes)
FAMILIES = {
    "llama": ("llama", "tiny", {}),
    "llama tied": ("llama", "tiny", {"tie_word_embeddings": True}),
    "llama, as many key heads": ("llama", "tiny", {"num_key_value_heads": 2}),
    "qwen2": ("qwen2", "tiny", {}),
    "qwen2 tied": ("qwen2", "tiny", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", "tiny", {}),
    "mistral": ("llama", "Tiny Mistral v0", {}),
}


def load_dense(path: Path, **options: Any) -> Any:
    return load_model(path, quantize="none", device="cpu", **options)


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_transformers_loader(
    family: str, tiny_model: Any, write_gguf: Any, some_ids: torch.Tensor
) -> None:
    """Files that use every quantisation type; bit for bit."""
    architecture, name, changes = FAMILIES[family]
    model = tiny_model(family.split()[0].strip(","), **changes)
    path = write_gguf(model, architecture, name=name).path
    loaded = load_dense(path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    assert loaded.model.config.model_type == family.split()[0].strip(",")
    assert torch.equal(logits(loaded.model, some_ids), logits(theirs, some_ids))
    assert loaded.report.stored.keys() >= {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}
    assert loaded.report.stored.keys() >= {"Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32"}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma"])
def test_values_and_config(
    family: str, tiny_model: Any, write_gguf: Any, some_ids: torch.Tensor
) -> None:
    """Every weight is what the file says, in a model with the original's config."""
    model = tiny_model(family)
    written = write_gguf(model, "llama" if family == "mistral" else family, name=family)
    loaded = load_dense(written.path)
    state = loaded.model.state_dict()
    for name, values in written.values.items():
        assert np.array_equal(state[name].numpy(), values), name
    ours, original = loaded.config.to_dict(), model.config.to_dict()
    for key in original.keys() - {"dtype", "architectures", "transformers_version"}:
        if key == "rms_norm_eps":
            assert ours[key] == float(np.float32(original[key]))
        else:
            assert ours[key] == original[key], key
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(written.values[name].copy()))
    assert torch.allclose(
        logits(loaded.model, some_ids), logits(model, some_ids), rtol=1e-5, atol=1e-5
    )


def test_the_demo_model(smollm2: Path) -> None:
    """SmolLM2-135M: the same logits as transformers' loader, tied, nothing left over."""
    loaded = load_dense(smollm2)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        str(smollm2.parent), gguf_file=smollm2.name, dtype=torch.float32
    )
    ids = loaded.tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert torch.equal(logits(loaded.model, ids), logits(theirs, ids))
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert loaded.report.ties == (("model.embed_tokens.weight", "lm_head.weight"),)
    assert loaded.report.parameters == 134_515_008
    assert loaded.report.stored == {"Q8_0": 1, "Q4_1": 210, "F32": 61}
    assert loaded.report.targets is not None
    assert (len(loaded.report.targets.names), loaded.report.targets.total) == (210, 210)
    assert loaded.source.format == "gguf"
    assert len(loaded.source.sha256) == 64
    assert loaded.model.generation_config.eos_token_id == 2
    assert not loaded.model.training


def test_load_gguf(tiny_model: Any, write_gguf: Any, tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama"), "llama").path
    loaded = load_gguf(path, quantize="none", device="cpu", attn_implementation="eager")
    assert loaded.config._attn_implementation == "eager"
    assert loaded.model.model.layers[0].self_attn.config is loaded.config
    with pytest.raises(ModelFileError, match="is a directory"):
        load_gguf(tmp_path, quantize="none", device="cpu")


def test_tied_where_there_is_no_head(tiny_model: Any, write_gguf: Any) -> None:
    path = write_gguf(tiny_model("qwen2", tie_word_embeddings=True), "qwen2").path
    loaded = load_dense(path)
    assert loaded.config.tie_word_embeddings is True
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    path = write_gguf(tiny_model("qwen2"), "qwen2", file="untied.gguf").path
    assert load_dense(path).model.lm_head.weight is not loaded.model.model.embed_tokens.weight


def test_biases(tiny_model: Any, write_gguf: Any, some_ids: torch.Tensor) -> None:
    """Biases of Q and K are permuted with their rows."""
    model = tiny_model("llama", attention_bias=True, mlp_bias=True)
    loaded = load_dense(write_gguf(model, "llama", kinds=("F32",)).path)
    assert loaded.config.attention_bias
    assert loaded.config.mlp_bias
    assert torch.equal(logits(loaded.model, some_ids), logits(model, some_ids))


ROPES: dict[str, tuple[dict[str, Any], Callable[[gguf.GGUFWriter], None]]] = {
    "linear": (
        {"rope_type": "linear", "factor": 4.0},
        lambda w: (
            w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR),
            w.add_rope_scaling_factor(4.0),
        ),
    ),
    "linear by the old key": (
        {"rope_type": "linear", "factor": 4.0},
        lambda w: w.add_float32("llama.rope.scale_linear", 4.0),
    ),
    "factor without a type": (
        {"rope_type": "linear", "factor": 2.0},
        lambda w: w.add_rope_scaling_factor(2.0),
    ),
    "none": (
        {"rope_type": "default"},
        lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.NONE),
    ),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        lambda w: (
            w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
            w.add_rope_scaling_factor(4.0),
            w.add_rope_scaling_orig_ctx_len(128),
        ),
    ),
    "yarn with its constants": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "attention_factor": 0.5 * (0.1 * math.log(4.0) + 1.0),
            "beta_fast": 16.0,
            "beta_slow": 2.0,
        },
        lambda w: (
            w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
            w.add_rope_scaling_factor(4.0),
            w.add_rope_scaling_orig_ctx_len(128),
            w.add_float32("llama.rope.scaling.attn_factor", 0.5),
            w.add_float32("llama.rope.scaling.yarn_beta_fast", 16.0),
            w.add_float32("llama.rope.scaling.yarn_beta_slow", 2.0),
        ),
    ),
}


@pytest.mark.parametrize("case", ROPES)
def test_rope_scaling(case: str, tiny_model: Any, write_gguf: Any, some_ids: torch.Tensor) -> None:
    """transformers' loader ignores these keys; the original model is the reference."""
    parameters, metadata = ROPES[case]
    model = tiny_model("llama", rope_parameters=parameters | {"rope_theta": 5e4})
    loaded = load_dense(write_gguf(model, "llama", kinds=("F32",), metadata=metadata).path)
    assert loaded.config.rope_parameters["rope_type"] == parameters["rope_type"]
    assert torch.equal(logits(loaded.model, some_ids), logits(model, some_ids))


def llama3_factors(theta: float, width: int, context: int, factor: float) -> list[float]:
    """By hand: 1 for short waves, `factor` for long ones, blended between context/4 and context."""
    factors = []
    for index in range(0, width, 2):
        wave = 2 * math.pi * theta ** (index / width)
        if wave < context / 4:
            factors.append(1.0)
        elif wave > context:
            factors.append(factor)
        else:
            smooth = (context / wave - 1) / 3
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return factors


def test_llama3_factors(tiny_model: Any, write_gguf: Any, some_ids: torch.Tensor) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = tiny_model("llama", rope_parameters=rope)
    factors = np.array(llama3_factors(500000.0, 64, 8192, 32.0), np.float32)
    path = write_gguf(model, "llama", kinds=("F32",), tensors={"rope_freqs.weight": factors}).path
    loaded = load_dense(path)
    assert loaded.config.rope_parameters == rope
    assert "rope_freqs.weight" in loaded.report.skipped
    assert torch.equal(logits(loaded.model, some_ids), logits(model, some_ids))


def test_other_factors(tiny_model: Any, write_gguf: Any) -> None:
    """Factors that are nobody's: every frequency is divided by its own."""
    factors = np.linspace(1, 3, 32, dtype=np.float32)
    model = tiny_model("llama")
    path = write_gguf(model, "llama", tensors={"rope_freqs.weight": factors}).path
    rotary = load_dense(path).model.model.rotary_emb
    plain = 1 / 10000.0 ** (np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(rotary.inv_freq.numpy(), plain / factors, rtol=1e-6)
    assert rotary.attention_scaling == 1.0


def test_mistral_window(tiny_model: Any, write_gguf: Any) -> None:
    def metadata(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(64)

    path = write_gguf(tiny_model("mistral"), "llama", name="Mistral", metadata=metadata).path
    assert load_dense(path).config.sliding_window == 64


def test_end_of_turn_stops_generation(tiny_model: Any, write_gguf: Any) -> None:
    def metadata(writer: gguf.GGUFWriter) -> None:
        writer.add_eos_token_id(2)
        writer.add_eot_token_id(5)

    loaded = load_dense(write_gguf(tiny_model("llama"), "llama", metadata=metadata).path)
    assert loaded.model.generation_config.eos_token_id == [2, 5]
    assert loaded.config.eos_token_id == 2


def _file_type(kind: str) -> Callable[[Any, Any], Path]:
    def make(model: Any, write: Any) -> Path:
        raw = np.zeros((512, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]), np.uint8)

        def metadata(writer: gguf.GGUFWriter) -> None:
            name = "blk.0.ffn_up.weight"
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])

        return write(model, "llama", metadata=metadata, leave_out=("blk.0.ffn_up.weight",)).path

    return make


def _metadata(call: Callable[[gguf.GGUFWriter], None]) -> Callable[[Any, Any], Path]:
    return lambda model, write: write(model, "llama", metadata=call).path


WRONG: dict[str, tuple[Callable[[Any, Any], Path], str]] = {
    "architecture": (
        lambda model, write: write(model, "falcon").path,
        r"architecture 'falcon' is not supported; supported architectures: llama, mistral, qwen2, "
        "qwen3, gemma",
    ),
    "stored type": (_file_type("IQ4_XS"), r"'blk.0.ffn_up.weight' is stored as IQ4_XS.*supported"),
    "experts": (
        _metadata(lambda w: w.add_expert_count(8)),
        r"mixture-of-experts models are not supported \(llama.expert_count is 8\)",
    ),
    "split file": (
        _metadata(lambda w: w.add_uint16("split.count", 3)),
        "one of 3 parts of a split model",
    ),
    "unknown tensors": (
        lambda model, write: (
            write(
                model, "llama", tensors={"blk.0.ffn_gate_exps.weight": np.zeros(4, np.float32)}
            ).path
        ),
        "1 tensors have no place in a llama model: blk.0.ffn_gate_exps.weight",
    ),
    "missing tensors": (
        lambda model, write: (
            write(model, "llama", leave_out=("blk.1.ffn_up.weight", "output_norm.weight")).path
        ),
        "2 tensors are missing in the file: model.layers.1.mlp.up_proj.weight, model.norm.weight",
    ),
    "no embedding": (
        lambda model, write: write(model, "llama", leave_out=("token_embd.weight",)).path,
        "there is no matrix token_embd.weight",
    ),
    "vocabulary size": (
        lambda model, write: write(model, "llama", vocab_size=90).path,
        r"model.embed_tokens.weight has shape \[96, 256\] in the file, \[90, 256\] in the model",
    ),
    "more tokens than embeddings": (
        _metadata(lambda w: w.add_token_list([f"t{i}" for i in range(97)])),
        "the tokenizer has 97 tokens, the embedding only 96 rows",
    ),
    "rope scaling": (
        _metadata(lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)),
        "rope scaling 'longrope' is not supported; supported: none, linear, yarn",
    ),
    "yarn without its context": (
        _metadata(
            lambda w: (
                w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
                w.add_rope_scaling_factor(4.0),
            )
        ),
        "'yarn' needs llama.rope.scaling.original_context_length",
    ),
    "rope factors": (
        lambda model, write: (
            write(model, "llama", tensors={"rope_freqs.weight": np.ones(7, np.float32)}).path
        ),
        "rope_freqs.weight must hold 32 positive factors: got 7",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files(case: str, tiny_model: Any, write_gguf: Any) -> None:
    make, message = WRONG[case]
    path = make(tiny_model("llama"), write_gguf)
    with pytest.raises(ModelFileError, match=message) as caught:
        load_dense(path)
    assert str(path) in str(caught.value)


def test_missing_metadata(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "bare.gguf", "qwen2")
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=r"metadata qwen2.embedding_length must be a positive"):
        load_dense(tmp_path / "bare.gguf")


def test_nan_is_named(tiny_model: Any, write_gguf: Any) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[1].post_attention_layernorm.weight[3] = float("nan")
    path = write_gguf(model, "llama", kinds=("F32",)).path
    with pytest.raises(
        ModelFileError, match=r"'model.layers.1.post_attention_layernorm.weight' has values.*NaN"
    ):
        load_dense(path)

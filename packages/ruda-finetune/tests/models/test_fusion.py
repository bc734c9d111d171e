"""Fused models compute what the library's modules compute, and keep their state-dict keys."""

from __future__ import annotations

import copy
import pickle
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ruda_finetune import FinetuneError, fuse_model, inject_lora, quantize_nf4
from ruda_finetune.models import FusedAttention, FusedMLP, FusedRMSNorm

CASES = [
    "llama",
    "llama_tied",
    "llama3_rope",
    "qwen2",
    "qwen2_window",
    "qwen3",
    "mistral",
    "mistral_window",
    "gemma",
]
FORWARD, BACKWARD = 5e-6, 1.5e-5  # RMS(error) / RMS(reference), float32


def tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 97, (batch, length), generator=generator)


def left_padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(row) for row in rows)
    ids = torch.stack([F.pad(row, (width - len(row), 0), value=0) for row in rows])
    mask = torch.stack([F.pad(torch.ones_like(row), (width - len(row), 0)) for row in rows])
    return ids, mask


def close(got: torch.Tensor, wanted: torch.Tensor, limit: float) -> None:
    got, wanted = got.detach().cpu().double(), wanted.detach().cpu().double()
    assert got.shape == wanted.shape
    assert torch.isfinite(got).all()
    scale = wanted.square().mean().sqrt()
    error = got - wanted
    assert error.square().mean().sqrt() <= limit * scale
    assert error.abs().max() <= 50 * limit * scale


def loss_and_gradients(model, ids, mask):
    labels = ids.masked_fill(mask == 0, -100)
    output = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False)
    model.zero_grad()
    output.loss.backward()
    return output, {n: p.grad.clone() for n, p in model.named_parameters()}


@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients_equal_unfused(build, case, device):
    plain = build(case)
    rows = [tokens(1, n, seed=n)[0] for n in (11, 4, 7)]
    ids, mask = left_padded(rows)
    wanted, wanted_grads = loss_and_gradients(plain, ids, mask)

    fused = build(case)
    keys = list(fused.state_dict())
    report = fuse_model(fused)
    assert list(fused.state_dict()) == keys
    assert report.fused["attention"] == 2
    fused.to(device)
    got, got_grads = loss_and_gradients(fused, ids.to(device), mask.to(device))
    real = mask.bool()
    close(got.logits.cpu()[real], wanted.logits[real], FORWARD)
    close(got.loss, wanted.loss, FORWARD)
    assert got_grads.keys() == wanted_grads.keys()
    for name, gradient in wanted_grads.items():
        if name.endswith("k_proj.bias"):
            # softmax does not see a constant added to every key before the rotation's first step:
            # compared with the size of the weight's gradient instead of its own
            scale = wanted_grads[name.replace("bias", "weight")].abs().max()
            assert (got_grads[name].cpu() - gradient).abs().max() <= BACKWARD * scale
        else:
            close(got_grads[name], gradient, BACKWARD)


@pytest.mark.parametrize("case", ["llama", "qwen2_window", "qwen3", "mistral_window", "gemma"])
def test_left_padded_batch_equals_single_rows(build, case, device):
    model = build(case)
    fuse_model(model)
    model.to(device)
    rows = [tokens(1, n, seed=n)[0] for n in (12, 1, 6)]
    ids, mask = left_padded(rows)
    with torch.no_grad():
        # generate's position ids, so that a row's positions start at its first real token
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        batch = model(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            position_ids=positions.to(device),
        ).logits.cpu()
        assert torch.isfinite(batch).all()
        for index, row in enumerate(rows):
            alone = model(input_ids=row[None].to(device)).logits.cpu()[0]
            close(batch[index, -len(row) :], alone, FORWARD)


@pytest.mark.parametrize("cache", ["dynamic", "static", None])
@pytest.mark.parametrize("case", ["llama", "qwen2_window", "qwen3", "mistral_window", "gemma"])
def test_generate_equals_unfused(build, case, cache, device):
    ids, mask = left_padded([tokens(1, n, seed=n)[0] for n in (9, 3)])
    options = {"max_new_tokens": 8, "do_sample": False, "use_cache": cache is not None}
    if cache is not None:
        options["cache_implementation"] = cache
    plain = build(case)
    wanted = plain.generate(input_ids=ids, attention_mask=mask, **options)
    fused = build(case)
    fuse_model(fused)
    fused.to(device)
    got = fused.generate(input_ids=ids.to(device), attention_mask=mask.to(device), **options)
    assert got.cpu().tolist() == wanted.tolist()


def test_generate_does_not_depend_on_the_batch(build, device):
    model = build("llama")
    fuse_model(model)
    model.to(device)
    rows = [tokens(1, n, seed=n)[0] for n in (9, 3)]
    ids, mask = left_padded(rows)
    options = {"max_new_tokens": 6, "do_sample": False}
    batch = model.generate(input_ids=ids.to(device), attention_mask=mask.to(device), **options)
    for index, row in enumerate(rows):
        alone = model.generate(
            input_ids=row[None].to(device),
            attention_mask=torch.ones(1, len(row), dtype=torch.long, device=device),
            **options,
        )
        assert alone[0, len(row) :].tolist() == batch[index, ids.shape[1] :].tolist()


def test_packed_rows_do_not_see_each_other(build, device):
    model = build("llama")
    fuse_model(model)
    model.to(device)
    first, second = tokens(1, 5, seed=5)[0], tokens(1, 8, seed=8)[0]
    positions = torch.cat((torch.arange(5), torch.arange(8)))[None]
    with torch.no_grad():
        packed = model(
            input_ids=torch.cat((first, second))[None].to(device),
            position_ids=positions.to(device),
            use_cache=False,
        ).logits.cpu()[0]
        for row, part in ((first, packed[:5]), (second, packed[5:])):
            close(part, model(input_ids=row[None].to(device)).logits.cpu()[0], FORWARD)


class Calls(TorchDispatchMode):
    """Counts the operators that are called."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func.overloadpacket._qualified_op_name] += 1
        return func(*args, **(kwargs or {}))


def test_rudas_operators_are_called(build):
    model = build("qwen3")
    quantize_nf4(model)
    fuse_model(model)
    model.to("ruda:0")
    with Calls() as calls, torch.no_grad():
        model(input_ids=tokens(1, 5).to("ruda:0"), use_cache=False)
    counts = {name: n for name, n in calls.count.items() if name.startswith("ruda::")}
    assert counts == {
        "ruda::rms_norm": 9,
        "ruda::silu_mul": 2,
        "ruda::nf4_linear": 14,
        "ruda::attention": 2,
        "ruda::rotary": 4,
    }


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(build, device, reentrant):
    model = build("qwen3")
    fuse_model(model)
    model.to(device).train()
    ids = tokens(2, 9).to(device)
    mask = torch.ones_like(ids)
    _, plain = loss_and_gradients(model, ids, mask)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    _, recomputed = loss_and_gradients(model, ids, mask)
    for name, gradient in plain.items():
        close(recomputed[name], gradient, BACKWARD)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_float32(build, device, dtype):
    model = build("llama")
    ids = tokens(2, 9)
    with torch.no_grad():
        wanted = model(input_ids=ids).logits
        unfused = copy.deepcopy(model).to(dtype)(input_ids=ids).logits.float()
        fuse_model(model)
        got = model.to(device=device, dtype=dtype)(input_ids=ids.to(device)).logits
    assert got.dtype == dtype
    error = (got.cpu().float() - wanted).square().mean().sqrt()
    limit = (unfused - wanted).square().mean().sqrt()
    assert error <= 1.5 * limit


@pytest.mark.parametrize("case", ["llama", "qwen3", "gemma"])
def test_autocast_stays_near_float32(build, device, case):
    model = build(case)
    ids, mask = left_padded([tokens(1, n, seed=n)[0] for n in (9, 5)])
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=mask).logits[mask.bool()]
        with torch.autocast("cpu", torch.bfloat16):
            unfused = model(input_ids=ids, attention_mask=mask).logits[mask.bool()].float()
    fuse_model(model)
    model.to(device)
    with torch.autocast(device.type, torch.bfloat16):
        output = model(
            input_ids=ids.to(device), attention_mask=mask.to(device), labels=ids.to(device)
        )
    got = output.logits.detach().cpu()[mask.bool()].float()
    assert (got - wanted).norm() <= 1.5 * (unfused - wanted).norm()
    output.loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.dtype == torch.float32, name
        assert torch.isfinite(parameter.grad.cpu()).all(), name


def test_modules_are_replaced_and_reported(build):
    model = build("qwen3")
    report = fuse_model(model)
    layer = model.model.layers[0]
    assert isinstance(layer.self_attn, FusedAttention)
    assert isinstance(layer.self_attn.q_norm, FusedRMSNorm)
    assert isinstance(layer.mlp, FusedMLP)
    assert isinstance(model.model.norm, FusedRMSNorm)
    assert report.is_fused
    assert report.fused == {"attention": 2, "mlp": 2, "norm": 9}
    assert report.unfused == ()
    assert report.attention == "ruda" == model.config._attn_implementation
    again = fuse_model(model)
    assert again == report
    assert model.model.layers[0] is layer


@pytest.mark.parametrize(
    "case, windows",
    [
        ("llama", [None, None]),
        ("qwen2_window", [None, 5]),
        ("mistral_window", [5, 5]),
        ("mistral", [None, None]),
    ],
)
def test_windows_are_taken_over(build, case, windows):
    model = build(case)
    fuse_model(model)
    assert [layer.self_attn.window for layer in model.model.layers] == windows


def test_gemma_keeps_its_mlp_and_says_why(build):
    model = build("gemma")
    report = fuse_model(model)
    assert report.fused == {"attention": 2, "mlp": 0, "norm": 5}
    ((name, count, reason),) = report.unfused
    assert (name, count) == ("GemmaMLP", 2)
    assert "gelu" in reason
    assert "GemmaMLP" in str(report)


def test_other_models_are_left_alone():
    from transformers import Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

    sizes = {
        "vocab_size": 50,
        "hidden_size": 16,
        "intermediate_size": 24,
        "head_dim": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    for model in (
        GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2)),
        Gemma2ForCausalLM(Gemma2Config(**sizes)),
    ):
        before = [type(module) for module in model.modules()]
        implementation = model.config._attn_implementation
        report = fuse_model(model)
        assert not report.is_fused
        assert [type(module) for module in model.modules()] == before
        assert model.config._attn_implementation == implementation == report.attention
        assert "runs unfused" in str(report)
        assert any("Attention" in name for name, _, _ in report.unfused)


def test_module_with_hooks_stays(build):
    model = build("llama")
    calls = []
    model.model.layers[0].mlp.register_forward_hook(lambda *_: calls.append(1))
    report = fuse_model(model)
    assert report.fused["mlp"] == 1
    assert "hooks" in str(report)
    model(input_ids=tokens(1, 3))
    assert calls == [1]


def test_library_classes_are_not_patched(build):
    from transformers.models.llama import modeling_llama as library

    before = {
        name: vars(getattr(library, name)).copy()
        for name in dir(library)
        if isinstance(getattr(library, name), type)
    }
    fuse_model(build("llama"))
    for name, members in before.items():
        changed = {
            key
            for key, value in vars(getattr(library, name)).items()
            if members.get(key) is not value and "cached" not in key
        }
        assert changed == set(), name


@pytest.mark.parametrize("order", ["fuse first", "fuse last"])
def test_fusion_with_nf4_and_lora(build, device, order):
    plain = build("llama")
    quantize_nf4(plain)
    torch.manual_seed(3)
    inject_lora(plain, rank=4)
    fused = build("llama")
    if order == "fuse first":
        fuse_model(fused)
    quantize_nf4(fused)
    torch.manual_seed(3)
    inject_lora(fused, rank=4)
    if order == "fuse last":
        fuse_model(fused)
    assert list(fused.state_dict()) == list(plain.state_dict())
    for model in (plain, fused):
        for name, parameter in model.named_parameters():
            if name.endswith("lora_B"):
                torch.manual_seed(len(name))
                parameter.data.normal_(std=0.05)
    fused.to(device)
    ids = tokens(2, 7)
    close(fused(input_ids=ids.to(device)).logits, plain(input_ids=ids).logits, FORWARD)


def test_saved_fused_model_loads_unfused(build, tmp_path):
    from transformers import AutoModelForCausalLM

    model = build("qwen2")
    ids = tokens(1, 5)
    fuse_model(model)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config._attn_implementation == "sdpa"
    close(again(input_ids=ids).logits, model(input_ids=ids).logits, FORWARD)


def test_copies_and_pickles(build):
    model = build("qwen3")
    fuse_model(model)
    ids = tokens(1, 5)
    wanted = model(input_ids=ids).logits
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(input_ids=ids).logits, wanted)


def test_attention_weights_are_refused(build):
    model = build("llama")
    fuse_model(model)
    with pytest.raises(FinetuneError, match="output_attentions"):
        model(input_ids=tokens(1, 4), output_attentions=True)

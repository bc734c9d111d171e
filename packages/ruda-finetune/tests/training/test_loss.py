from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ruda_finetune import (
    FinetuneError,
    LoRALinear,
    NF4Linear,
    chunked_lm_cross_entropy,
    count_supervised,
)

B, T, H, V = 3, 9, 16, 50


def inputs(device="cpu", dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(B, T, H, generator=generator).to(device, dtype)
    labels = torch.randint(0, V, (B, T), generator=generator)
    labels[0, :4] = -100
    labels[1, 5:] = -100
    labels[2] = -100
    labels[2, 3] = V - 1
    return hidden.requires_grad_(), labels.to(device)


def reference(hidden, weight, bias, labels, reduction, shift=True):
    """Full logits in float64 on the CPU: (loss, gradients of hidden, weight and bias)."""
    leaves = [
        None if tensor is None else tensor.detach().cpu().double().requires_grad_()
        for tensor in (hidden, weight, bias)
    ]
    logits = F.linear(*leaves)
    labels = labels.cpu()
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    loss = F.cross_entropy(logits.reshape(-1, V), labels.reshape(-1), reduction=reduction)
    wanted = [leaf for leaf in leaves if leaf is not None]
    return loss, torch.autograd.grad(loss, wanted)


def close(actual, expected, rtol=5e-6):
    error = (actual.detach().cpu().double() - expected).norm()
    assert error <= rtol * expected.norm() + 1e-12, float(error / expected.norm())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("chunk", [None, 1, 4, 1000])
@pytest.mark.parametrize("with_bias", [False, True])
def test_dense_head_value_and_gradients(device, reduction, chunk, with_bias):
    hidden, labels = inputs(device)
    torch.manual_seed(2)
    head = nn.Linear(H, V, bias=with_bias).to(device)
    loss = chunked_lm_cross_entropy(hidden, head, labels, chunk, reduction=reduction)
    loss.backward()
    expected, grads = reference(hidden, head.weight, head.bias, labels, reduction)
    assert loss.dtype == torch.float32 and loss.shape == ()
    close(loss, expected)
    for tensor, grad in zip([hidden, *head.parameters()], grads):
        close(tensor.grad, grad, 2e-5)


def test_denominator_by_hand():
    # two rows of 4 and 3 tokens, all labels: 5 targets after the shift, each costs log(V)
    labels = torch.tensor([[1, 2, 3, 4], [5, 6, 7, -100]])
    hidden, head = torch.zeros(2, 4, H), nn.Linear(H, V, bias=False)
    assert count_supervised(labels) == 5 and count_supervised(labels, shift=False) == 7
    loss = chunked_lm_cross_entropy(hidden, head, labels, reduction="sum")
    torch.testing.assert_close(loss, 5 * _log_v())
    mean = chunked_lm_cross_entropy(hidden, head, labels)
    torch.testing.assert_close(mean, _log_v())
    # more padding changes nothing
    padded = F.pad(labels, (0, 3), value=-100)
    more = chunked_lm_cross_entropy(torch.zeros(2, 7, H), head, padded)
    torch.testing.assert_close(more, mean)
    # one long row instead of two (packed, the boundary is no target)
    packed = torch.tensor([[1, 2, 3, 4, -100, 6, 7]])
    once = chunked_lm_cross_entropy(torch.zeros(1, 7, H), head, packed, reduction="sum")
    torch.testing.assert_close(once, loss)


def _log_v():
    return torch.tensor(float(V)).log()


def test_shift_off_takes_labels_as_targets(device):
    hidden, labels = inputs(device)
    head = nn.Linear(H, V, bias=False).to(device)
    loss = chunked_lm_cross_entropy(hidden, head, labels, shift=False)
    close(loss, reference(hidden, head.weight, None, labels, "mean", shift=False)[0])


def test_weight_tensor_is_a_head(device):
    hidden, labels = inputs(device)
    weight = torch.randn(V, H, generator=torch.Generator().manual_seed(3)).to(device)
    loss = chunked_lm_cross_entropy(hidden, weight, labels)
    close(loss, reference(hidden, weight, None, labels, "mean")[0])


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("kind", ["nf4", "lora", "lora on nf4", "hooked"])
def test_other_heads(device, kind, recompute):
    hidden, labels = inputs(device)
    torch.manual_seed(2)
    head = nn.Linear(H, V, bias=False)
    head.weight.requires_grad_(False)
    weight = head.weight.detach().clone()
    if "nf4" in kind:
        head = NF4Linear.from_linear(head)
        weight = head.dequantize()
    if "lora" in kind:
        head = LoRALinear(head, rank=2, alpha=4.0)
        nn.init.normal_(head.lora_B, std=0.1)
        weight = weight + head.delta()
    if kind == "hooked":  # what a hook does to the logits must not be lost
        head.register_forward_hook(lambda module, args, output: output * 2)
        weight = weight * 2
    head = head.to(device)
    loss = chunked_lm_cross_entropy(hidden, head, labels, 3, recompute=recompute)
    loss.backward()
    expected, (grad_hidden, grad_weight) = reference(hidden, weight, None, labels, "mean")
    close(loss, expected)
    close(hidden.grad, grad_hidden, 2e-5)
    if "lora" in kind:
        a, b = (tensor.detach().cpu().double() for tensor in (head.lora_A, head.lora_B))
        close(head.lora_B.grad, head.scaling * grad_weight @ a.t(), 2e-5)
        close(head.lora_A.grad, head.scaling * b.t() @ grad_weight, 2e-5)


@pytest.mark.parametrize("kind", ["dense", "nf4", "lora"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_no_valid_target_is_a_differentiable_zero(device, kind, reduction):
    hidden, labels = inputs(device)
    with torch.no_grad():
        hidden[0, 0, 0] = float("inf")  # zero times infinity would be NaN
    head = nn.Linear(H, V, bias=False)
    if kind == "nf4":
        head = NF4Linear.from_linear(head)
    if kind == "lora":
        head = LoRALinear(head)
    head = head.to(device)
    nothing = torch.full_like(labels, -100)
    loss = chunked_lm_cross_entropy(hidden, head, nothing, reduction=reduction)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(hidden.grad.cpu(), torch.zeros(B, T, H))
    for parameter in head.parameters():
        if parameter.requires_grad:
            assert not parameter.grad.any()


class Spy(nn.Module):
    """A frozen head that notes how many logits exist at a time and how often it runs."""

    out_features = V

    def __init__(self):
        super().__init__()
        self.weight = torch.randn(V, H)
        self.rows = []

    def forward(self, x):
        self.rows.append(x.shape[0])
        return x @ self.weight.t()


def test_full_logits_never_exist_and_a_frozen_head_runs_once():
    hidden, labels = inputs()
    spy = Spy()
    chunked_lm_cross_entropy(hidden, spy, labels, 4).backward()
    valid = count_supervised(labels)
    assert spy.rows == [4] * (valid // 4) + [valid % 4] * (valid % 4 > 0)
    with torch.no_grad():
        chunked_lm_cross_entropy(hidden, spy, labels, 1000)
    assert spy.rows[-1] == valid  # only rows that cost something


def test_default_chunk_stays_within_48_mib():
    class Wide(Spy):
        out_features = 2**22  # 16 MiB a row

    hidden, labels = inputs()
    spy = Wide()
    chunked_lm_cross_entropy(hidden, spy, labels)
    assert max(spy.rows) == 3


def test_trained_head_is_recomputed_or_kept():
    hidden, labels = inputs()
    for recompute, runs in ((True, 2), (False, 1)):
        spy = Spy()
        spy.weight = nn.Parameter(spy.weight)
        chunked_lm_cross_entropy(hidden, spy, labels, 1000, recompute=recompute).backward()
        assert len(spy.rows) == runs


def test_recomputed_dropout_draws_the_same_mask(device):
    hidden, labels = inputs(device)
    torch.manual_seed(0)
    head = LoRALinear(nn.Linear(H, V, bias=False), rank=2, dropout=0.5)
    nn.init.normal_(head.lora_B)
    head = head.to(device).train()
    grads = []
    for recompute in (True, False):
        torch.manual_seed(7)
        head.zero_grad()
        loss = chunked_lm_cross_entropy(hidden, head, labels, 3, recompute=recompute)
        (grad,) = torch.autograd.grad(loss, [head.lora_A])
        grads.append(grad.cpu())
    assert torch.equal(*grads)


def test_float64_gradcheck():
    hidden, labels = inputs(dtype=torch.float64)
    weight = torch.randn(V, H, dtype=torch.float64, requires_grad=True)

    def loss(hidden, weight):
        return chunked_lm_cross_entropy(hidden, weight, labels, 4, reduction="sum")

    assert torch.autograd.gradcheck(loss, (hidden, weight), fast_mode=True)


def test_half_precision_head_gradient_does_not_depend_on_the_chunks():
    # 64 chunks against one: sums over chunks are kept in float32
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(1, 65, H, generator=generator).bfloat16()
    labels = torch.randint(0, V, (1, 65), generator=generator)
    weight = torch.randn(V, H, generator=generator).bfloat16()
    grads = []
    for chunk in (1, 64):
        leaf = weight.clone().requires_grad_()
        chunked_lm_cross_entropy(hidden, leaf, labels, chunk).backward()
        grads.append(leaf.grad.double())
    assert (grads[0] - grads[1]).norm() <= 2e-3 * grads[1].norm()


def test_infinite_logits_are_masked_out():
    # one finite logit in a sea of -inf: loss 0, gradients finite
    hidden = torch.zeros(1, 2, H, requires_grad=True)
    head = nn.Linear(H, V)
    with torch.no_grad():
        head.bias.fill_(float("-inf"))
        head.bias[7] = 0.0
    loss = chunked_lm_cross_entropy(hidden, head, torch.tensor([[0, 7]]))
    loss.backward()
    assert loss.item() == 0.0 and torch.isfinite(hidden.grad).all()


def test_bad_input():
    hidden, labels = inputs()
    head = nn.Linear(H, V)
    wrong = labels.clone()
    wrong[0, 6] = V
    cases = [
        ({"labels": wrong}, f"label {V} is outside the vocabulary 0..{V}-1"),
        ({"labels": labels.clone().masked_fill(labels == V - 1, -5)}, "label -5 is outside"),
        ({"labels": labels[:, :-1]}, "wanted hidden"),
        ({"labels": labels.int()}, "must be int64"),
        ({"reduction": "none"}, "'mean' or 'sum'"),
        ({"token_chunk_size": 0}, "must be positive"),
        ({"head": nn.Linear(H + 1, V)}, r"head must have shape \[V, 16\]"),
        ({"head": nn.Linear(H, V).double()}, "dtype torch.float32"),
        ({"head": nn.Sequential(head)}, "pass token_chunk_size"),
    ]
    for change, words in cases:
        arguments = {"hidden": hidden, "head": head, "labels": labels, **change}
        with pytest.raises(FinetuneError, match=words):
            chunked_lm_cross_entropy(**arguments)

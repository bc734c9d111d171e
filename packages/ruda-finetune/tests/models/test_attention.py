"""The attention function by itself, against the formula in float64."""

from __future__ import annotations

import math

import pytest
import torch

from ruda_finetune.models import ATTENTION_NAME, register_attention
from ruda_finetune.models.attention import ruda_attention_forward


class Owner(torch.nn.Module):
    is_causal = True


def reference(query, key, value, visible, scale):
    """[B, H, Q, D], [B, G, KV, D] and bool [Q, KV] -> [B, Q, H, D] in float64."""
    repeat = query.shape[1] // key.shape[1]
    query, key, value = (
        part.cpu().double()
        for part in (query, key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1))
    )
    scores = (query @ key.transpose(2, 3) * scale).masked_fill(~visible, -math.inf)
    return (scores.softmax(-1).nan_to_num(0.0) @ value).transpose(1, 2)


def inputs(device, q=6, kv=6, heads=4, groups=2, width=8):
    generator = torch.Generator().manual_seed(q * 100 + kv)
    return [
        torch.randn(2, h, n, width, generator=generator).to(device)
        for h, n in ((heads, q), (groups, kv), (groups, kv))
    ]


def check(output, wanted):
    error = (output.cpu().double() - wanted).abs().max()
    assert error <= 5e-6 * wanted.abs().max()


@pytest.mark.parametrize("heads, groups", [(4, 4), (4, 2), (6, 1), (6, 2)])
def test_causal_without_mask(device, heads, groups):
    query, key, value = inputs(device, heads=heads, groups=groups)
    output, weights = ruda_attention_forward(Owner(), query, key, value, None, scaling=0.3)
    assert weights is None
    assert output.is_contiguous()
    visible = torch.ones(6, 6).tril().bool()
    check(output, reference(query, key, value, visible, 0.3))


def test_one_query_sees_every_key(device):
    query, key, value = inputs(device, q=1, kv=9)
    output, _ = ruda_attention_forward(Owner(), query, key, value, None, scaling=0.3)
    check(output, reference(query, key, value, torch.ones(1, 9).bool(), 0.3))


def test_keys_behind_the_queries_are_unfilled_static_cache(device):
    query, key, value = inputs(device, q=4, kv=9)
    key[:, :, 4:] = math.nan
    value[:, :, 4:] = math.nan
    output, _ = ruda_attention_forward(Owner(), query, key, value, None, scaling=0.3)
    visible = torch.ones(4, 4).tril().bool()
    check(output, reference(query, key[:, :, :4], value[:, :, :4], visible, 0.3))


@pytest.mark.parametrize("q, kv, window", [(9, 9, 3), (1, 9, 3), (5, 5, 8), (9, 9, 1)])
def test_window_without_mask(device, q, kv, window):
    query, key, value = inputs(device, q=q, kv=kv)
    output, _ = ruda_attention_forward(
        Owner(), query, key, value, None, scaling=0.3, sliding_window=window
    )
    distance = torch.arange(kv - q, kv)[:, None] - torch.arange(kv)[None]
    check(output, reference(query, key, value, (distance >= 0) & (distance < window), 0.3))


def test_window_needs_no_mask_on_ruda(monkeypatch):
    """A long window run never holds [Q, KV]: the operator takes the window itself."""
    pytest.importorskip("ruda_torch")
    from ruda_finetune.models import attention

    def refused(*arguments):
        raise AssertionError("a mask was made")

    monkeypatch.setattr(attention, "_window_mask", refused)
    query, key, value = inputs(torch.device("ruda:0"), q=200, kv=300)
    output, _ = ruda_attention_forward(
        Owner(), query, key, value, None, scaling=0.3, sliding_window=17, is_causal=True
    )
    assert output.shape == (2, 200, 4, 8)


@pytest.mark.parametrize("padded", [0, 3, 40])
def test_causal_mask_with_left_padding(device, padded):
    """The mask that transformers makes for padded batches, forward and backward."""
    query, key, value = (part.requires_grad_() for part in inputs(device, q=130, kv=130))
    visible = torch.ones(130, 130).tril().bool()
    visible[:, :padded] = False
    visible.fill_diagonal_(
        True
    )  # padding sees itself: the reference has no gradient for empty rows
    mask = visible[None, None].expand(2, 1, 130, 130).contiguous().to(device)
    output, _ = ruda_attention_forward(Owner(), query, key, value, mask, scaling=0.3)
    wide = [part.detach().cpu().double().requires_grad_() for part in (query, key, value)]
    wanted = reference(*wide, visible, 0.3)
    check(output.detach(), wanted.detach())
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad(output, (query, key, value), grad.to(device))
    for ours, right in zip(found, torch.autograd.grad(wanted, wide, grad.double()), strict=True):
        error = (ours.cpu().double() - right).abs().max()
        assert error <= 2e-5 * right.abs().max()


@pytest.mark.parametrize("additive", [False, True])
def test_rows_that_see_nothing_are_finite(device, additive):
    query, key, value = inputs(device)
    visible = torch.ones(6, 6).tril().bool()
    visible[:, :2] = False  # the first two rows see nothing
    mask = visible[None, None].expand(2, 1, 6, 6).to(device)
    if additive:
        mask = torch.zeros(2, 1, 6, 6).masked_fill(~mask.cpu(), -math.inf).to(device)
    output, _ = ruda_attention_forward(Owner(), query, key, value, mask, scaling=0.3)
    assert torch.isfinite(output.cpu()).all()
    check(output, reference(query, key, value, visible, 0.3))


def test_not_causal_module(device):
    query, key, value = inputs(device)
    output, _ = ruda_attention_forward(
        Owner(), query, key, value, None, scaling=0.3, is_causal=False
    )
    check(output, reference(query, key, value, torch.ones(6, 6).bool(), 0.3))


def test_both_registries_know_the_name():
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert register_attention() == ATTENTION_NAME
    assert ATTENTION_NAME in ALL_ATTENTION_FUNCTIONS.valid_keys()
    assert ATTENTION_NAME in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys()

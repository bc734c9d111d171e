from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ruda_finetune import (
    CausalLMFinetuner,
    FinetuneError,
    SFTCollator,
    activation_checkpoint_modules,
    remove_activation_checkpoints,
)


def gradients(kit, device, batch, **options):
    model = kit.make_model(device, dropout=0.2, **options).train()
    torch.manual_seed(9)
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    loss = model(**batch, reduction="sum")
    loss.backward()
    grads = {name: p.grad.cpu() for name, p in model.named_parameters() if p.requires_grad}
    return loss.item(), grads


def test_gradients_are_the_same_with_and_without(kit, device):
    batch = SFTCollator(pad_token_id=0)(kit.make_rows(4))
    loss, expected = gradients(kit, device, batch, activation_checkpointing=False)
    for options in ({}, {"checkpoint_modules": ["layers.1.mlp", "layers.0.self_attn"]}):
        again, grads = gradients(kit, device, batch, **options)
        assert again == loss
        assert grads.keys() == expected.keys() and len(grads) == 2 * 7 * 2
        for name, grad in grads.items():
            assert grad.abs().sum() > 0
            assert torch.equal(grad, expected[name]), name


def test_dropout_masks_differ_without_rng_preservation(kit):
    # shows that the test above can fail
    batch = SFTCollator(pad_token_id=0)(kit.make_rows(4))
    _, expected = gradients(kit, "cpu", batch, activation_checkpointing=False)
    _, grads = gradients(kit, "cpu", batch, preserve_rng_state=False)
    assert any(not torch.equal(grads[name], expected[name]) for name in grads)


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x, *, scale=1.0):
        self.calls += 1
        return torch.tanh(self.linear(x)) * scale


def test_modules_run_twice_in_training_and_once_without_gradients():
    model = nn.Sequential(Counted(), Counted(), Counted())
    keys = list(model.state_dict())
    assert activation_checkpoint_modules(model, ["0", "2"]) == ["0", "2"]
    model(torch.randn(2, 4)).sum().backward()
    assert [module.calls for module in model] == [2, 1, 2]
    with torch.no_grad():
        model(torch.randn(2, 4))
    assert [module.calls for module in model] == [3, 2, 3]
    assert list(model.state_dict()) == keys and isinstance(model[0], Counted)
    assert remove_activation_checkpoints(model) == 2
    model(torch.randn(2, 4)).sum().backward()
    assert [module.calls for module in model] == [4, 3, 4]


def test_copies_are_independent():
    model = nn.Sequential(Counted())
    activation_checkpoint_modules(model, ["0"])
    twin = copy.deepcopy(model)
    twin(torch.randn(2, 4)).sum().backward()
    assert twin[0].calls == 2 and model[0].calls == 0
    assert model[0].linear.weight.grad is None and twin[0].linear.weight.grad is not None


def test_forward_set_on_the_instance_stays_in_use():
    model = nn.Sequential(Counted())
    inner = model[0].forward
    model[0].forward = lambda x, **options: inner(x, scale=3.0)
    x = torch.randn(2, 4)
    expected = model(x)
    activation_checkpoint_modules(model, ["0"])
    torch.testing.assert_close(model(x), expected)
    remove_activation_checkpoints(model)
    torch.testing.assert_close(model(x), expected)


def test_star_names_the_children(kit):
    backbone = kit.tiny_llama().model
    names = activation_checkpoint_modules(backbone, ["layers.*"])
    assert names == ["layers.0", "layers.1"]


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ([], "empty list"),
        (["layer.0"], "no module 'layer.0'; near names: layers.0"),
        (["layers.0", "layers.0.mlp"], "layers.0.mlp lies inside layers.0"),
        (["norm.*"], "'norm' has no children"),
        (["embed_tokens.*"], "has no children"),
    ],
)
def test_bad_paths(kit, paths, words):
    with pytest.raises(FinetuneError, match=words):
        activation_checkpoint_modules(kit.tiny_llama().model, paths)


def test_twice_is_refused(kit):
    backbone = kit.tiny_llama().model
    activation_checkpoint_modules(backbone, ["layers.0.mlp"])
    with pytest.raises(FinetuneError, match=r"layers.0 is checkpointed already"):
        activation_checkpoint_modules(backbone, ["layers.0"])


def test_backbone_without_layers(kit):
    with pytest.raises(FinetuneError, match="no list of layers"):
        CausalLMFinetuner(nn.Embedding(5, 4), nn.Linear(4, 5))
    with pytest.raises(FinetuneError, match="activation_checkpointing is off"):
        kit.make_model(activation_checkpointing=False, checkpoint_modules=["layers.0"])

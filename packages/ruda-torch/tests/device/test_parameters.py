"""Parameters keep their identity on the way to the device and back; data can be exchanged."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight


def test_tied_weights_stay_tied() -> None:
    model = Tied()
    weight = model.embedding.weight
    model.to("ruda")
    assert model.head.weight is model.embedding.weight is weight
    assert weight.device.type == "ruda"
    model.cpu()
    assert model.head.weight is model.embedding.weight is weight
    assert weight.device.type == "cpu"
    assert len(list(model.parameters())) == 1


def test_an_optimiser_made_before_the_move_trains_the_moved_weights() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    before = model.weight.detach().clone()
    model.to("ruda")
    model(torch.ones(2, 3).to("ruda")).sum().backward()
    optimiser.step()
    # d(sum)/dW = 2 for two rows of ones; the step is 0.5 * 2.
    torch.testing.assert_close(model.weight.detach().cpu(), before - 1.0)


def test_model_methods_and_dtype_moves() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    weight = model[0].weight
    assert model.ruda() is model
    model.to(torch.bfloat16)
    assert model[0].weight is weight
    assert weight.dtype == torch.bfloat16
    assert weight.device == torch.device("ruda", 0)


@pytest.mark.parametrize("kind", ["plain", "fake"])
def test_data_is_exchanged_both_ways(kind: str) -> None:
    from contextlib import nullcontext

    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() if kind == "fake" else nullcontext():
        here = torch.arange(2.0)
        there = torch.arange(3.0).to("ruda")
        here.data = there
        assert here.shape == (3,)
        there2 = torch.arange(4.0).to("ruda")
        there2.data = torch.arange(5.0)
        assert there2.shape == (5,)
    if kind == "plain":  # a fake tensor keeps the device it was made with, on every backend
        assert here.device.type == "ruda"
        assert there2.device.type == "cpu"
        assert here.data_ptr() == there.data_ptr()
        assert there2.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_incompatible_data_is_still_refused() -> None:
    there = torch.ones(2).to("ruda")
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        there.data = torch.ones(2).to_sparse()


def test_deepcopy_and_clone_own_their_memory() -> None:
    model = Tied().to("ruda")
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embedding.weight
    assert twin.head.weight.data_ptr() != model.head.weight.data_ptr()
    assert torch.equal(twin.head.weight.cpu(), model.head.weight.cpu())
    storage = copy.deepcopy(model.head.weight.detach().untyped_storage())
    assert storage.device.type == "ruda"


def test_shared_storage_survives_deepcopy() -> None:
    base = torch.arange(6.0).to("ruda")
    pair = copy.deepcopy([base, base[2:]])
    pair[0].zero_()
    assert pair[1].tolist() == [0.0] * 4


def test_a_model_is_made_under_fake_mode() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = nn.Linear(3, 2, device="ruda")
        out = model(torch.empty(5, 3, device="ruda:0"))
        assert out.device == torch.device("ruda", 0)
        assert out.shape == (5, 2)


def test_a_move_to_meta_makes_new_parameters_as_everywhere() -> None:
    model = nn.Linear(2, 2).to("ruda")
    weight = model.weight
    model.to("meta")
    assert model.weight is not weight
    assert model.weight.device.type == "meta"


def test_swap_and_load_state_dict() -> None:
    source = nn.Linear(3, 2)
    target = nn.Linear(3, 2).to("ruda")
    weight = target.weight
    target.load_state_dict(source.state_dict())
    assert target.weight is weight
    assert torch.equal(weight.cpu(), source.weight)
    target.load_state_dict(nn.Linear(3, 2).state_dict(), assign=True)
    assert target.weight.device.type == "cpu"

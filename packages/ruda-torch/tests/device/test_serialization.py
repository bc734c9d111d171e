"""Saving, loading, pickling, printing and DLPack."""

from __future__ import annotations

import io
import pickle

import pytest
import torch


def saved(value: object) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_save_and_load(dtype: torch.dtype) -> None:
    source = torch.arange(6).reshape(2, 3).to(dtype)
    there = torch.load(saved({"x": source.to("ruda").t()}), weights_only=True)["x"]
    assert there.device == torch.device("ruda", 0)
    assert there.dtype == dtype
    assert torch.equal(there.cpu(), source.t())


@pytest.mark.parametrize("weights_only", [True, False])
def test_map_location(weights_only: bool) -> None:
    values = torch.arange(4.0)

    def load(value: torch.Tensor, location: object) -> torch.Tensor:
        return torch.load(saved(value), map_location=location, weights_only=weights_only)

    for location in ("ruda", "ruda:0", torch.device("ruda", 0), {"cpu": "ruda:0"}):
        there = load(values, location)
        assert there.device == torch.device("ruda", 0)
        assert torch.equal(there.cpu(), values)
    for location in ("cpu", torch.device("cpu"), lambda storage, tag: storage.cpu()):
        here = load(values.to("ruda"), location)
        assert here.device.type == "cpu"
        assert torch.equal(here, values)


def test_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises((RuntimeError, ValueError), match="1"):
        torch.load(saved(torch.ones(2)), map_location="ruda:1", weights_only=True)


def test_shared_storages_stay_shared() -> None:
    base = torch.arange(6.0).to("ruda")
    loaded = torch.load(saved([base, base[3:]]), weights_only=True)
    loaded[0].zero_()
    assert loaded[1].tolist() == [0.0, 0.0, 0.0]


def test_a_training_state_resumes() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).to("ruda")
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = torch.randn(4, 3).to("ruda")

    def step() -> None:
        optimiser.zero_grad()
        model(data).square().mean().backward()
        optimiser.step()

    step()
    buffer = saved({"model": model.state_dict(), "optimiser": optimiser.state_dict()})
    step()
    wanted = model.weight.detach().cpu()
    state = torch.load(buffer, weights_only=True)
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    step()
    assert torch.equal(model.weight.detach().cpu(), wanted)


def test_pickle() -> None:
    source = torch.randn(3, 2)
    parameter = torch.nn.Parameter(source.to("ruda"))
    loaded = pickle.loads(pickle.dumps(parameter))
    assert isinstance(loaded, torch.nn.Parameter)
    assert loaded.device == torch.device("ruda", 0)
    assert torch.equal(loaded.detach().cpu(), source)


def test_printing() -> None:
    there = torch.tensor([[1.0, 2.5], [float("nan"), -4.0]]).to("ruda")
    text = repr(there)
    assert "2.5000" in text
    assert "nan" in text
    assert "device='ruda:0'" in text
    assert "device='ruda:0', dtype=torch.int16" in repr(
        torch.arange(3, dtype=torch.int16).to("ruda")
    )
    assert "requires_grad=True" in repr(torch.ones(2).to("ruda").requires_grad_())
    assert "size=(0, 3)" in repr(torch.empty(0, 3, device="ruda"))
    assert "..." in repr(torch.zeros(5000).to("ruda"))
    assert "1.+2.j" in repr(torch.tensor([1 + 2j]).to("ruda"))
    assert "True" in repr(torch.tensor([True]).to("ruda"))
    assert f"{torch.tensor(2.5).to('ruda'):.2f}" == "2.50"


def test_numpy_needs_a_copy_to_the_cpu_first() -> None:
    with pytest.raises(TypeError, match="ruda"):
        torch.ones(2).to("ruda").numpy()


def test_dlpack_round_trip_shares_memory() -> None:
    there = torch.arange(6.0).to("ruda").reshape(2, 3).t()
    device, index = there.__dlpack_device__()
    assert (int(device), index) == (12, 0)  # kDLExtDev
    other = torch.from_dlpack(there)
    assert other.device == there.device
    assert other.stride() == there.stride()
    assert other.data_ptr() == there.data_ptr()
    other[0, 0] = 9
    assert there[0, 0].item() == 9.0
    capsule = torch.utils.dlpack.to_dlpack(there)
    assert torch.equal(torch.from_dlpack(capsule).cpu(), there.cpu())


def test_dlpack_of_cpu_tensors_is_untouched() -> None:
    numpy = pytest.importorskip("numpy")
    here = torch.arange(3.0)
    assert int(here.__dlpack_device__()[0]) == 1
    assert numpy.from_dlpack(here).tolist() == [0.0, 1.0, 2.0]
    pinned = torch.arange(3.0).pin_memory()
    assert torch.from_dlpack(pinned).tolist() == [0.0, 1.0, 2.0]
    assert numpy.from_dlpack(pinned).tolist() == [0.0, 1.0, 2.0]

"""The device on the cuda target: memory, copies, streams, and errors of what it does not have."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import ruda_torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int16,
          torch.int32, torch.int64, torch.uint8, torch.bool]  # fmt: skip


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count).reshape(shape) % 7 - 2).abs().to(dtype)


def test_the_target_is_cuda() -> None:
    properties = torch.ruda.get_device_properties()
    assert properties.target == "cuda" and properties.warp_size == 32
    assert torch.ruda.get_device_capability() >= (7, 5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bytes_go_there_and_back(dtype: torch.dtype) -> None:
    x = values(3, 5, dtype=dtype)
    y = x.to("ruda")
    assert y.device == torch.device("ruda:0") and y.dtype == dtype
    assert torch.equal(y.cpu(), x)
    assert torch.equal(y.t().cpu(), x.t()) and torch.equal(y[1:, ::2].cpu(), x[1:, ::2])


@pytest.mark.parametrize("kind", ["transposed", "sliced", "expanded", "reversed order", "scalar"])
@pytest.mark.parametrize("direction", ["up", "down", "within"])
def test_any_strides(kind: str, direction: str) -> None:
    base = values(4, 6)
    view = {
        "transposed": lambda t: t.t(),
        "sliced": lambda t: t[1:, 1::2],
        "expanded": lambda t: t[:1].expand(4, 6),
        "reversed order": lambda t: t.view(2, 2, 6).permute(2, 0, 1),
        "scalar": lambda t: t[2, 3],
    }[kind]
    source = view(base)
    if direction == "up":
        result = torch.zeros(source.shape, device="ruda").copy_(source).cpu()
    elif direction == "down":
        result = torch.zeros(source.shape).copy_(view(base.to("ruda")))
    else:
        result = torch.zeros(source.shape, device="ruda").copy_(view(base.to("ruda"))).cpu()
    assert torch.equal(result, source)


def test_a_strided_target_keeps_what_lies_between() -> None:
    target = torch.zeros(4, 6, device="ruda")
    target[:, ::2].copy_(torch.ones(4, 3))
    target.t()[1].copy_(torch.full((4,), 2.0, device="ruda"))
    expected = torch.zeros(4, 6)
    expected[:, ::2] = 1.0
    expected[:, 1] = 2.0
    assert torch.equal(target.cpu(), expected)


@pytest.mark.parametrize(
    ("source", "target"),
    [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float32, torch.int64),
     (torch.int64, torch.float16), (torch.bool, torch.float32), (torch.float64, torch.float32),
     (torch.float32, torch.bool), (torch.uint8, torch.int32)],
    ids=str,
)  # fmt: skip
def test_conversions_on_either_side(source: torch.dtype, target: torch.dtype) -> None:
    x = values(3, 4, dtype=source)
    expected = x.to(target)
    assert torch.equal(x.to("ruda").to(target).cpu(), expected)
    assert torch.equal(x.to("ruda", target).cpu(), expected)
    assert torch.equal(x.to("ruda").to("cpu", target), expected)
    assert torch.equal(torch.zeros(3, 4, dtype=target, device="ruda").copy_(x).cpu(), expected)


def test_broadcast_copies() -> None:
    row = torch.tensor([1.0, 2.0, 3.0])
    for source in (row, row.to("ruda")):
        assert torch.equal(torch.zeros(2, 3, device="ruda").copy_(source).cpu(), row.expand(2, 3))
    assert torch.equal(torch.zeros(2, 3).copy_(row.to("ruda")), row.expand(2, 3))
    with pytest.raises(RuntimeError, match=r"must match|expand"):
        torch.zeros(2, 2, device="ruda").copy_(row)


def test_lazy_negative_views() -> None:
    x = torch.tensor([1.0, -2.0], device="ruda")
    assert torch._neg_view(x).cpu().tolist() == [-1.0, 2.0]
    assert torch.zeros(2, device="ruda").copy_(torch._neg_view(x)).cpu().tolist() == [-1.0, 2.0]


def test_complex_numbers_can_be_stored_but_not_computed() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j])
    assert torch.equal(x.to("ruda").cpu(), x)
    with pytest.raises(NotImplementedError, match="target cuda"):
        x.to("ruda") + 1


def test_pinned_memory() -> None:
    x = values(1000).pin_memory()
    y = x.to("ruda", non_blocking=True)
    assert x.is_pinned() and torch.equal(y.cpu(), x)
    back = torch.empty(1000, pin_memory=True)
    back.copy_(y, non_blocking=True)
    torch.ruda.synchronize()
    assert torch.equal(back, x)


def test_item_and_scalars() -> None:
    assert torch.tensor(2.5, device="ruda").item() == 2.5
    assert torch.tensor([[7]], device="ruda").item() == 7
    assert bool(torch.tensor(True, device="ruda"))
    with pytest.raises((RuntimeError, ValueError), match="elements"):
        torch.zeros(2, device="ruda").item()


def test_storages_grow_and_are_shared() -> None:
    x = values(6).to("ruda")
    view = x[2:4]
    x.resize_(2, 8)
    assert torch.equal(x.flatten()[:6].cpu(), values(6))
    assert torch.equal(view.cpu(), values(6)[2:4])
    other = torch.empty(0, device="ruda").set_(x.untyped_storage(), 1, (3,), (2,))
    assert torch.equal(other.cpu(), values(6)[1:6:2])
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0


def test_files_and_copies_of_objects() -> None:
    x = values(3, 4).to("ruda").requires_grad_()
    file = io.BytesIO()
    torch.save({"x": x, "view": x.detach()[1]}, file)
    for place in ("cpu", "ruda", None):
        file.seek(0)
        loaded = torch.load(file, map_location=place, weights_only=True)
        assert loaded["x"].device.type == ("cpu" if place == "cpu" else "ruda")
        assert torch.equal(loaded["view"].cpu(), values(3, 4)[1])
    assert torch.equal(copy.deepcopy(x).detach().cpu(), values(3, 4))


def test_moving_a_module_keeps_its_parameters() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    before = model[0].weight
    model.to("ruda")
    assert model[0].weight is before and model[1].weight is before
    assert before.device.type == "ruda"


def test_memory_is_counted_and_given_back() -> None:
    torch.ruda.empty_cache()
    before = torch.ruda.memory_allocated()
    x = torch.empty(1 << 18, device="ruda")
    assert torch.ruda.memory_allocated() - before == 1 << 20
    assert torch.ruda.max_memory_allocated() >= before + (1 << 20)
    del x
    assert torch.ruda.memory_allocated() == before
    free, total = torch.ruda.mem_get_info()
    assert 0 < free <= total


def test_too_large_a_request_is_an_error_and_nothing_is_lost() -> None:
    x = values(8).to("ruda")
    with pytest.raises(torch.OutOfMemoryError, match="out of"):
        torch.empty(1 << 50, dtype=torch.uint8, device="ruda")
    assert torch.equal(x.cpu(), values(8))


def test_streams_and_events() -> None:
    side, event = torch.ruda.Stream(), torch.ruda.Event(enable_timing=True)
    begin = torch.ruda.Event(enable_timing=True)
    x = values(1000).to("ruda")
    side.wait_stream(torch.ruda.current_stream())
    with torch.ruda.stream(side):
        begin.record()
        y = x.clone()
        event.record()
    torch.ruda.current_stream().wait_event(event)
    y.record_stream(torch.ruda.current_stream())
    event.synchronize()
    assert event.query() and begin.elapsed_time(event) >= 0.0
    assert torch.equal(y.cpu(), values(1000))


def test_what_has_no_kernel_is_named() -> None:
    x = torch.ones(4, 4, device="ruda")
    for operation in (torch.linalg.svd, torch.fft.fft, lambda t: nn.functional.conv1d(t, t[None])):
        with pytest.raises(NotImplementedError, match=r"target cuda|no kernel"):
            operation(x)


def test_devices_do_not_mix() -> None:
    x = torch.ones(3, device="ruda")
    for operation in (torch.add, torch.maximum, lambda a, b: torch.cat([a, b])):
        with pytest.raises((RuntimeError, TypeError), match=r"same device|device"):
            operation(x, torch.ones(3))


def test_counters() -> None:
    before = ruda_torch.execution_stats()
    x = torch.ones(16).to("ruda")
    x.cpu()
    after = ruda_torch.execution_stats()
    assert after["transfers_to_device"] == before["transfers_to_device"] + 1
    assert after["bytes_to_host"] == before["bytes_to_host"] + 64

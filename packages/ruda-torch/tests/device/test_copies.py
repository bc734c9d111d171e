"""Copies between cpu and ruda: values, conversion, strides, lazy bits, aliases."""

from __future__ import annotations

import pytest
import torch

import ruda_torch

DEVICE = torch.device("ruda", 0)
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


def sample(dtype: torch.dtype) -> torch.Tensor:
    values = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4) - 7
    if dtype.is_complex:
        return torch.complex(values, values.flip(-1)).to(dtype)
    return values.abs().to(dtype) if dtype in (torch.uint8, torch.bool) else values.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip_keeps_values_shape_and_dtype(dtype: torch.dtype) -> None:
    source = sample(dtype)
    there = source.to(DEVICE)
    assert there.device == DEVICE
    assert there.is_ruda
    assert there.dtype == dtype
    assert there.shape == source.shape
    assert torch.equal(there.cpu(), source)


@pytest.mark.parametrize("target", DTYPES[:10], ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.int64, torch.bfloat16], ids=str)
def test_conversion_equals_the_cpu_conversion(source: torch.dtype, target: torch.dtype) -> None:
    values = sample(source)
    if target in (torch.uint8, torch.bool):
        values = values.abs()
    there = values.to(DEVICE)
    assert torch.equal(there.to(target).cpu(), values.to(target))
    assert torch.equal(values.to(DEVICE, target).cpu(), values.to(target))
    assert torch.equal(there.to("cpu", target), values.to(target))


def test_strided_views_copy_their_own_elements() -> None:
    source = torch.arange(60.0).reshape(3, 4, 5)
    there = source.to(DEVICE)
    for view in (
        lambda t: t.transpose(0, 2),
        lambda t: t[:, ::2],
        lambda t: t[1:, 1:, 1:],
        lambda t: t[0].expand(2, 4, 5),
        lambda t: t.unfold(2, 3, 1),
        lambda t: t.as_strided((2, 2), (7, 3), 4),
        lambda t: t.permute(2, 0, 1)[::3],
        lambda t: t.view(12, 5).diagonal(),
    ):
        assert torch.equal(view(there).cpu(), view(source))


def test_copy_into_a_view_changes_only_the_view() -> None:
    there = torch.zeros(4, 4).to(DEVICE)
    there[1:3, ::2].copy_(torch.ones(2, 2))
    wanted = torch.zeros(4, 4)
    wanted[1:3, ::2] = 1
    assert torch.equal(there.cpu(), wanted)


def test_copy_broadcasts() -> None:
    there = torch.empty(3, 4, device=DEVICE)
    there.copy_(torch.arange(4.0))
    assert torch.equal(there.cpu(), torch.arange(4.0).expand(3, 4))
    with pytest.raises(RuntimeError, match="size"):
        there.copy_(torch.arange(5.0))


def test_channels_last_is_kept() -> None:
    source = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    there = source.to(DEVICE)
    assert there.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(there.cpu(), source)


def test_conjugate_and_negative_views_are_resolved() -> None:
    # With the usual recipe for out-of-tree backends these recurse without end.
    source = torch.randn(3, 2, dtype=torch.complex64)
    there = source.to(DEVICE)
    assert there.conj().is_conj()
    assert torch.equal(there.conj().cpu(), source.conj())
    assert torch.equal(there.conj().imag.cpu(), -source.imag)
    assert torch.equal(there.conj().imag.to(torch.float64).cpu(), -source.imag.double())
    assert torch.equal(torch._neg_view(there.real).cpu(), -source.real)
    assert torch.equal(source.conj().to(DEVICE).cpu(), source.conj())
    assert torch.equal(there.conj().resolve_conj().cpu(), source.conj())
    target = torch.zeros_like(source).to(DEVICE)
    target.conj().copy_(source)
    assert torch.equal(target.cpu(), source.conj())


def test_item_reads_one_element_back() -> None:
    there = torch.tensor([1.5, -2.0, 3.0]).to(DEVICE)
    assert there[1].item() == -2.0
    assert torch.tensor(True).to(DEVICE).item() is True
    assert torch.tensor(3 + 4j).to(DEVICE).conj().item() == 3 - 4j
    assert there[2:].tolist() == [3.0]
    with pytest.raises(RuntimeError, match="3 elements"):
        there.item()


def test_a_tensor_of_another_device_is_refused() -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        torch.empty(2, device=DEVICE).copy_(torch.empty(2, device="meta"))


def test_empty_tensors() -> None:
    for shape in ((0,), (0, 3), (2, 0, 4)):
        there = torch.empty(shape, device=DEVICE)
        assert there.cpu().shape == shape
        assert there.data_ptr() == 0


def test_non_blocking_copy_to_cpu_is_pinned_and_complete() -> None:
    there = torch.arange(1000.0).to(DEVICE, non_blocking=True)
    back = there.to("cpu", non_blocking=True)
    assert back.is_pinned()
    assert torch.equal(back, torch.arange(1000.0))


def test_copies_are_counted() -> None:
    source = torch.ones(10)
    before = ruda_torch.execution_stats()
    there = source.to(DEVICE)
    there.cpu()
    there[0].item()
    after = ruda_torch.execution_stats()
    assert after["transfers_to_device"] - before["transfers_to_device"] == 1
    assert after["bytes_to_device"] - before["bytes_to_device"] == 40
    assert after["transfers_to_host"] - before["transfers_to_host"] == 2
    assert after["bytes_to_host"] - before["bytes_to_host"] == 44
    assert after["transfers"] - before["transfers"] == 3


def test_copies_between_overlapping_views_are_refused() -> None:
    values = torch.arange(9.0)
    x = values.to(DEVICE).reshape(3, 3)
    flat = x.reshape(-1)
    for target, source in ((x, x.t()), (flat[1:], flat[:-1]), (x, x[0])):
        with pytest.raises(RuntimeError, match="single memory location"):
            target.copy_(source)
    assert torch.equal(flat.cpu(), values)
    x.copy_(x.view(3, 3))  # the same elements
    flat[:4].copy_(flat[5:])  # apart, in one storage
    assert flat.tolist() == [5.0, 6.0, 7.0, 8.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def test_deterministic_mode_fills_fresh_memory() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device=DEVICE).cpu().isnan().all()
        assert torch.empty(2, dtype=torch.int32, device=DEVICE).tolist() == [2**31 - 1] * 2
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"device": "ruda:1"}, "ruda:0"),
        ({"device": "ruda", "pin_memory": True}, "pin"),
        ({"device": "ruda", "layout": torch.sparse_coo}, "parse|layout"),
    ],
)
def test_impossible_tensors_are_refused(options: dict[str, object], error: str) -> None:
    with pytest.raises((RuntimeError, ValueError, NotImplementedError), match=error):
        torch.empty(2, 2, **options)

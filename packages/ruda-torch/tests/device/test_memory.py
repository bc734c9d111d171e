"""The allocator: statistics, out of memory, caching, storages that change size, pinned memory."""

from __future__ import annotations

import gc

import pytest
import torch

import ruda_torch

DEVICE = "ruda:0"


@pytest.fixture(autouse=True, scope="module")
def used_device() -> None:
    """torch.accelerator has no numbers before the device's first use."""
    torch.empty(1, device=DEVICE)


def allocated() -> int:
    gc.collect()
    return ruda_torch.memory_allocated()


def test_statistics_follow_the_blocks() -> None:
    before = allocated()
    count = torch.accelerator.memory_stats()["allocation.all.current"]
    tensor = torch.empty(1000, dtype=torch.int16, device=DEVICE)
    assert ruda_torch.memory_allocated(DEVICE) - before == 2000
    assert torch.accelerator.memory_allocated() - before == 2000
    assert torch.accelerator.memory_stats()["allocation.all.current"] == count + 1
    assert ruda_torch.memory_reserved() >= ruda_torch.memory_allocated()
    del tensor
    assert allocated() == before
    assert torch.accelerator.memory_stats()["allocation.all.current"] == count


def test_peak_is_the_maximum_since_the_reset() -> None:
    before = allocated()
    ruda_torch.reset_peak_memory_stats()
    big = torch.empty(2**20, device=DEVICE)
    del big
    small = torch.empty(2**10, device=DEVICE)
    assert ruda_torch.max_memory_allocated() - before == 2**22
    ruda_torch.reset_peak_memory_stats()
    assert ruda_torch.max_memory_allocated() - before == 2**12
    del small


def test_accumulated_statistics() -> None:
    gc.collect()  # now, and not while we count
    older = torch.empty(1000, device=DEVICE)
    torch.accelerator.reset_accumulated_memory_stats()
    held = torch.empty(250, device=DEVICE)
    torch.empty(500, device=DEVICE)
    stats = ruda_torch.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == 3000
    assert stats["allocated_bytes.all.freed"] == 2000
    assert stats["allocation.all.allocated"] == 2
    assert stats["allocation.all.freed"] == 1
    del held, older


def test_freed_memory_is_used_again() -> None:
    first = torch.empty(2**22, device=DEVICE)
    address = first.data_ptr()
    reserved = ruda_torch.memory_reserved()
    del first
    second = torch.empty(2**22, device=DEVICE)
    assert second.data_ptr() == address
    assert ruda_torch.memory_reserved() == reserved


def test_peak_of_blocks() -> None:
    ruda_torch.reset_peak_memory_stats()
    live = ruda_torch.memory_stats()["allocation.all.current"]
    several = [torch.empty(1, device=DEVICE) for _ in range(5)]
    several.clear()
    assert ruda_torch.memory_stats()["allocation.all.peak"] == live + 5


def test_empty_cache_gives_memory_back() -> None:
    tensor = torch.empty(2**24, device=DEVICE)
    del tensor
    held = ruda_torch.memory_reserved()
    ruda_torch.empty_cache()
    assert ruda_torch.memory_reserved() <= held - 2**26


def test_out_of_memory_names_the_sizes_and_leaves_the_process_usable() -> None:
    tensor = torch.empty(1000, device=DEVICE)
    with pytest.raises(torch.OutOfMemoryError, match=r"asked for .*1125899906842624 bytes.*free.*"):
        torch.empty(2**50, dtype=torch.uint8, device=DEVICE)
    assert torch.accelerator.memory_stats()["num_ooms"] >= 1
    assert torch.equal(tensor.copy_(torch.ones(1000)).cpu(), torch.ones(1000))


def test_blocks_are_aligned() -> None:
    tensors = [torch.empty(n, dtype=torch.uint8, device=DEVICE) for n in (1, 3, 65, 1000, 10**6)]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors)


def test_memory_info_is_of_this_machine() -> None:
    free, total = ruda_torch.mem_get_info()
    assert 0 < free <= total
    assert total >= 2**28
    assert torch.ruda.get_device_properties(0).total_memory == total


def test_summary_shows_the_numbers() -> None:
    tensor = torch.empty(3 * 2**20, dtype=torch.uint8, device=DEVICE)
    text = ruda_torch.memory_summary()
    assert f"{ruda_torch.memory_allocated() / 2**20:.2f} MiB" in text
    assert "refused (out of memory)" in text
    del tensor


def test_storage_resize_keeps_the_prefix_and_frees() -> None:
    # Sharded training frees parameters with resize_(0) and brings them back.
    before = allocated()
    tensor = torch.arange(256.0).to(DEVICE)
    view = tensor[2:5]
    storage = tensor.untyped_storage()
    storage.resize_(2048)
    assert storage.nbytes() == 2048
    assert allocated() - before == 2048
    assert torch.equal(tensor.cpu(), torch.arange(256.0))
    assert view.data_ptr() == tensor.data_ptr() + 8
    storage.resize_(0)
    assert storage.nbytes() == 0
    assert allocated() == before
    storage.resize_(1024)
    assert allocated() - before == 1024
    tensor.copy_(torch.ones(256))
    assert view.tolist() == [1.0, 1.0, 1.0]


def test_resize_grows_and_shrinks() -> None:
    tensor = torch.arange(6.0).to(DEVICE)
    tensor.resize_(2, 2)
    assert tensor.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    tensor.resize_(3, 4)
    assert tensor.shape == (3, 4)
    assert tensor.view(-1)[:6].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_set_shares_a_storage() -> None:
    source = torch.arange(10.0).to(DEVICE)
    tensor = torch.empty(0, device=DEVICE)
    tensor.set_(source)
    assert tensor.data_ptr() == source.data_ptr()
    tensor.set_(source.untyped_storage(), 2, (2, 3), (3, 1))
    assert tensor.tolist() == [[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]
    tensor.set_(source.untyped_storage())
    assert tensor.shape == (10,)
    tensor.set_()
    assert tensor.shape == (0,)
    assert tensor.device.type == "ruda"
    with pytest.raises(RuntimeError, match="device"):
        torch.empty(0, device=DEVICE).set_(torch.ones(3).untyped_storage())


def test_record_stream_accepts_ruda_streams_only() -> None:
    tensor = torch.ones(3).to(DEVICE)
    stream = ruda_torch.Stream()
    tensor.record_stream(stream)
    ruda_torch.record_stream(tensor, stream)
    ruda_torch.record_stream(torch.empty(0, device=DEVICE), stream)
    with pytest.raises((ValueError, RuntimeError), match=r"[sS]tream"):
        tensor.record_stream(torch.Stream(stream_id=0, device_index=0, device_type=0))


def test_pinned_memory() -> None:
    before = allocated()
    tensor = torch.empty(1000, pin_memory=True)
    assert tensor.is_pinned()
    assert tensor[10:20].is_pinned()
    assert not torch.empty(1000).is_pinned()
    assert torch.arange(5.0).pin_memory().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert allocated() == before  # pinned memory is the host's, not the device's
    assert torch.equal(tensor.fill_(2).to(DEVICE).cpu(), torch.full((1000,), 2.0))


def test_profiler_sees_device_memory() -> None:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        tensor = torch.empty(12345, dtype=torch.uint8, device=DEVICE)
        del tensor
    sizes = [event.self_device_memory_usage for event in profile.key_averages()]
    assert max(sizes) >= 12345
    assert sum(sizes) == 0  # what was taken was given back

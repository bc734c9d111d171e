"""Devices."""

from __future__ import annotations

import os

import pytest

import ruda_runtime as rr


def test_the_host_device_describes_the_machine() -> None:
    (device,) = rr.devices()
    assert (device.target, device.index, str(device)) == ("host", 0, "host:0")
    assert device.name and device.compute_capability is None
    assert device.multiprocessors == len(os.sched_getaffinity(0))
    assert device.max_threads == rr.get_num_threads()
    assert device.warp_size == 1 and device.shared_memory_per_block is None
    assert {"fp16", "bf16"} <= device.capabilities
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < device.memory_free <= device.memory_total + (1 << 40)
    assert device.memory_total <= physical * 1.01


def test_device_of() -> None:
    (device,) = rr.devices()
    for value in (None, "host", "host:0", device):
        assert rr.device_of(value) == device
    before = rr.get_num_threads()
    try:
        rr.set_num_threads(before + 1)
        assert device.max_threads == before + 1 and rr.device_of(device) == device
    finally:
        rr.set_num_threads(before)
    for wrong in ("cuda", "cuda:0", "host:1", "cpu", 0):
        with pytest.raises(rr.DeviceError, match=r"\[device\] got .*, wanted one of: host:0"):
            rr.device_of(wrong)  # type: ignore[arg-type]
    with pytest.raises(rr.DeviceError):
        rr.empty(3, device="cuda:0")
    assert rr.empty(3, device="host").device == device

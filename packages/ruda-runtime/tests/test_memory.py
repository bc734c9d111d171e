"""The caching allocator: exact statistics, reuse, bounds, poison, out of memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

import ruda_runtime as rr

MIB = 1 << 20


def delta(before: dict[str, int]) -> dict[str, int]:
    return {key: value - before[key] for key, value in rr.memory_stats().items()}


def byte_tensor(size: int) -> rr.Tensor:
    return rr.empty(size, "uint8")


def test_statistics_are_exact() -> None:
    rr.empty_cache()
    rr.reset_peak_memory_stats()
    before = rr.memory_stats()
    assert before["peak_allocated"] == before["allocated"]
    a = byte_tensor(100)
    b = byte_tensor(5 * MIB + 3)
    now = delta(before)
    assert (now["allocated"], now["count"], now["allocations"]) == (5 * MIB + 103, 2, 2)
    assert now["reserved"] >= now["allocated"] and now["system_allocations"] <= 2
    del b
    c = byte_tensor(40)
    now = delta(before)
    assert (now["allocated"], now["count"], now["allocations"]) == (140, 2, 3)
    assert now["peak_allocated"] == 5 * MIB + 103
    rr.reset_peak_memory_stats()
    assert delta(before)["peak_allocated"] == 140
    del a, c
    assert delta(before)["allocated"] == delta(before)["count"] == 0
    rr.empty_cache()
    assert rr.memory_stats()["reserved"] <= before["reserved"]
    rr.reset_peak_memory_stats()
    assert rr.memory_stats()["peak_reserved"] == rr.memory_stats()["reserved"]


@pytest.mark.parametrize("size", [1, 64, 65, 1024, 1025, 20_000, 32768, 32769, 3 * MIB, 40 * MIB])
def test_a_freed_block_serves_the_same_request_again(size: int) -> None:
    first = byte_tensor(size)
    address = first.data_ptr
    assert address % 64 == 0
    del first
    before = rr.memory_stats()
    for _ in range(5):
        again = byte_tensor(size)
        assert again.data_ptr == address
        del again
    assert delta(before)["system_allocations"] == delta(before)["reserved"] == 0


def test_no_bytes_need_no_block() -> None:
    before = rr.memory_stats()
    empty = rr.empty((0, 5), "float64")
    assert empty.data_ptr == 0 and delta(before)["allocations"] == 0


@pytest.mark.parametrize("size", [1, 63, 64, 900, 1025, 5000, 30_000, 33_000, MIB + 1, 100 * MIB])
def test_rounding_is_bounded(probe: ctypes.CDLL, size: int) -> None:
    usable_size = api_function("usable_size")
    held = byte_tensor(size)
    usable = usable_size(held.data_ptr)
    assert size <= usable <= max(size * 9 / 8 + 64, 64)
    assert usable_size(held.data_ptr + 8) == 0  # not the start of a block
    assert usable_size(np.zeros(10).ctypes.data) == 0
    address = held.data_ptr
    del held
    assert usable_size(address) == 0


def api_function(name: str) -> Callable[[int], int]:
    """usable_size of the table, which is the third function in it."""
    from .conftest import table_address

    assert name == "usable_size"
    address = ctypes.c_void_p.from_address(table_address() + 8 + 2 * 8).value
    assert address is not None
    return ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)(address)


def test_a_large_block_is_cut_and_merged_again() -> None:
    rr.empty_cache()
    whole = byte_tensor(64 * MIB)
    address = whole.data_ptr
    del whole
    before = rr.memory_stats()
    quarters = [byte_tensor(16 * MIB) for _ in range(4)]
    assert sorted(t.data_ptr for t in quarters) == [address + i * 16 * MIB for i in range(4)]
    del quarters
    merged = byte_tensor(64 * MIB)
    assert merged.data_ptr == address
    assert delta(before)["system_allocations"] == 0


CHANGING_SIZES = """
import ruda_runtime as rr
MIB = 1 << 20
for step in range(100):  # every step asks for sizes that nobody asked for before
    held = [rr.empty((20 + step) * MIB + 17 * step, "uint8"),
            rr.empty((19 + step) * MIB + 4096 * step, "uint8")]
    del held
stats = rr.memory_stats()
print(stats["peak_allocated"], stats["peak_reserved"])
"""


def test_changing_sizes_do_not_pile_up(python_output: Callable[..., str]) -> None:
    allocated, reserved = map(int, python_output(CHANGING_SIZES, RUDA_TARGET="host").split())
    assert allocated > 237 * MIB  # all 100 pairs together are 13 GB
    assert reserved <= 1.25 * 1.07 * allocated + 256 * MIB


def test_small_blocks_go_back_to_the_system() -> None:
    rr.empty_cache()
    before = rr.memory_stats()["reserved"]
    held = [byte_tensor(1000) for _ in range(5000)]
    assert rr.memory_stats()["reserved"] - before >= 5_000_000
    del held
    # The slabs serve another size before the system is asked.
    calls = rr.memory_stats()["system_allocations"]
    other = [byte_tensor(3000) for _ in range(500)]
    assert rr.memory_stats()["system_allocations"] == calls
    del other
    rr.empty_cache()
    assert rr.memory_stats()["reserved"] == before


def test_blocks_of_many_threads_never_overlap(probe: ctypes.CDLL) -> None:
    before = rr.memory_stats()
    assert probe.probe_allocator(4, 8000, 3 * MIB) == 0
    assert delta(before)["count"] == delta(before)["allocated"] == 0
    assert delta(before)["allocations"] == 4 * 8000
    rr.empty_cache()


POISON = """
import numpy as np, ruda_runtime as rr
for dtype in ("float32", "float16", "bfloat16", "float64"):
    for shape in (3, 70_000):
        t = rr.empty(shape, dtype)
        assert np.isnan(t.numpy().astype(np.float64)).all(), dtype
        t.numpy()[:] = 1
        view = t.numpy()
        address = t.data_ptr
        del t, view
        t = rr.empty(shape, dtype)
        assert t.data_ptr == address and np.isnan(t.numpy().astype(np.float64)).all()
assert (rr.empty(9, "int32").numpy() == -1).all()
# Freed memory is filled as well: look at it through its address.
import ctypes
t = rr.empty(16); t.numpy()[:] = 7; address = t.data_ptr; del t
assert bytes((ctypes.c_char * 64).from_address(address)) == b"\\xff" * 64
print("ok")
"""


def test_poison(python_output: Callable[..., str]) -> None:
    assert python_output(POISON, RUDA_POISON="1", RUDA_TARGET="host") == "ok"
    assert python_output("import ruda_runtime as rr; print(rr._native.poison)") == "False"


LIMIT = """
import ruda_runtime as rr
MIB = 1 << 20
held = [rr.empty(20 * MIB, "uint8"), rr.empty(10 * MIB, "uint8"), rr.empty(100, "uint8")]
try:
    rr.empty((40, MIB), "uint8")
except rr.OutOfMemoryError as error:
    assert isinstance(error, MemoryError) and isinstance(error, rr.RudaError)
    print(error)
stats = rr.memory_stats()
assert stats["out_of_memory"] == 1 and stats["allocated"] == 30 * MIB + 100, stats
assert stats["reserved"] <= 64 * MIB
held[0].numpy()[:] = 1                    # the process goes on
held.append(rr.empty(20 * MIB, "uint8"))  # what fits is still given
del held
# 40 MiB fit only after the cache has been emptied: that happens by itself.
assert rr.empty(60 * MIB, "uint8").nbytes == 60 * MIB
assert rr.devices()[0].memory_total == 64 * MIB
"""


def test_out_of_memory_names_the_request_what_is_free_and_the_holders(
    python_output: Callable[..., str],
) -> None:
    text = python_output(LIMIT, RUDA_MEMORY_LIMIT=str(64 << 20), RUDA_TARGET="host")
    assert text.startswith("[allocate] out of memory: asked for 40.00 MiB (41943040 bytes); free: ")
    assert "of RUDA_MEMORY_LIMIT=64.00 MiB" in text
    assert "allocated: 30.00 MiB in 3 blocks" in text
    assert "largest holders: 20.00 MiB (tensor), 10.00 MiB (tensor)" in text


def test_more_than_the_machine_has_is_refused() -> None:
    before = rr.memory_stats()
    for size in (1 << 46, 1 << 61):
        with pytest.raises(rr.OutOfMemoryError, match=rf"asked for .*\({size} bytes\); free: "):
            byte_tensor(size)
    assert delta(before)["out_of_memory"] == 2
    assert delta(before)["allocated"] == delta(before)["count"] == 0
    assert byte_tensor(10).nbytes == 10


def test_a_double_release_ends_the_process_with_a_message(
    python: Callable[..., object],
) -> None:
    code = (
        "import ctypes, sys, ruda_runtime as rr\n"
        "get = ctypes.pythonapi.PyCapsule_GetPointer\n"
        "get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)\n"
        "table = get(rr._native.api, b'ruda_runtime._native.api')\n"
        "release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)("
        "ctypes.c_void_p.from_address(table + 16).value)\n"
        "release(None)\n"
        "t = rr.empty(10); address = t.data_ptr; release(address); release(address)\n"
    )
    done = python(code, RUDA_TARGET="host")
    assert done.returncode < 0  # type: ignore[attr-defined]
    assert "is not the start of a live block" in done.stderr  # type: ignore[attr-defined]

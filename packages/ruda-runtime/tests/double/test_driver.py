"""cuda-python over the double: devices, memory, streams, events, modules."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from ruda_runtime import testing


def test_the_device_says_what_it_is(double: Any) -> None:
    name = double.ok(cuda.cuDeviceGetName(100, 0)).rstrip(b"\0 ").decode()
    assert "driver double" in name
    attribute = cuda.CUdevice_attribute
    major = double.ok(
        cuda.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0)
    )
    unified = double.ok(
        cuda.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0)
    )
    assert (major, unified) == (9, 1)


def test_settings_decide_what_the_device_is(fresh: Any) -> None:
    done = fresh(
        """
        d.start()
        print(ok(cuda.cuDeviceComputeCapability(0)), ok(cuda.cuDeviceTotalMem(0)))
        print(ok(cuda.cuDriverGetVersion()), ok(cuda.cuDeviceGetCount()))
        print(cuda.cuMemAlloc(100 << 20)[0].name, ok(cuda.cuMemGetInfo()))
        """,
        compute_capability=(7, 5), memory=64 << 20, driver_version=12040, devices=2,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "(7, 5) 67108864",
        "12040 2",
        "CUDA_ERROR_OUT_OF_MEMORY (67108864, 67108864)",
    ]


def test_no_device(fresh: Any) -> None:
    done = fresh("print(cuda.cuInit(0)[0].name)", devices=0)
    assert done.stdout.strip() == "CUDA_ERROR_NO_DEVICE", done.stderr


def test_a_bad_setting_is_named(fresh: Any) -> None:
    done = fresh("print(cuda.cuInit(0)[0].name, testing.last_report())", devices=99)
    assert "CUDA_ERROR_INVALID_VALUE" in done.stdout
    assert "RUDA_DOUBLE_DEVICES is 99, wanted a number from 0 to 8" in done.stdout


def test_other_settings_after_loading_are_an_error(double: Any) -> None:
    with pytest.raises(testing.double.DeviceError, match="RUDA_DOUBLE_SEED"):
        testing.use_driver_double(seed=12345, leaks=False)


def test_copies_in_all_directions(double: Any) -> None:
    stream = double.stream()
    values = np.arange(1000, dtype=np.float32)
    first = double.ok(cuda.cuMemAllocAsync(values.nbytes, stream))
    second = double.ok(cuda.cuMemAllocAsync(values.nbytes, stream))
    pinned = double.ok(cuda.cuMemHostAlloc(values.nbytes, 0))
    back = np.ctypeslib.as_array((ctypes.c_float * 1000).from_address(int(pinned)))
    double.ok(cuda.cuMemcpyHtoDAsync(first, values.ctypes.data, values.nbytes, stream))
    double.ok(cuda.cuMemcpyDtoDAsync(second, first, values.nbytes, stream))
    double.ok(cuda.cuMemsetD32Async(int(second) + 40, 0, 10, stream))
    double.ok(cuda.cuMemcpyDtoHAsync(pinned, second, values.nbytes, stream))
    double.ok(cuda.cuStreamSynchronize(stream))
    expected = values.copy()
    expected[10:20] = 0
    np.testing.assert_array_equal(back, expected)
    double.ok(cuda.cuMemFreeAsync(first, stream))
    double.ok(cuda.cuMemFreeAsync(second, stream))
    double.ok(cuda.cuStreamDestroy(stream))
    double.ok(cuda.cuMemFreeHost(pinned))


def test_rows_with_a_pitch(double: Any) -> None:
    values = np.arange(60, dtype=np.float32).reshape(6, 10)
    source = double.upload(values)
    copy = cuda.CUDA_MEMCPY2D()
    copy.srcMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.srcPitch, copy.srcXInBytes, copy.srcY = source, 40, 8, 1
    copy.dstMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_HOST
    out = np.zeros((3, 4), dtype=np.float32)
    copy.dstHost, copy.dstPitch = out.ctypes.data, 16
    copy.WidthInBytes, copy.Height = 16, 3
    double.ok(cuda.cuMemcpy2D(copy))
    np.testing.assert_array_equal(out, values[1:4, 2:6])
    double.free(source)


def test_pageable_sources_may_change_after_the_call(double: Any) -> None:
    """A copy from pageable memory has staged its source when it returns, a pinned one has not."""
    stream, gate = double.stream(), threading.Event()
    block = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait(20) and None)
    values = np.ones(16, dtype=np.float32)
    pinned = double.ok(cuda.cuMemHostAlloc(64, 0))
    shared = np.ctypeslib.as_array((ctypes.c_float * 16).from_address(int(pinned)))
    shared[:] = 1
    targets = [double.ok(cuda.cuMemAlloc(64)) for _ in range(2)]
    function = cuda.CUhostFn(_ptr=ctypes.addressof(block))
    double.ok(cuda.cuLaunchHostFunc(stream, function, 0))
    double.ok(cuda.cuMemcpyHtoDAsync(targets[0], values.ctypes.data, 64, stream))
    double.ok(cuda.cuMemcpyHtoDAsync(targets[1], pinned, 64, stream))
    assert cuda.cuStreamQuery(stream)[0] == cuda.CUresult.CUDA_ERROR_NOT_READY
    values[:] = shared[:] = 2
    gate.set()
    double.ok(cuda.cuStreamSynchronize(stream))
    assert double.download(targets[0], 16)[0] == 1
    assert double.download(targets[1], 16)[0] == 2
    double.free(*targets)
    double.ok(cuda.cuMemFreeHost(pinned))


def test_events_order_streams_and_measure_time(double: Any) -> None:
    first, second = double.stream(), double.stream()
    sleep = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.05))
    start, end = double.event(), double.event()
    target = double.ok(cuda.cuMemAlloc(4))
    double.ok(cuda.cuEventRecord(start, first))
    double.ok(cuda.cuLaunchHostFunc(first, cuda.CUhostFn(_ptr=ctypes.addressof(sleep)), 0))
    double.ok(cuda.cuMemsetD32Async(target, 7, 1, first))
    double.ok(cuda.cuEventRecord(end, first))
    assert cuda.cuEventQuery(end)[0] == cuda.CUresult.CUDA_ERROR_NOT_READY
    double.ok(cuda.cuStreamWaitEvent(second, end, 0))
    out = np.zeros(1, dtype=np.int32)
    double.ok(cuda.cuMemcpyDtoHAsync(out.ctypes.data, target, 4, second))
    assert out[0] == 7
    assert 45 < double.ok(cuda.cuEventElapsedTime(start, end)) < 5000
    double.free(int(target))


def test_the_default_stream_waits_for_blocking_streams_only(double: Any) -> None:
    gate = threading.Event()
    block = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait(20) and None)
    function = cuda.CUhostFn(_ptr=ctypes.addressof(block))
    free_stream, blocking = double.stream(), double.ok(cuda.cuStreamCreate(0))
    marker = double.event()
    double.ok(cuda.cuLaunchHostFunc(free_stream, function, 0))
    double.ok(cuda.cuEventRecord(marker, 0))
    double.ok(cuda.cuEventSynchronize(marker))  # would hang if it waited for the first one
    double.ok(cuda.cuLaunchHostFunc(blocking, function, 0))
    double.ok(cuda.cuEventRecord(marker, 0))
    assert cuda.cuEventQuery(marker)[0] == cuda.CUresult.CUDA_ERROR_NOT_READY
    gate.set()
    double.ok(cuda.cuCtxSynchronize())
    double.ok(cuda.cuEventQuery(marker))


def test_pool_attributes_follow_allocations(double: Any) -> None:
    pool = double.ok(cuda.cuDeviceGetDefaultMemPool(0))
    names = cuda.CUmemPool_attribute
    used = names.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    before = int(double.ok(cuda.cuMemPoolGetAttribute(pool, used)))
    address = double.ok(cuda.cuMemAllocAsync(5 << 20, 0))
    assert int(double.ok(cuda.cuMemPoolGetAttribute(pool, used))) == before + (5 << 20)
    reserved = names.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
    held = int(double.ok(cuda.cuMemPoolGetAttribute(pool, reserved)))
    assert held >= before + (5 << 20)
    double.ok(cuda.cuMemFreeAsync(address, 0))
    double.ok(cuda.cuStreamSynchronize(0))  # the threshold is 0: what is free goes back
    assert int(double.ok(cuda.cuMemPoolGetAttribute(pool, reserved))) <= held - (4 << 20)


def test_pointer_attributes(double: Any) -> None:
    address = double.ok(cuda.cuMemAlloc(256))
    names = cuda.CUpointer_attribute
    inside = int(address) + 100
    kind = double.ok(cuda.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside))
    start = double.ok(
        cuda.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside)
    )
    assert (int(kind), int(start)) == (2, int(address))
    host = np.zeros(4)
    code = cuda.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host.ctypes.data)[0]
    assert code == cuda.CUresult.CUDA_ERROR_INVALID_VALUE
    double.free(int(address))


def test_images_for_another_device_are_refused(double: Any, found: Any) -> None:
    newer = b".version 8.0\n.target sm_100\n.visible .entry k()\n{ ret; }\n\0"
    assert cuda.cuModuleLoadData(newer)[0] == cuda.CUresult.CUDA_ERROR_INVALID_PTX
    found("sm_100 does not fit sm_90")
    unknown = b".version 17.0\n.target sm_80\n.visible .entry k()\n{ ret; }\n\0"
    code = cuda.cuModuleLoadData(unknown)[0]
    assert code == cuda.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    found("PTX 17.0 is newer")
    assert cuda.cuModuleLoadData(b"nonsense\0")[0] == cuda.CUresult.CUDA_ERROR_INVALID_IMAGE
    found("neither an ELF file nor PTX")


def test_an_old_driver_lacks_new_entry_points(fresh: Any) -> None:
    code = """
        library = testing.load_driver_double()
        import ctypes
        for name in (b"cuLibraryLoadData", b"cuMemAllocAsync"):
            pointer, status = ctypes.c_void_p(), ctypes.c_int()
            flags = ctypes.c_uint64(0)
            library.cuGetProcAddress_v2(
                name, ctypes.byref(pointer), 13040, flags, ctypes.byref(status))
            print(pointer.value is not None, status.value)
        """
    assert fresh(code, driver_version=11040).stdout.split() == ["False", "2", "True", "0"]
    assert fresh(code, driver_version=12000).stdout.split() == ["True", "0", "True", "0"]


def test_cuda_core_runs_on_it(double: Any) -> None:
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    assert "driver double" in device.name
    stream = device.create_stream()
    buffer = device.allocate(1024, stream=stream)
    other = device.allocate(1024, stream=stream)
    buffer.copy_to(other, stream=stream)
    marker = stream.record()
    stream.sync()
    assert marker.is_done
    for each in (buffer, other):
        each.close(stream)
    stream.close()


def test_undocumented_tables_are_refused(double: Any) -> None:
    """NVRTC looks for the driver and calls this whether it is there or not."""
    table = ctypes.c_void_p(1)
    call = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD).cuGetExportTable
    assert call(ctypes.byref(table), bytes(16)) == 500 and table.value is None


def test_a_forked_child_gets_an_error(fresh: Any) -> None:
    done = fresh(
        """
        import os
        d.start()
        child = os.fork()
        if child == 0:
            print(cuda.cuMemAlloc(16)[0].name, "forked" in testing.last_report(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        ok(cuda.cuMemFree(ok(cuda.cuMemAlloc(16))))
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["CUDA_ERROR_NOT_INITIALIZED", "True"]


def test_device_memory_is_not_the_hosts(fresh: Any) -> None:
    done = fresh("d.start(); import ctypes; ctypes.string_at(int(ok(cuda.cuMemAlloc(16))), 4)")
    assert done.returncode == -11, done

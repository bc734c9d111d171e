"""Bugs that a driver may let pass, one a test: the double finds each and says what it is."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cuda

Result = cuda.CUresult
SCALE = {"x": "*fp32", "out": "*fp32", "n": "i32", "factor": "fp32", "BLOCK": 128}


@pytest.fixture
def setup(double: Any) -> Any:
    """The scale kernel, a stream and two blocks of 100 floats."""

    class Setup:
        kernel = double.Kernel("scale", SCALE, divisible_by_16=["x", "out"])
        stream = double.stream()
        x = double.upload(np.ones(100, np.float32))
        out = double.upload(np.zeros(100, np.float32))

    yield Setup
    for address in (Setup.x, Setup.out):
        cuda.cuMemFree(address)
    from ruda_runtime import testing

    testing.clear_reports()  # of blocks that the test freed
    double.ok(cuda.cuStreamDestroy(Setup.stream))
    Setup.kernel.close()


def test_use_after_free(double: Any, setup: Any, found: Any) -> None:
    double.ok(cuda.cuMemFreeAsync(setup.x, setup.stream))
    code = setup.kernel.launch(1, setup.stream, setup.x, setup.out, 100, 2.0)
    assert code[0] == Result.CUDA_ERROR_INVALID_VALUE
    found("kernel scale, argument x", hex(setup.x), "use after free", "cuMemFreeAsync on stream")
    code = cuda.cuMemcpyDtoH(np.zeros(1).ctypes.data, setup.x, 4)
    assert code[0] == Result.CUDA_ERROR_INVALID_VALUE
    found("[cuMemcpyDtoH] source: use after free")


def test_double_free(double: Any, setup: Any, found: Any) -> None:
    double.ok(cuda.cuMemFree(setup.x))
    assert cuda.cuMemFree(setup.x)[0] == Result.CUDA_ERROR_INVALID_VALUE
    found("double free", hex(setup.x), "400 bytes", "cuMemFree")


def test_store_out_of_bounds(double: Any, setup: Any, found: Any) -> None:
    wide = double.upload(np.ones(128, np.float32))
    double.ok(setup.kernel.launch(1, setup.stream, wide, setup.out, 101, 2.0))
    assert cuda.cuStreamSynchronize(setup.stream)[0] == Result.CUDA_ERROR_ILLEGAL_ADDRESS
    found(
        "kernel scale", "program (0, 0, 0)", "store of 4 bytes", hex(setup.out + 400),
        "0 bytes behind the end of allocation", "kernels.py",
    )  # fmt: skip
    double.ok(cuda.cuStreamSynchronize(setup.stream))  # an error is handed over once
    double.free(wide)


def test_load_out_of_bounds(double: Any, setup: Any, found: Any) -> None:
    wide = double.upload(np.ones(128, np.float32))
    double.ok(setup.kernel.launch(1, setup.stream, setup.x, wide, 104, 2.0))
    assert cuda.cuStreamSynchronize(setup.stream)[0] == Result.CUDA_ERROR_ILLEGAL_ADDRESS
    found("load of 4 bytes", hex(setup.x + 400), "(4 of 104 addresses of this block)")
    double.free(wide)


def test_a_block_that_no_argument_points_to(double: Any, setup: Any, found: Any) -> None:
    kernel = double.Kernel("far_read", {"x": "*fp32", "out": "*fp32", "offset": "i64"})
    other = double.upload(np.ones(4, np.float32))
    kernel(1, setup.stream, setup.x, setup.out, (other - setup.x) // 4)
    assert cuda.cuStreamSynchronize(setup.stream)[0] == Result.CUDA_ERROR_ILLEGAL_ADDRESS
    found("load at " + hex(other), "to which no argument of the kernel points")
    kernel.close()
    double.free(other)


def test_misaligned_promised_pointer(double: Any, setup: Any, found: Any) -> None:
    code = setup.kernel.launch(1, setup.stream, setup.x + 4, setup.out, 99, 2.0)
    assert code[0] == Result.CUDA_ERROR_MISALIGNED_ADDRESS
    found("kernel scale, argument x (*fp32)", hex(setup.x + 4), "compiled for multiples of 16")


def test_wrong_argument_count(double: Any, setup: Any, found: Any) -> None:
    """In a packed buffer the count shows; in a list of pointers, a wrong kind of value does."""
    kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p)
    shifted = ((setup.x, 3, 2.0, 0, 0), kinds)
    code = cuda.cuLaunchKernel(
        setup.kernel.function, 1, 1, 1, 128, 1, 1, 0, setup.stream, shifted, 0
    )
    assert code[0] == Result.CUDA_ERROR_INVALID_VALUE
    found("kernel scale, argument out (*fp32): 0x3 is in no allocation")
    packed = np.array([setup.x, setup.out, 100], dtype=np.uint64)
    size = ctypes.c_size_t(packed.nbytes)
    extra = (ctypes.c_void_p * 5)(1, packed.ctypes.data, 2, ctypes.addressof(size), None)
    code = cuda.cuLaunchKernel(
        setup.kernel.function, 1, 1, 1, 128, 1, 1, 0, setup.stream, 0, ctypes.addressof(extra)
    )
    assert code[0] == Result.CUDA_ERROR_INVALID_VALUE
    found("argument 4 (scratch pointer 0, *i8) is missing: wanted 6 arguments")


def test_wrong_argument_type(double: Any, setup: Any, found: Any) -> None:
    types = {"x": "*fp32", "out": "*fp32", "columns": "i32", "stride": "i64", "BLOCK": 128}
    kernel = double.Kernel("row_sum", types)
    code = kernel.launch(1, setup.stream, setup.x, setup.out, 10, setup.x)
    assert code[0] == Result.CUDA_ERROR_INVALID_VALUE
    found("argument stride (i64)", "a device address", "do not match the kernel's")
    kernel.close()


def test_missing_wait_between_streams(fresh: Any) -> None:
    """Streams are delayed at random: without the wait the reader comes first and sees NaN."""
    code = """
        d.start()
        wrong = 0
        for _ in range(20):
            writer, reader = d.stream(), d.stream()
            block = ok(cuda.cuMemAlloc(4))
            ok(cuda.cuMemsetD32Async(block, 0, 1, writer))
            if WAIT:
                done = d.event(timing=False)
                ok(cuda.cuEventRecord(done, writer))
                ok(cuda.cuStreamWaitEvent(reader, done, 0))
            out = np.zeros(1, np.float32)
            ok(cuda.cuMemcpyDtoHAsync(out.ctypes.data, block, 4, reader))
            wrong += np.isnan(out[0])
        print(wrong)
        """
    assert int(fresh("WAIT = False\n" + _plain(code), delay_us=2000).stdout) > 0
    assert int(fresh("WAIT = True\n" + _plain(code), delay_us=2000).stdout) == 0


def _plain(code: str) -> str:
    import textwrap

    return textwrap.dedent(code)


def test_memory_of_another_streams_future(fresh: Any) -> None:
    """Used on one stream before the stream that allocates it came to it."""
    done = fresh(
        """
        import ctypes, time
        d.start()
        first, second = d.stream(), d.stream()
        sleep = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.3))
        ok(cuda.cuLaunchHostFunc(first, cuda.CUhostFn(_ptr=ctypes.addressof(sleep)), 0))
        block = ok(cuda.cuMemAllocAsync(4, first))
        ok(cuda.cuMemsetD32Async(block, 0, 1, second))
        print(cuda.cuStreamSynchronize(second)[0].name, testing.last_report())
        """
    )
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout, done.stderr
    assert "not allocated yet when the device came to this work" in done.stdout


def test_event_used_before_it_is_recorded(double: Any, setup: Any, found: Any) -> None:
    start, end = double.event(), double.event()
    double.ok(cuda.cuEventRecord(start, setup.stream))
    double.ok(cuda.cuStreamSynchronize(setup.stream))
    assert cuda.cuEventElapsedTime(start, end)[0] == Result.CUDA_ERROR_INVALID_HANDLE
    found("[cuEventElapsedTime] the end event", "was never recorded")
    assert cuda.cuStreamWaitEvent(setup.stream, end, 0)[0] == Result.CUDA_ERROR_INVALID_HANDLE
    found("[cuStreamWaitEvent]", "was never recorded")
    for each in (start, end):
        double.ok(cuda.cuEventDestroy(each))


def test_destroyed_handles(double: Any, found: Any) -> None:
    stream, event = double.stream(), double.event()
    double.ok(cuda.cuStreamDestroy(stream))
    double.ok(cuda.cuEventDestroy(event))
    assert cuda.cuStreamSynchronize(stream)[0] == Result.CUDA_ERROR_INVALID_HANDLE
    found("no stream, or a stream that was destroyed")
    assert cuda.cuEventRecord(event, 0)[0] == Result.CUDA_ERROR_INVALID_HANDLE
    found("no event, or an event that was destroyed")


def test_leaks_are_listed_at_exit(fresh: Any) -> None:
    code = """
        d.start()
        kernel, s, e = d.Kernel("last_writer", {"out": "*i32", "n": "i32"}), d.stream(), d.event()
        x = d.upload(np.zeros(64, np.float32))
        if CLEAN:
            d.free(x); kernel.close()
            ok(cuda.cuEventDestroy(e)); ok(cuda.cuStreamDestroy(s))
        """
    left = fresh("CLEAN = False\n" + _plain(code))
    assert (
        "alive at exit: 1 allocations of device memory, 1 streams, 1 events, 1 modules"
        in left.stderr
    )
    assert "256 bytes of device memory" in left.stderr
    assert "alive" not in fresh("CLEAN = True\n" + _plain(code)).stderr
    assert "alive" not in fresh("CLEAN = False\n" + _plain(code), leaks=False).stderr


def test_limits_of_the_grid_and_the_block(double: Any, setup: Any, found: Any) -> None:
    arguments = (setup.x, setup.out, 100, 2.0)
    code = setup.kernel.launch(0, setup.stream, *arguments)
    assert code[0] == Result.CUDA_ERROR_INVALID_VALUE
    found("grid x is 0, wanted 1 to 2147483647")
    values = (
        (*arguments, 0, 0),
        (ctypes.c_void_p,) * 2 + (ctypes.c_int, ctypes.c_float) + (ctypes.c_void_p,) * 2,
    )
    function = setup.kernel.function
    code = cuda.cuLaunchKernel(function, 1, 70000, 1, 128, 1, 1, 0, setup.stream, values, 0)
    assert code[0] == Result.CUDA_ERROR_INVALID_VALUE
    found("grid y is 70000, wanted 1 to 65535")
    assert setup.kernel.launch(1, setup.stream, *arguments, block=256)[0] != 0
    found("256 threads a block, compiled for 128")
    assert setup.kernel.launch(1, setup.stream, *arguments, shared=50000)[0] != 0
    found("50000 bytes of shared memory", "MAX_DYNAMIC_SHARED_SIZE_BYTES")


def test_uninitialised_memory_is_nan(double: Any, setup: Any) -> None:
    fresh = double.ok(cuda.cuMemAllocAsync(400, setup.stream))
    setup.kernel(1, setup.stream, int(fresh), setup.out, 100, 2.0)
    double.ok(cuda.cuStreamSynchronize(setup.stream))
    assert np.isnan(double.download(setup.out, 100)).all()
    double.ok(cuda.cuMemFreeAsync(fresh, setup.stream))


def test_a_kernel_that_needs_an_order_of_programs(fresh: Any) -> None:
    code = """
        d.start()
        kernel, s = d.Kernel("running_sum", {"x": "*fp32", "out": "*fp32"}), d.stream()
        x, out = d.upload(np.ones(8, np.float32)), ok(cuda.cuMemAlloc(32))
        kernel(8, s, x, int(out))
        ok(cuda.cuStreamSynchronize(s))
        print(d.download(int(out), 8)[-1])
        """
    assert float(fresh(code, shuffle=False).stdout) == 8
    assert float(fresh(code, seed=1).stdout) != 8


def test_arithmetic_on_raw_bfloat16(double: Any, setup: Any, found: Any) -> None:
    kernel = double.Kernel("raw_bfloat16", {"x": "*bf16", "out": "*bf16"})
    kernel(1, setup.stream, setup.x, setup.out)
    assert cuda.cuStreamSynchronize(setup.stream)[0] == Result.CUDA_ERROR_LAUNCH_FAILED
    found("on bfloat16", "convert to float32 straight after the load")
    kernel.close()


def test_a_kernel_that_raises(double: Any, setup: Any, found: Any) -> None:
    kernel = double.Kernel("failing", {"x": "*fp32"})
    kernel(1, setup.stream, setup.x)
    assert cuda.cuStreamSynchronize(setup.stream)[0] == Result.CUDA_ERROR_LAUNCH_FAILED
    found("AssertionError: this kernel always fails", "kernels.py", "in failing")
    kernel.close()


def test_a_kernel_without_description(double: Any, setup: Any, found: Any) -> None:
    kernel = double.Kernel("scale", {**SCALE, "BLOCK": 96}, described=False)
    code = kernel.launch(1, setup.stream, setup.x, setup.out, 100, 2.0)
    assert code[0] == Result.CUDA_ERROR_INVALID_VALUE
    found("kernel scale", "has no description")
    kernel.close()


def test_a_launch_of_an_unloaded_module(double: Any, setup: Any, found: Any) -> None:
    kernel = double.Kernel("scale", SCALE)
    kernel.close()
    code = kernel.launch(1, setup.stream, setup.x, setup.out, 100, 2.0)
    assert code[0] == Result.CUDA_ERROR_INVALID_HANDLE
    found("its module was unloaded")


def test_a_thread_without_context(double: Any, found: Any) -> None:
    import threading

    codes = []
    thread = threading.Thread(target=lambda: codes.append(cuda.cuMemAlloc(16)[0]))
    thread.start()
    thread.join()
    assert codes == [Result.CUDA_ERROR_INVALID_CONTEXT]
    found("no context is current in this thread")


def test_freed_while_another_stream_uses_it(fresh: Any) -> None:
    code = """
        import ctypes, time
        d.start()
        user, other = d.stream(), d.stream()
        block = ok(cuda.cuMemAlloc(4))
        sleep = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.3))
        ok(cuda.cuLaunchHostFunc(user, cuda.CUhostFn(_ptr=ctypes.addressof(sleep)), 0))
        ok(cuda.cuMemsetD32Async(block, 0, 1, user))
        if WAIT:
            done = d.event(timing=False)
            ok(cuda.cuEventRecord(done, user))
            ok(cuda.cuStreamWaitEvent(other, done, 0))
        ok(cuda.cuMemFreeAsync(block, other))
        print(cuda.cuStreamSynchronize(other)[0].name, testing.last_report())
        """
    wrong = fresh("WAIT = False\n" + _plain(code)).stdout
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in wrong
    assert "the freeing stream has to wait for the other one" in wrong
    assert fresh("WAIT = True\n" + _plain(code)).stdout.strip() == "CUDA_SUCCESS"

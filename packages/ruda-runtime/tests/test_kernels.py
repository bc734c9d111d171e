"""The kernel registry and launch, through the helpers of entry.hpp."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

import ruda_runtime as rr
from ruda_runtime import _native

from .conftest import Error

OK, VALUE, TYPE, UNSUPPORTED, MEMORY, RUNTIME = range(6)


@pytest.fixture(scope="module")
def kernel(probe: ctypes.CDLL) -> ctypes.CDLL:
    if "probe.double" not in [each.name for each in rr.kernels()]:
        error = Error()
        assert probe.probe_register(ctypes.byref(error)) == OK, error.text
    return probe


def launch(
    library: ctypes.CDLL,
    tensor: rr.Tensor | None,
    *,
    name: str = "probe.double",
    flip: int = 0,
    stream: int | None = None,
) -> tuple[int, str]:
    error = Error()
    address = None if tensor is None else tensor._view_address()
    status = library.probe_launch(name.encode(), flip, address, stream, ctypes.byref(error))
    assert status == error.code
    return status, error.text


def test_a_launch_computes_and_counts(kernel: ctypes.CDLL) -> None:
    tensor = rr.Tensor.from_numpy(np.arange(5, dtype=np.float32))
    total, own = rr.launch_count(), rr.launch_count("probe.double")
    before = rr.memory_stats()
    assert launch(kernel, tensor) == (OK, "")
    assert tensor.numpy().tolist() == [0, 2, 4, 6, 8]
    assert rr.launch_count() == total + 1 and rr.launch_count("probe.double") == own + 1
    after = rr.memory_stats()
    assert after["allocations"] == before["allocations"] + 1  # its scratch, given back
    assert after["allocated"] == before["allocated"]


def test_the_registry_lists_it(kernel: ctypes.CDLL) -> None:
    (info,) = [each for each in rr.kernels() if each.name == "probe.double"]
    assert info.package == "probe" and info.layout != 0
    names = [each.name for each in rr.kernels()]
    assert names == sorted(names)
    with pytest.raises(rr.RudaValueError, match=r"\[launch_count\] name: got 'nothing.here'"):
        rr.launch_count("nothing.here")


def test_a_name_belongs_to_one_kernel(kernel: ctypes.CDLL) -> None:
    error = Error()
    assert kernel.probe_register(ctypes.byref(error)) == VALUE
    assert error.text.startswith("[register_kernel] 'probe.double' of probe is already registered")


def test_wrong_launches_are_refused_with_their_reason(kernel: ctypes.CDLL) -> None:
    tensor = rr.Tensor.from_numpy(np.ones((4, 6), np.float32))
    count = rr.launch_count()
    status, text = launch(kernel, tensor, name="probe.absent")
    assert status == UNSUPPORTED and "no such kernel" in text
    status, text = launch(kernel, tensor, flip=1)
    assert status == RUNTIME and "another layout of the arguments" in text
    assert rr.launch_count() == count
    cases = [
        (None, VALUE, "[probe.double] x: got nothing, wanted a tensor"),
        (rr.empty(3, "int32"), TYPE, "x: got dtype int32, wanted float32 or float64"),
        (rr.empty(3, "float64"), UNSUPPORTED, "x: no kernel for float64"),
        (tensor.permute(1, 0), VALUE, "got strides [1, 6] for shape [6, 4], wanted a contiguous"),
    ]
    for argument, want, part in cases:
        status, text = launch(kernel, argument)
        assert status == want and part in text
    assert (tensor.numpy() == 1).all()


def test_a_stream_handle_is_checked(kernel: ctypes.CDLL) -> None:
    tensor = rr.Tensor.from_numpy(np.ones(2, np.float32))
    stream = rr.Stream()
    handle = stream.native_handle
    assert launch(kernel, tensor, stream=handle) == (OK, "")
    assert launch(kernel, tensor, stream=rr.default_stream().native_handle) == (OK, "")
    stream.close()
    for wrong in (handle, handle + 1, 64, tensor.data_ptr, 2**63):
        status, text = launch(kernel, tensor, stream=wrong)
        assert status == VALUE and "not an open stream" in text
    assert tensor.numpy().tolist() == [4, 4]


OUT_OF_MEMORY = """
import ctypes, numpy as np, ruda_runtime as rr
get = ctypes.pythonapi.PyCapsule_GetPointer
get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
probe = ctypes.CDLL({library!r})
class Error(ctypes.Structure):
    _fields_ = (("code", ctypes.c_int32), ("message", ctypes.c_char * 1020))
error = Error()
table = ctypes.c_void_p(get(rr._native.api, b"ruda_runtime._native.api"))
assert probe.probe_attach(table, ctypes.byref(error)) == 0
assert probe.probe_register(ctypes.byref(error)) == 0
t = rr.empty(10 << 20)   # 40 MiB of the 64: the kernel's scratch does not fit beside it
view = ctypes.c_void_p(t._view_address())
status = probe.probe_launch(b"probe.double", ctypes.c_uint64(0), view, None, ctypes.byref(error))
print(status, error.message.decode())
small = rr.Tensor.from_numpy(np.ones(3, np.float32))
view = ctypes.c_void_p(small._view_address())
probe.probe_launch(b"probe.double", ctypes.c_uint64(0), view, None, ctypes.byref(error))
print(small.numpy().tolist())
"""


def test_a_kernel_out_of_memory(kernel: ctypes.CDLL, python_output: Callable[..., str]) -> None:
    code = OUT_OF_MEMORY.format(library=kernel._name)
    first, second = python_output(
        code, RUDA_MEMORY_LIMIT=str(64 << 20), RUDA_TARGET="host"
    ).splitlines()
    assert first.startswith(f"{MEMORY} [allocate] out of memory: asked for 40.00 MiB")
    assert second == "[2.0, 2.0, 2.0]"


def test_attach_refuses_another_abi(probe: ctypes.CDLL) -> None:
    from .conftest import table_address

    size = ctypes.c_uint32.from_address(table_address() + 4).value
    table = (ctypes.c_char * size).from_buffer_copy(ctypes.string_at(table_address(), size))
    error = Error()
    ctypes.c_uint32.from_buffer(table).value = 11
    assert probe.probe_attach(ctypes.addressof(table), ctypes.byref(error)) == RUNTIME
    assert "got ABI 11" in error.text and "pip install" in error.text
    ctypes.c_uint32.from_buffer(table).value = _native.abi_version
    ctypes.c_uint32.from_buffer(table, 4).value = size - 8
    assert probe.probe_attach(ctypes.addressof(table), ctypes.byref(error)) == RUNTIME
    assert probe.probe_attach(None, ctypes.byref(error)) == RUNTIME

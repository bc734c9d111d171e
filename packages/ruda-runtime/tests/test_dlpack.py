"""DLPack in both directions, with NumPy and with hand-made capsules."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import ruda_runtime as rr

Tensor = rr.Tensor
NUMPY_DTYPES = ["float32", "float16", "float64", "int8", "int16", "int32", "int64", "uint8",
                "uint32", "bool"]  # fmt: skip


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_round_trip_with_numpy(name: str) -> None:
    tensor = rr.empty((3, 4), name)
    tensor.numpy()[:] = np.arange(12).reshape(3, 4) % 2
    shown = np.from_dlpack(tensor)
    assert shown.dtype == np.dtype(name) and shown.ctypes.data == tensor.data_ptr
    assert np.array_equal(shown, tensor.numpy())
    back = rr.from_dlpack(shown.copy())
    assert back.dtype_name == name and np.array_equal(back.numpy(), tensor.numpy())


@pytest.mark.parametrize("name", [*NUMPY_DTYPES, "bfloat16"])
def test_round_trip_with_itself(name: str) -> None:
    tensor = rr.empty((2, 3, 4), name).permute(2, 0, 1).slice(0, 1)
    again = Tensor.from_dlpack(tensor)
    assert again.dtype_name == name and again.data_ptr == tensor.data_ptr
    assert (again.shape, again.strides) == (tensor.shape, tensor.strides)


@pytest.mark.parametrize(
    "array",
    [np.arange(12.0)[::3], np.arange(12.0).reshape(3, 4).T, np.array(3.0, np.float32),
     np.zeros((0, 3)), np.arange(12.0).reshape(3, 4)[:, 1:3]],
    ids=["stepped", "transposed", "rank 0", "empty", "columns"],
)  # fmt: skip
def test_strided_arrays(array: np.ndarray) -> None:
    array = array.copy() if not array.flags.writeable else array
    tensor = rr.from_dlpack(array)
    assert tensor.shape == array.shape and np.array_equal(tensor.numpy(), array)
    assert array.size == 0 or tensor.data_ptr == array.ctypes.data
    assert np.array_equal(np.from_dlpack(tensor), array)


def capsule_name(capsule: Any) -> str:
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, (ctypes.py_object,)
    return name(capsule).decode()


def test_the_arguments_of_the_protocol() -> None:
    tensor = Tensor.from_numpy(np.arange(3, dtype=np.float32))
    assert tensor.__dlpack_device__() == (1, 0)
    assert capsule_name(tensor.__dlpack__()) == "dltensor"
    assert capsule_name(tensor.__dlpack__(max_version=(0, 8))) == "dltensor"
    assert capsule_name(tensor.__dlpack__(max_version=(1, 1))) == "dltensor_versioned"
    assert capsule_name(tensor.__dlpack__(dl_device=(1, 0))) == "dltensor"
    with pytest.raises(BufferError, match=r"dl_device: got \(2, 0\), wanted \(1, 0\)"):
        tensor.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="stream: got 1, wanted None"):
        tensor.__dlpack__(stream=1)
    copied = np.from_dlpack(_Once(tensor.__dlpack__(copy=True, max_version=(1, 0))))
    copied_address = copied.ctypes.data
    assert copied_address != tensor.data_ptr and copied.tolist() == [0, 1, 2]


class _Once:
    """An object that hands out one given capsule."""

    def __init__(self, capsule: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class _Old:
    """A producer from before max_version and copy existed."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.source.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_old_producers() -> None:
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    tensor = rr.from_dlpack(_Old(array))
    assert tensor.data_ptr == array.ctypes.data
    copied = rr.from_dlpack(_Old(array), copy=True)
    array[:] = 0
    assert copied.numpy().tolist() == [[0, 1, 2], [3, 4, 5]] and tensor.numpy().sum() == 0


def test_copy_and_device_of_from_dlpack() -> None:
    array = np.arange(4, dtype=np.float32)
    assert rr.from_dlpack(array, copy=False).data_ptr == array.ctypes.data
    assert rr.from_dlpack(array, copy=True).data_ptr != array.ctypes.data
    assert rr.from_dlpack(array, device="host:0").data_ptr == array.ctypes.data
    with pytest.raises(rr.DeviceError, match="wanted one of: host:0"):
        rr.from_dlpack(array, device="cuda:0")
    frozen = array.copy()
    frozen.flags.writeable = False
    shared = rr.from_dlpack(frozen)
    assert shared.data_ptr != frozen.ctypes.data and np.array_equal(shared.numpy(), frozen)
    with pytest.raises(rr.RudaValueError, match="without a copy, it is read-only"):
        rr.from_dlpack(frozen, copy=False)
    flipped = array[::-1]
    assert rr.from_dlpack(flipped).numpy().tolist() == [3, 2, 1, 0]
    with pytest.raises(rr.RudaValueError, match="strides are negative"):
        rr.from_dlpack(flipped, copy=False)


def test_what_is_no_host_tensor_is_refused() -> None:
    with pytest.raises(rr.RudaTypeError, match=r"source: got list, wanted an object with"):
        rr.from_dlpack([1, 2])
    array = np.zeros(3)
    with pytest.raises(rr.RudaTypeError, match="DLPack device type 2, wanted host memory"):
        rr.from_dlpack(_Once(array.__dlpack__(), device=(2, 0)))
    with pytest.raises(rr.RudaTypeError, match="no unused DLPack capsule"):
        rr.from_dlpack(_Once("capsule"))
    once = _Once(array.__dlpack__())
    rr.from_dlpack(once)
    with pytest.raises(rr.RudaTypeError, match="no unused DLPack capsule"):
        rr.from_dlpack(once)
    with pytest.raises(rr.RudaTypeError, match="dtype: got DLPack type code 5 with 64 bits"):
        rr.from_dlpack(np.zeros(3, np.complex64))
    with pytest.raises(rr.RudaTypeError, match="type code 1 with 16 bits"):
        rr.from_dlpack(np.zeros(3, np.uint16))


def test_memory_ends_with_its_last_user() -> None:
    class Array(np.ndarray):
        pass

    array = np.arange(10, dtype=np.float32).view(Array)
    alive = weakref.ref(array)
    tensor = rr.from_dlpack(array)
    view = tensor.slice(0, 3)
    del array, tensor
    gc.collect()
    assert alive() is not None and view.numpy()[0] == 3
    del view
    gc.collect()
    assert alive() is None

    before = rr.memory_stats()["count"]
    shown = np.from_dlpack(rr.empty(5))
    assert rr.memory_stats()["count"] == before + 1
    del shown
    gc.collect()
    assert rr.memory_stats()["count"] == before
    for version in (None, (1, 0)):  # a capsule that nobody takes over
        capsule = rr.empty(5).__dlpack__(max_version=version)
        assert rr.memory_stats()["count"] == before + 1
        del capsule
        assert rr.memory_stats()["count"] == before


def test_the_last_user_may_be_another_thread() -> None:
    held = [rr.from_dlpack(np.ones(100, np.float32)) for _ in range(50)]
    held += [Tensor.from_numpy(np.ones(100, np.float32)) for _ in range(50)]
    threads = [threading.Thread(target=lambda: held.pop() and None) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held == []

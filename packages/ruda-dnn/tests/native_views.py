"""Calls of registered entries as C++ makes them, also with views that no tensor could have: of
another target, or of sizes that no memory holds. Memory is made up where no address is given, so
that only checks may look at such views.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ruda_dnn  # noqa: F401  registers the entries
from ruda_runtime import _native, empty

HOST, CUDA = 0, 1
DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "int32": 6, "int64": 7, "bool": 10}
STATUS = {0: "ok", 1: "value", 2: "type", 3: "unsupported", 4: "memory", 5: "runtime"}
_FIND_KERNEL = 11  # of the functions behind the two numbers that ruda_api begins with


@dataclass(frozen=True)
class Fake:
    """A contiguous view."""

    dtype: str
    shape: tuple[int, ...]
    target: int = CUDA
    address: int = 1 << 20

    def on(self, target: int) -> Fake:
        return replace(self, target=target)


class _View(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("ndim", ctypes.c_int32), ("dtype", ctypes.c_int32), ("target", ctypes.c_int32),
        ("device", ctypes.c_int32),
    ]  # fmt: skip


class _Kernel(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("package", ctypes.c_char_p), ("layout", ctypes.c_uint64),
        ("run", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)),
        ("arguments", ctypes.c_void_p),
    ]  # fmt: skip


class _Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("message", ctypes.c_char * 1020)]


def _find(name: str) -> Any:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = pointer(_native.api, b"ruda_runtime._native.api")
    place = table + 8 + _FIND_KERNEL * ctypes.sizeof(ctypes.c_void_p)
    kind = ctypes.CFUNCTYPE(ctypes.POINTER(_Kernel), ctypes.c_char_p)
    found = kind(ctypes.c_void_p.from_address(place).value)(name.encode())
    assert found, f"no kernel {name}"
    assert found.contents.name == name.encode()
    return found.contents


def call(name: str, *fields: Any) -> tuple[str, str]:
    """Status and error text of an entry; a field is a view, a list of views, None, or a number."""
    alive: list[Any] = []

    def address(thing: Any) -> int:
        alive.append(thing)
        return ctypes.addressof(thing)

    def pointer(view: Fake | None) -> int:
        if view is None:
            return 0
        count = len(view.shape)
        strides = [1] * count
        for axis in range(count - 2, -1, -1):
            strides[axis] = strides[axis + 1] * max(view.shape[axis + 1], 1)
        array = ctypes.c_int64 * max(count, 1)
        sizes, steps = array(*view.shape), array(*strides)
        made = _View(view.address, address(sizes), address(steps), count, DTYPES[view.dtype],
                     view.target, 0)  # fmt: skip
        return address(made)

    def slot(field: Any) -> int:
        if isinstance(field, float):
            return int.from_bytes(bytes(ctypes.c_double(field)), "little")
        if isinstance(field, int):
            return field & (1 << 64) - 1
        if isinstance(field, Sequence):
            return address((ctypes.c_uint64 * max(len(field), 1))(*map(pointer, field)))
        return pointer(field)

    slots = (ctypes.c_uint64 * len(fields))(*map(slot, fields))
    error = _Error()
    code = _find(name).run(ctypes.addressof(slots), ctypes.addressof(error))
    return STATUS[code], error.message.decode()


def this_target() -> int:
    return CUDA if str(empty((1,), "float32").device).startswith("cuda") else HOST


def place_of_result() -> int:
    """The address of eight bytes that may be written."""
    return ctypes.addressof(_RESULT)


_RESULT = ctypes.c_uint64()

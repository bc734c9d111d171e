"""Launches of example.scale_add from C++ (launch_time.cpp), for tests and measurements."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import ruda_runtime as rr
from ruda_runtime import _native


class Error(ctypes.Structure):
    """ruda_error of abi.h."""

    _fields_ = (("code", ctypes.c_int32), ("message", ctypes.c_char * 1020))


def build(folder: Path) -> Path:
    """Compile launch_time.cpp against the installed headers."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise RuntimeError("a C++ compiler is needed: install one, or set CXX")
    target = folder / "launch_time.so"
    source = Path(__file__).with_name("launch_time.cpp")
    subprocess.run(
        [compiler, "-std=c++20", "-O2", "-Wall", "-Werror", "-fPIC", "-shared",
         "-I", rr.get_include(), str(source), "-o", str(target)],
        check=True,
    )  # fmt: skip
    return target


class Launcher:
    """Calls of the compiled library."""

    def __init__(self, library: str | Path) -> None:
        self._time = ctypes.CDLL(str(library)).time_launches
        self._time.restype = ctypes.c_double
        self._time.argtypes = (ctypes.c_void_p,) * 4 + (ctypes.c_int64,) * 2 + (
            ctypes.POINTER(Error),)  # fmt: skip
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        self._table = pointer(_native.api, b"ruda_runtime._native.api")

    @classmethod
    def build(cls, folder: Path) -> Launcher:
        return cls(build(folder))

    def __call__(
        self, x: rr.Tensor, y: rr.Tensor, out: rr.Tensor, count: int, repeats: int
    ) -> float:
        """Launch so often; seconds a launch."""
        error = Error()
        spent = self._time(self._table, x._view_address(), y._view_address(), out._view_address(),
                           count, repeats, ctypes.byref(error))  # fmt: skip
        if spent < 0:
            raise rr.RudaRuntimeError(error.message.decode())
        return float(spent)

"""Device kernels without a GPU: run by Triton's interpreter, or compiled for an architecture.

Interpreting changes `triton.language` for the whole process, so that it happens in a process of
its own (`python kernels_support.py FILE SIZE`). Both processes map one file; addresses in launches
are the server's. Memory is poisoned with 0xff (NaN in every float) and arrays lie apart from each
other, so that a read or write outside of them shows.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import mmap
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ruda_runtime import conformance
from ruda_runtime.conformance import rounded
from ruda_runtime.launch import Launch, Specialisation, View

SHARED_MEMORY = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""Shared memory that one block can have, in KiB, for every architecture of a bundle."""

DTYPES = ["float32", "float16", "bfloat16"]
GAP = 64
_RUNNING: list[Interpreter] = []


class Interpreter:
    """Memory shared with an interpreting process, and launches in it."""

    def __init__(self, size: int = 256 << 20) -> None:
        self.file = tempfile.NamedTemporaryFile(prefix="ruda-kernels-")  # noqa: SIM115
        self.file.truncate(size)
        self.memory = mmap.mmap(self.file.fileno(), size)
        self.bytes = np.frombuffer(self.memory, np.uint8)
        self.address = self.bytes.ctypes.data
        self.used, self.gaps = 0, []
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, self.file.name, str(size)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        atexit.register(self.close)
        self.base = self._receive()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait(timeout=20)

    def _receive(self) -> Any:
        try:
            kind, value = pickle.load(self.process.stdout)
        except EOFError:
            raise RuntimeError("the interpreting process has ended") from None
        if kind == "error":
            raise RuntimeError(value)
        return value

    def reset(self) -> None:
        """Forget all arrays."""
        self.bytes[: self.used] = 0xFF
        self.used, self.gaps = 0, []

    def empty(self, shape: tuple[int, ...], dtype: str, shift: int = 0) -> np.ndarray:
        """A poisoned array, `shift` bytes after an address that is divisible by 64."""
        kind = conformance.numpy_dtype(dtype)
        start = -(-self.used // 64) * 64 + GAP + shift
        end = start + int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if end + GAP > len(self.bytes):
            raise MemoryError("the interpreter's memory is too small")
        self.bytes[self.used : end + GAP] = 0xFF
        self.gaps += [(self.used, start), (end, end + GAP)]
        self.used = end + GAP
        return self.bytes[start:end].view(kind).reshape(shape)

    def array(self, values: Any, dtype: str, shift: int = 0) -> Any:
        """A copy of the values in shared memory; None stays None."""
        if values is None:
            return None
        values = np.asarray(values)
        target = self.empty(values.shape, dtype, shift)
        with np.errstate(all="ignore"):
            target[...] = values.astype(target.dtype)
        return target

    def strided(self, values: np.ndarray) -> np.ndarray:
        """A copy of an array with its strides (which may be 0 or negative) in shared memory."""
        if values.size == 0:
            return self.array(values, values.dtype.name)
        low = sum(min(0, (n - 1) * s) for n, s in zip(values.shape, values.strides))
        high = sum(max(0, (n - 1) * s) for n, s in zip(values.shape, values.strides))
        item = values.dtype.itemsize
        block = self.empty(((high - low) // item + 1,), values.dtype.name)
        copy = np.lib.stride_tricks.as_strided(block[-low // item :], values.shape, values.strides)
        copy[...] = values
        return copy

    def view(self, array: np.ndarray | None) -> View | None:
        """An array of this memory as the kernels see it."""
        if array is None:
            return None
        pointer = array.ctypes.data - self.address + self.base
        strides = tuple(stride // array.itemsize for stride in array.strides)
        return View(pointer, array.dtype.name, array.shape, strides)

    def scratch(self, shape: tuple[int, ...], dtype: str) -> View:
        view = self.view(self.empty(shape, dtype))
        assert view is not None
        return view

    def run(self, launches: list[Launch]) -> None:
        """Run the launches in order; fails where memory between arrays was written."""
        work = []
        for launch in launches:
            types = dict(launch.specialisation().signature)
            arguments = {
                name: (types[name], value.pointer if isinstance(value, View) else value)
                for name, value in launch.values.items()
            }
            work.append((launch.definition.function, launch.grid, arguments))
        pickle.dump(work, self.process.stdin)
        self.process.stdin.flush()
        self._receive()
        for start, end in self.gaps:
            assert (self.bytes[start:end] == 0xFF).all(), "a kernel wrote outside of its arrays"


def compile_for(specialisation: Specialisation, architecture: int) -> Any:
    """Machine code for sm_`architecture`; checks that its shared memory exists there."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, name = specialisation.function.split(":")
    function = getattr(importlib.import_module(module), name)
    order = {name: i for i, (name, _) in enumerate(specialisation.signature)}
    assert list(order) == function.arg_names, specialisation.function
    source = ASTSource(
        function,
        dict(specialisation.signature),
        constexprs={(order[name],): value for name, value in specialisation.constants},
        attrs={(order[name],): [["tt.divisibility", 16]] for name in specialisation.divisible},
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", architecture, 32),
        options={
            "num_warps": specialisation.num_warps,
            "num_stages": specialisation.num_stages,
            "enable_fp_fusion": True,
        },
    )
    assert len(compiled.asm["cubin"]) > 0
    limit = SHARED_MEMORY[architecture] << 10
    assert compiled.metadata.shared <= limit, (
        f"{specialisation}: {compiled.metadata.shared} bytes of shared memory for "
        f"sm_{architecture}, which has {limit}"
    )
    return compiled


def exists_on(specialisation: Specialisation, architecture: int) -> bool:
    """sm_75 has no bfloat16."""
    return architecture >= 80 or all(kind != "*bf16" for _, kind in specialisation.signature)


def interpreter_fixture() -> Any:
    """The fixture `interpreter`: one process for a module, forgetful between its tests."""

    @pytest.fixture(name="interpreter")
    def fixture() -> Interpreter:
        pytest.importorskip("triton")
        if not _RUNNING:
            _RUNNING.append(Interpreter())
        _RUNNING[0].reset()
        return _RUNNING[0]

    return fixture


def compile_tests(specialisations: list[Specialisation]) -> tuple[Any, Any]:
    """Two tests: every third for sm_90 and every seventh for another architecture in turn; and
    (slow) everything for all."""
    others = [architecture for architecture in SHARED_MEMORY if architecture != 90]
    sample = [(one, others[i % len(others)]) for i, one in enumerate(specialisations[::7])]
    runs = [(one, 90) for one in specialisations[::3]] + sample

    @pytest.mark.parametrize(("specialisation", "architecture"), runs, ids=_name)
    def test(specialisation: Specialisation, architecture: int) -> None:
        pytest.importorskip("triton")
        if exists_on(specialisation, architecture):
            compile_for(specialisation, architecture)

    @pytest.mark.slow
    @pytest.mark.timeout(3600)
    @pytest.mark.parametrize("architecture", list(SHARED_MEMORY))
    def test_all(architecture: int) -> None:
        pytest.importorskip("triton")
        for one in specialisations:
            if exists_on(one, architecture):
                compile_for(one, architecture)

    return test, test_all


def _name(value: Any) -> str:
    return f"sm_{value}" if isinstance(value, int) else value.function.split(":")[1]


def check(actual: np.ndarray, reference: Any, dtype: str, *, long_reduction: bool = False) -> None:
    """The criteria of ``ruda_runtime.conformance``; values that overflow the dtype are infinite."""
    assert actual.dtype == conformance.numpy_dtype(dtype)
    stored = rounded(reference, dtype)
    wanted = np.where(np.isinf(stored), stored, reference)
    conformance.check(actual, wanted, dtype, long_reduction=long_reduction)


def _round_to_bfloat16(data: np.ndarray) -> np.ndarray:
    return np.asarray(data, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


def _patch(interpreter: Any, tl: Any) -> None:
    """Two things that the interpreter does otherwise than a GPU: it truncates float32 to bfloat16
    where the hardware rounds, and reads 0 where a masked load has no value of its own."""
    builder = interpreter.InterpreterBuilder
    cast, load = builder.cast_impl, builder.create_masked_load

    def cast_impl(self: Any, source: Any, kind: Any) -> Any:
        if source.dtype.scalar == tl.float32 and kind.scalar == tl.bfloat16:
            return interpreter.TensorHandle(_round_to_bfloat16(source.data), tl.bfloat16)
        return cast(self, source, kind)

    def masked_load(
        self: Any, pointers: Any, mask: Any, other: Any, *rest: Any, **more: Any
    ) -> Any:
        if other is None and not mask.data.all():
            raise ValueError("a masked load without other=")
        return load(self, pointers, mask, other, *rest, **more)

    builder.cast_impl, builder.create_masked_load = cast_impl, masked_load


def _serve(path: str, size: int) -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a kernel prints must not reach the pipe
    import triton.language as tl
    from triton.runtime import interpreter

    _patch(interpreter, tl)
    with Path(path).open("r+b") as file:
        memory = mmap.mmap(file.fileno(), size)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def reply(kind: str, value: Any) -> None:
        pickle.dump((kind, value), replies)
        replies.flush()

    class HostGrid(interpreter.GridExecutor):
        """Arguments are host memory already."""

        def _init_args_hst(self, args_dev: Any, kwargs: Any) -> Any:
            return args_dev, kwargs

        def _restore_args_dev(self, *_: Any) -> None:
            pass

    def argument(kind: str, value: Any) -> Any:
        if kind == "constexpr":
            return value
        pointer = kind.startswith("*")
        scalar = tl.str_to_ty(kind.removeprefix("*"), None)
        stored = np.uint64 if pointer else interpreter._get_np_dtype(scalar)
        typed = tl.pointer_type(scalar) if pointer else scalar
        return tl.tensor(interpreter.TensorHandle(np.array([value], stored), typed), typed)

    reply("ready", base)
    while True:
        try:
            work = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            with np.errstate(all="ignore"):
                for name, grid, arguments in work:
                    module, function = name.split(":")
                    jit = getattr(importlib.import_module(module), function)
                    assert list(arguments) == jit.arg_names, f"{name}: {jit.arg_names}"
                    HostGrid(jit.rewrite(), jit.arg_names, grid)(
                        **{key: argument(*value) for key, value in arguments.items()}
                    )
            reply("done", None)
        except Exception as error:
            reply("error", f"{type(error).__name__}: {error} ({name})")


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))

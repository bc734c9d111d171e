"""Runs Triton kernels on raw addresses with Triton's interpreter.

The interpreter of Triton copies tensors to the host and back around a launch and replaces parts of
``triton.language`` for each of them. Here arguments are addresses of shared memory that need no
copy, and the language stays replaced: this process does nothing else.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import json
import random
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter

from ruda_runtime.testing.live_ranges import LiveRanges, MemoryViolation

LAUNCH_FAILED = 719

# Of a packed scalar: how its bytes are read, and NumPy's dtype for it (bfloat16: raw bits).
SCALARS = {
    "i1": ("<?", np.bool_), "u1": ("<?", np.bool_),
    "i8": ("<b", np.int8), "i16": ("<h", np.int16), "i32": ("<i", np.int32),
    "u8": ("<B", np.uint8), "u16": ("<H", np.uint16), "u32": ("<I", np.uint32),
    "i64": ("<q", np.int64), "u64": ("<Q", np.uint64),
    "fp16": ("<e", np.float16), "bf16": ("<H", np.uint16),
    "fp32": ("<f", np.float32), "f32": ("<f", np.float32), "fp64": ("<d", np.float64),
}  # fmt: skip


class KernelError(Exception):
    """A kernel cannot be found, or the interpreter cannot run it."""


def find_kernel(function: str, source: str | None) -> Any:
    """The interpreted function ``module:name``, from the module or else from its source file."""
    module_name, _, name = function.partition(":")
    module = None
    failure: BaseException | None = None
    if module_name != "__main__":
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            failure = error
    if source is not None and (module is None or not _same_file(module, source)):
        spec = importlib.util.spec_from_file_location(f"_interpreted_{Path(source).stem}", source)
        if spec is None or spec.loader is None or not Path(source).exists():
            raise KernelError(f"there is no Python file {source}") from failure
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses and pickling look there
        spec.loader.exec_module(module)
    if module is None:
        raise KernelError(f"module {module_name} cannot be imported: {failure!r}") from failure
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    while found is not None and not isinstance(found, interpreter.InterpretedFunction):
        found = getattr(found, "fn", None)  # autotuning and heuristics wrap the function
    if found is None:
        raise KernelError(f"{module_name} has no @triton.jit function {name}")
    return found


def _same_file(module: Any, source: str) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == Path(source).resolve()


class Kernel:
    """One described kernel: its function and how its arguments are made."""

    def __init__(self, text: str) -> None:
        description = json.loads(text)
        function = find_kernel(description["function"], description.get("source"))
        self.name = description["function"]
        self.run = function.rewrite()
        annotations = inspect.get_annotations(function.fn)
        self._constants: dict[str, Any] = {}
        self._packed: list[tuple[str, Callable[[int], Any], bool]] = []
        for each in description["parameters"]:
            name, kind = each["name"], each["type"]
            if kind == "constexpr":
                declared = "constexpr" in str(annotations.get(name, ""))
                value = each.get("value")
                # A specialised value of an ordinary parameter is a scalar to the interpreter.
                self._constants[name] = value if declared else interpreter._implicit_cvt(value)
            else:
                self._packed.append((name, _maker(kind), kind.startswith("*")))
        for name, default in _defaults(function.fn).items():
            self._constants.setdefault(name, default)

    def arguments(self, values: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
        """The keyword arguments of one launch, and the pointers among them."""
        made = dict(self._constants)
        pointers = []
        for (name, make, is_pointer), value in zip(self._packed, values):
            made[name] = make(value)
            if is_pointer:
                pointers.append(value)
        return made, pointers


def _defaults(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def _maker(kind: str) -> Callable[[int], Any]:
    dtype: Any = tl.str_to_ty(kind, None)
    if kind.startswith("*"):
        return lambda value: tl.tensor(
            interpreter.TensorHandle(np.array([value], dtype=np.uint64), dtype), dtype
        )
    layout, numpy_dtype = SCALARS[kind]
    size = struct.calcsize(layout)

    def make(value: int) -> Any:
        number = struct.unpack_from(layout, value.to_bytes(8, "little")[:size])[0]
        handle = interpreter.TensorHandle(np.array([number], dtype=numpy_dtype), dtype)
        return tl.tensor(handle, dtype)

    return make


class Interpreter:
    """Interprets launches; memory accesses are checked against ``ranges``."""

    def __init__(self, seed: int, shuffle: bool) -> None:
        self.ranges = LiveRanges()
        self._seed = seed
        self._shuffle = shuffle
        self._builder = interpreter.interpreter_builder
        # Without debug the interpreter would compute the overflow checks and ignore them.
        self._builder.options = dataclasses.replace(self._builder.options, sanitize_overflow=False)
        _patch_language()
        _watch_memory(self._builder, self.ranges)
        _refuse_raw_bfloat16(self._builder)
        _convert_bfloat16(self._builder)

    def launch(
        self, kernel: Kernel, grid: tuple[int, int, int], number: int, values: Sequence[int]
    ) -> tuple[int, str]:
        """Run every program of a grid; gives a CUDA error code (0: success) and its text."""
        arguments, pointers = kernel.arguments(values)
        self.ranges.allow(pointers)
        self._builder.set_grid_dim(*grid)
        count = grid[0] * grid[1] * grid[2]
        order: Sequence[int] = range(count)
        if self._shuffle and count > 1:
            order = random.Random(self._seed * 1_000_003 + number).sample(order, count)
        x = y = z = 0
        try:
            with np.errstate(all="ignore"):
                for index in order:
                    x, rest = index % grid[0], index // grid[0]
                    y, z = rest % grid[1], rest // grid[1]
                    self._builder.set_grid_idx(x, y, z)
                    kernel.run(**arguments)
        except Exception as error:
            cause = _root(error)
            code = cause.code if isinstance(cause, MemoryViolation) else LAUNCH_FAILED
            return code, f"program ({x}, {y}, {z}): {_explain(error, cause)}"
        return 0, ""


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _explain(error: BaseException, cause: BaseException) -> str:
    """The cause, and the lines of kernels that led there, outermost first."""
    here = Path(__file__)
    own = (str(Path(triton.__file__).parent), str(here), str(here.with_name("live_ranges.py")))
    frames: list[traceback.FrameSummary] = []
    each: BaseException | None = error
    while each is not None:
        for frame in traceback.extract_tb(each.__traceback__):
            if not frame.filename.startswith(own) and frame not in frames:
                frames.append(frame)
        each = each.__cause__
    lines = [f"{f.filename}:{f.lineno} in {f.name}: {f.line or ''}".rstrip() for f in frames[-4:]]
    what = str(cause) if isinstance(cause, MemoryViolation) else f"{type(cause).__name__}: {cause}"
    return "\n  ".join([what, *lines])


def _patch_language() -> None:
    """Make ``triton.language`` the interpreter's, for good."""
    stand_in: dict[str, Any] = {"tl": tl, "core": tl.core}
    exec("def everything(): pass", stand_in)
    interpreter._patch_lang(stand_in["everything"])
    # Triton 3.6 converts arrays of one element, which newer versions of NumPy refuse.
    tl.core.tensor.__index__ = lambda self: int(self.handle.data.item())

    class Nothing:
        def restore(self) -> None:
            pass

    interpreter._patch_lang = lambda function: Nothing()


def _watch_memory(builder: Any, ranges: LiveRanges) -> None:
    """Check every access before it happens. The other accesses of the builder go through these."""

    def size_of(handle: Any) -> int:
        return max(1, handle.get_element_ty().primitive_bitwidth // 8)

    def watch(name: str, verb: str, mask_at: int | None) -> None:
        original = getattr(builder, name)

        def watched(*arguments: Any) -> Any:
            pointers = arguments[1] if name == "create_atomic_rmw" else arguments[0]
            mask = None
            if name == "create_masked_load" and arguments[2] is None and pointers.data.size > 1:
                # On a GPU masked lanes without `other` are undefined; here they are seen to be.
                # (Of a single lane, the interpreter also passes None where `other` is 0.)
                arguments = (*arguments[:2], _undefined(pointers), *arguments[3:])
            if mask_at is not None and arguments[mask_at] is not None:
                mask = arguments[mask_at].data.astype(bool, copy=False)
                if mask.all():
                    mask = None
                elif mask.shape != pointers.data.shape:
                    mask = np.broadcast_to(mask, pointers.data.shape)
            ranges.check(pointers.data, mask, size_of(pointers), verb)
            return original(*arguments)

        setattr(builder, name, watched)

    watch("create_masked_load", "load", 1)
    watch("create_masked_store", "store", 2)
    watch("create_atomic_rmw", "atomic operation", 3)
    watch("create_atomic_cas", "atomic operation", None)
    to_pointer = builder.create_int_to_ptr

    def watched_cast(*arguments: Any) -> Any:
        ranges.allow_all()
        return to_pointer(*arguments)

    builder.create_int_to_ptr = watched_cast


def _undefined(pointers: Any) -> Any:
    """Values that show: NaN in floating types, large numbers in integers."""
    element = pointers.get_element_ty()
    dtype = interpreter._get_np_dtype(element)
    size = pointers.data.size * dtype.itemsize
    data = np.frombuffer((b"\xff\x7f" * (size // 2 + 1))[:size], dtype=dtype)
    if dtype == np.bool_:
        data = np.ones(pointers.data.size, dtype=dtype)
    return interpreter.TensorHandle(data.reshape(pointers.data.shape), element)


def _refuse_raw_bfloat16(builder: Any) -> None:
    """The interpreter would compute with the bit patterns of bfloat16 as if they were integers."""

    def refuse(handle: Any, what: str) -> None:
        if getattr(getattr(handle, "dtype", None), "scalar", None) == tl.bfloat16:
            raise KernelError(
                f"{what} on bfloat16, which Triton's interpreter computes wrongly: convert to "
                "float32 straight after the load"
            )

    binary, unary, dot = builder.binary_op, builder.unary_op, builder.create_dot
    reduce = interpreter.ReduceScanOpInterface.apply

    def checked_binary(lhs: Any, rhs: Any, operation: Any) -> Any:
        refuse(lhs, getattr(operation, "__name__", "arithmetic"))
        return binary(lhs, rhs, operation)

    def checked_unary(argument: Any, operation: Any) -> Any:
        refuse(argument, getattr(operation, "__name__", "arithmetic"))
        return unary(argument, operation)

    def checked_dot(a: Any, *rest: Any) -> Any:
        refuse(a, "dot")
        return dot(a, *rest)

    def checked_reduce(self: Any, argument: Any) -> Any:
        for each in argument if isinstance(argument, tuple) else (argument,):
            refuse(getattr(each, "handle", None), "a reduction or scan")
        return reduce(self, argument)

    builder.binary_op = checked_binary
    builder.unary_op = checked_unary
    builder.create_dot = checked_dot
    interpreter.ReduceScanOpInterface.apply = checked_reduce


def _convert_bfloat16(builder: Any) -> None:
    """Conversions as the hardware does them: rounding to nearest even, NaN kept."""
    cast = builder.cast_impl

    def widen(bits: np.ndarray) -> np.ndarray:
        return (bits.astype(np.uint32) << 16).view(np.float32)

    def narrow(values: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
        return np.where(np.isnan(values), np.uint32(0x7FFF), rounded).astype(np.uint16)

    def converted(source: Any, target: Any) -> Any:
        before, after = source.dtype.scalar, target.scalar
        if before == after or tl.bfloat16 not in (before, after):
            return cast(source, target)
        data = widen(source.data) if before == tl.bfloat16 else source.data
        if after == tl.bfloat16:
            return interpreter.TensorHandle(narrow(data.astype(np.float32)), after)
        return interpreter.TensorHandle(data.astype(interpreter._get_np_dtype(after)), after)

    def to_float(source: Any, target: Any, rounding: Any) -> Any:
        if tl.bfloat16 in (source.dtype.scalar, target.scalar) and rounding != RTZ:
            return converted(source, target)
        return original(source, target, rounding)

    RTZ = interpreter._ir.ROUNDING_MODE.RTZ
    original = builder.create_fp_to_fp
    builder.cast_impl = converted
    builder.create_fp_to_fp = to_float

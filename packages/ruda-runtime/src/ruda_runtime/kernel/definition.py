"""Kernels: one operation's device function and its host function under one call."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ruda_runtime import _native
from ruda_runtime.devices import _target
from ruda_runtime.errors import RudaRuntimeError, UnsupportedError
from ruda_runtime.kernel import cache
from ruda_runtime.kernel.parameters import parse_parameters
from ruda_runtime.kernel.resolve import Loadable, resolve
from ruda_runtime.kernel.settings import CompileOptions
from ruda_runtime.kernel.source import CudaSource, function_name, source_hash
from ruda_runtime.launch import Definition, Launch
from ruda_runtime.streams import Stream
from ruda_runtime.streams import stream as in_stream

_lock = threading.Lock()
_kernels: dict[str, Kernel] = {}


class Kernel:
    """One operation's device function and, where it has one, its host function.

    A call has the same argument list on every target. On a GPU the device function is compiled, or
    taken from a bundle or a cache, at the first call with a new specialisation: dtypes, constants,
    integers that are 1 where the declaration says ``=1``, and whether all pointers and all
    ``%16`` integers are divisible by 16. It is computed from the arguments of each call.

    Args:
        name: ``"family.operation"``; a name belongs to one kernel. C++ finds it by this name.
        function: the ``@triton.jit`` function, as ``"module:name"`` (imported when it is compiled)
            or as the object.
        parameters: name to declaration, in the function's order; the language is that of
            ``ruda_runtime.launch.Definition``.
        host: called with the same arguments on the host target.
        cuda_source: the same kernel in CUDA C++: used where ``function`` is ``None``, and with
            RUDA_CUDA_COMPILER=nvrtc.
        cooperative: all blocks of a launch run at the same time.

    Raises:
        RudaValueError: a declaration that the language does not have, or a name that is taken.
    """

    def __init__(
        self,
        name: str,
        function: str | Callable[..., Any] | None,
        parameters: Mapping[str, str],
        *,
        host: Callable[..., Any] | None = None,
        cuda_source: CudaSource | None = None,
        cooperative: bool = False,
    ) -> None:
        if function is None and cuda_source is None:
            raise RudaRuntimeError(f"[{name}] a kernel needs a function or a cuda_source")
        self.name = name
        self.function = f"cuda:{name}" if function is None else function_name(function)
        self.parameters = parse_parameters(name, parameters)
        self.host = host
        self.cooperative = cooperative
        self._in_triton = function is not None
        self._cuda_source = cuda_source
        fields = [parameter.native() for parameter in self.parameters]
        self._native = _native.DeviceKernel(name, fields, cooperative)
        with _lock:
            _kernels[name] = self

    @classmethod
    def of(cls, definition: Definition) -> Kernel:
        """The kernel of a definition; made at its first use."""
        with _lock:
            known = _kernels.get(definition.name)
        if known is None:
            return cls(definition.name, definition.function, definition.parameters)
        if (known.function, known.parameters) != (
            definition.function, parse_parameters(definition.name, definition.parameters),
        ):  # fmt: skip
            raise RudaRuntimeError(
                f"[{definition.name}] two different kernels have this name: {known.function} and "
                f"{definition.function}"
            )
        return known

    def __call__(
        self,
        grid: int | tuple[int, ...],
        *arguments: Any,
        stream: Stream | None = None,
        **named: Any,
    ) -> None:
        """Launch on ``stream`` (default: the current one).

        Args:
            grid: one to three numbers of programs; a grid without programs launches nothing.
            arguments: tensors (or ``ruda_runtime.launch.View``), numbers and constants, in the
                order of the parameters.
            named: the rest of them by name, and ``num_warps`` (4) and ``num_stages`` (2).

        Raises:
            RudaTypeError: number, kind, dtype or device of an argument.
            RudaValueError: a number that its type does not hold, a misaligned address, the grid.
            UnsupportedError: there is no code for this target, and nothing to compile it with.
            RudaRuntimeError: the kernel does not compile, load or launch; without RUDA_ASYNC=1 also
                when it fails while it runs. The text names kernel, grid and device.
        """
        if _target() == "cuda":
            number = -1
            if stream is not None:
                stream._check_open(self.name)
                number = stream.id
            self._native.launch(grid, arguments, named, number)
            return
        if self.host is None:
            raise UnsupportedError(
                f"[{self.name}] has no host function: it runs on a GPU only (RUDA_TARGET=cuda)"
            )
        options = ("num_warps", "num_stages")
        kept = {key: value for key, value in named.items() if key not in options}
        with in_stream(stream):
            self.host(*arguments, **kept)

    def plan(self, *arguments: Any, **named: Any) -> Plan:
        """The code for these arguments, compiled if need be, for launches without a lookup."""
        if _target() != "cuda":
            raise UnsupportedError(f"[{self.name}] plan: got the host target, wanted cuda")
        return Plan(self, self._native.plan(arguments, named))

    @property
    def launches(self) -> int:
        """Launches on the GPU since the process started."""
        return self._native.launches

    @property
    def plan_hits(self) -> int:
        """Those of them whose plan was there."""
        return self._native.hits

    def cuda_source_for(self, options: CompileOptions) -> CudaSource | None:
        """The CUDA C++ that these options compile; ``None``: the Triton function."""
        chosen = not self._in_triton or options.compiler == "nvrtc"
        return self._cuda_source if chosen else None

    def source_hash(self, options: CompileOptions) -> str:
        """SHA-256 of what is compiled."""
        cuda = self.cuda_source_for(options)
        if cuda is not None:
            return hashlib.sha256(f"{cuda.entry}\0{cuda.text}".encode()).hexdigest()
        return source_hash(self.function)

    def __repr__(self) -> str:
        return f"Kernel({self.name!r}, {self.function!r})"


class Plan:
    """A kernel's code for one specialisation.

    A launch checks that its arguments keep what the code was promised: dtypes, constants,
    alignment.
    """

    def __init__(self, kernel: Kernel, native: _native.Plan) -> None:
        self.kernel = kernel
        self._native = native

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self._native.threads

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self._native.shared_bytes

    def __call__(
        self,
        grid: int | tuple[int, ...],
        *arguments: Any,
        stream: Stream | None = None,
        **named: Any,
    ) -> None:
        """Launch with the same argument list as the kernel.

        Raises:
            RudaValueError: an argument that breaks a promise, for example an address that is not
                divisible by 16.
        """
        number = -1
        if stream is not None:
            stream._check_open(self.kernel.name)
            number = stream.id
        self._native.launch(grid, arguments, named, number)


def submit(launches: Iterable[Launch], stream: Stream | None = None) -> None:
    """Launch in order, on ``stream`` or the current one."""
    for each in launches:
        Kernel.of(each.definition)(
            each.grid, stream=stream, num_warps=each.num_warps, num_stages=each.num_stages,
            **each.values,
        )  # fmt: skip


def defined_kernels() -> list[Kernel]:
    """The kernels of this process, by name."""
    with _lock:
        return [_kernels[name] for name in sorted(_kernels)]


def compile_counts() -> dict[str, int]:
    """Where the code of launches came from, since the process started.

    Keys: ``compiled``, ``memory_hits`` (a plan or a compiled kernel of this process),
    ``disk_hits`` (RUDA_CACHE_DIR) and ``bundle_hits`` (RUDA_BUNDLE).
    """
    counts = cache.counts()
    counts["memory_hits"] += sum(kernel.plan_hits for kernel in defined_kernels())
    return counts


def _resolve(name: str, facts: list[tuple[Any, ...]], warps: int, stages: int) -> Loadable:
    return resolve(_kernels[name], facts, warps, stages)


_native.set_plan_resolver(_resolve)

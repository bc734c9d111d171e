"""Triton from a kernel function to machine code or PTX. Imports Triton when it is used."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import re
import tempfile
from typing import Any

from ruda_runtime.errors import RudaRuntimeError, RudaTypeError, UnsupportedError
from ruda_runtime.kernel.artifact import Artifact
from ruda_runtime.kernel.settings import CompileOptions, check_ptx_version
from ruda_runtime.kernel.source import load_function
from ruda_runtime.launch import Specialisation

_FP_FUSION = True  # stated, because Triton's own default changes with its version


def version() -> str | None:
    """``"triton 3.9.0"``, without importing it; ``None`` where it is not installed."""
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        return f"triton {importlib.metadata.version('triton')}"
    except importlib.metadata.PackageNotFoundError:
        return "triton of unknown version"


def compile_kernel(
    kernel: str,
    wanted: Specialisation,
    architecture: int,
    options: CompileOptions,
    driver_ptx: int | None,
) -> Artifact:
    """Compile one specialisation.

    Args:
        kernel: its name, for errors.
        wanted: function, types, constants and promises.
        architecture: 90 for sm_90; no such GPU is needed.
        options: cubin or PTX, and its version.
        driver_ptx: the newest PTX of the driver that will read it; ``None`` for machine code.

    Raises:
        UnsupportedError: Triton is not installed, or does not know the PTX version.
        RudaTypeError: the parameters are not those of the function.
        RudaRuntimeError: Triton refuses the kernel; its own error is the cause.
    """
    if version() is None:
        raise UnsupportedError(
            f"[{kernel}] has to be compiled, and Triton is not installed: python -m pip install "
            "'ruda-runtime[compile]', or set RUDA_BUNDLE to a bundle that has this kernel"
        )
    triton = importlib.import_module("triton")
    function: Any = load_function(wanted.function)
    names = [name for name, _ in wanted.signature]
    if not hasattr(function, "arg_names"):
        raise RudaTypeError(
            f"[{kernel}] {wanted.function} is no @triton.jit function that can be compiled; "
            "TRITON_INTERPRET must not be set in this process"
        )
    if list(function.arg_names) != names:
        raise RudaTypeError(
            f"[{kernel}] parameters: got {names}, {wanted.function} has {function.arg_names}"
        )
    settings: dict[str, Any] = {
        "num_warps": wanted.num_warps,
        "num_stages": wanted.num_stages,
        "enable_fp_fusion": _FP_FUSION,
    }
    newest = _newest_ptx(architecture)
    if options.ptx_version is not None:
        check_ptx_version(options.ptx_version, architecture, newest, driver_ptx)
        settings["ptx_version"] = options.ptx_version
    elif driver_ptx is not None and (newest is None or driver_ptx < newest):
        settings["ptx_version"] = driver_ptx
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", architecture, 32)
    source = compiler.ASTSource(
        function,
        dict(wanted.signature),
        dict(wanted.constants),
        {(names.index(name),): [["tt.divisibility", 16]] for name in wanted.divisible},
    )
    try:
        with _own_cache():
            compiled = triton.compile(source, target=target, options=settings)
    except Exception as error:
        raise RudaRuntimeError(
            f"[{kernel}] {version()} does not compile {wanted.function} for sm_{architecture}: "
            f"{type(error).__name__}: {error}"
        ) from error
    return _artifact(compiled, wanted, architecture, options)


def _artifact(
    compiled: Any, wanted: Specialisation, architecture: int, options: CompileOptions
) -> Artifact:
    facts = compiled.metadata
    image = compiled.asm[options.image_kind]
    passed = sum(kind != "constexpr" for _, kind in wanted.signature)
    return Artifact(
        image=image.encode() if isinstance(image, str) else bytes(image),
        kind=options.image_kind,
        entry=facts.name,
        architecture=architecture,
        num_warps=facts.num_warps,
        shared_bytes=facts.shared,
        scratch_pointers=_parameter_count(compiled.asm["ptx"], facts.name) - passed,
        scratch_bytes=getattr(facts, "global_scratch_size", 0) or 0,
        profile_bytes=getattr(facts, "profile_scratch_size", 0) or 0,
        compiler=version() or "",
    )


def _parameter_count(ptx: str, entry: str) -> int:
    """Parameters of the kernel's own signature, those of the compiler included."""
    match = re.search(rf"\.entry\s+{re.escape(entry)}\s*\((.*?)\)", ptx, re.DOTALL)
    return 0 if match is None else len(re.findall(r"\.param\b", match[1]))


def _newest_ptx(architecture: int) -> int | None:
    """The newest PTX of Triton's assembler, as far as Triton says."""
    try:
        backend = importlib.import_module("triton.backends.nvidia.compiler")
        cuda = backend.get_ptxas(architecture).version
        return int(backend.ptx_get_version(cuda))
    except (AttributeError, TypeError, ValueError, RuntimeError, ModuleNotFoundError):
        return None


@functools.cache
def _scratch_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ruda-triton-")


def _own_cache() -> Any:
    """Triton's files go to a folder of this process: the runtime has a cache of its own, and the
    home directory need not be writable."""
    knobs = importlib.import_module("triton.knobs")
    scope = knobs.cache.scope()
    folder = _scratch_folder().name

    class Scope:
        def __enter__(self) -> None:
            scope.__enter__()
            knobs.cache.dir = folder

        def __exit__(self, *error: Any) -> Any:
            return scope.__exit__(*error)

    return Scope()

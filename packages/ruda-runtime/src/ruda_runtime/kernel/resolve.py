"""From the specialisation of a launch to code: bundle, memory, disk, compiler, in this order."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ruda_runtime import _native
from ruda_runtime.errors import UnsupportedError
from ruda_runtime.kernel import cache, nvrtc_compiler, settings, triton_compiler
from ruda_runtime.kernel.artifact import Artifact
from ruda_runtime.kernel.parameters import POINTERS
from ruda_runtime.kernel.settings import CompileOptions
from ruda_runtime.kernel.source import local_file
from ruda_runtime.launch import Specialisation

if TYPE_CHECKING:
    from ruda_runtime.kernel.definition import Kernel

_compiling = threading.Lock()  # Triton's compiler is not made for several threads


@dataclass(frozen=True)
class Loadable:
    """What the native side makes a plan of; see ``plan_of`` in bindings_kernel.cpp."""

    image: bytes
    image_hash: str
    entry: str
    description: str
    shared_bytes: int
    threads: int
    passed: list[int]
    promises: list[tuple[bool, bool]]
    scratch_pointers: int
    scratch_bytes: int
    profile_bytes: int


def specialise(
    kernel: Kernel, facts: list[tuple[Any, ...]], num_warps: int, num_stages: int
) -> Specialisation:
    """The specialisation of the facts that the native side found in an argument list."""
    signature, constants, divisible = [], [], []
    for parameter, (kind, *known) in zip(kernel.parameters, facts):
        constant = None
        if kind == "constant":
            constant = (parameter.name, known[0])
        elif kind == "none":
            constant = (parameter.name, None)
        elif kind == "scalar" and known[1]:
            constant = (parameter.name, 1)
        elif kind == "pointer":
            signature.append((parameter.name, POINTERS[known[0]]))
            if known[1]:
                divisible.append(parameter.name)
        else:
            signature.append((parameter.name, parameter.scalar))
            if known[0]:
                divisible.append(parameter.name)
        if constant is not None:
            constants.append(constant)
            signature.append((parameter.name, "constexpr"))
    return Specialisation(
        kernel.function, tuple(signature), tuple(constants), tuple(divisible), num_warps, num_stages
    )


def resolve(
    kernel: Kernel, facts: list[tuple[Any, ...]], num_warps: int, num_stages: int
) -> Loadable:
    """Find or make the code for one specialisation on this process's GPU."""
    wanted = specialise(kernel, facts, num_warps, num_stages)
    device = _native.cuda_device()
    major, minor = device["compute_capability"]
    found, artifact = _find(kernel, wanted, major * 10 + minor, device["driver_version"])
    return _loadable(kernel, found, artifact)


def _find(
    kernel: Kernel, wanted: Specialisation, architecture: int, driver: int
) -> tuple[Specialisation, Artifact]:
    from ruda_runtime.kernel import bundle_use

    bundle = bundle_use.current()
    if bundle is not None:
        for candidate in _weaker(kernel, wanted):
            if (artifact := bundle.find(kernel.name, candidate, architecture)) is not None:
                cache.count("bundle_hits")
                return candidate, artifact
    options = settings.read_options()
    try:
        artifact = obtain(kernel, wanted, architecture, options, driver)
    except UnsupportedError as error:
        if bundle is None or triton_compiler.version() is not None:
            raise
        raise UnsupportedError(
            f"[{kernel.name}] the bundle {bundle.path} has no code for it on sm_{architecture} "
            f"with {_words(wanted)}, and it cannot be compiled here: {error}"
        ) from error
    return wanted, artifact


def obtain(
    kernel: Kernel,
    wanted: Specialisation,
    architecture: int,
    options: CompileOptions,
    driver: int | None,
) -> Artifact:
    """A compiled kernel from memory, from disk or from the compiler.

    Args:
        driver: version of the driver that will load it; ``None`` where it is not known.
    """
    key = cache_key(kernel, wanted, architecture, options, driver)
    if (artifact := cache.from_memory(key)) is not None:
        cache.count("memory_hits")
        return artifact
    with _compiling:
        if (artifact := cache.from_memory(key)) is not None:
            cache.count("memory_hits")
            return artifact
        artifact = cache.from_disk(key)
        if artifact is not None:
            cache.count("disk_hits")
        else:
            artifact = _compile(kernel, wanted, architecture, options, driver)
            cache.count("compiled")
            cache.to_disk(key, artifact)
        cache.keep_in_memory(key, artifact)
    return artifact


def cache_key(
    kernel: Kernel,
    wanted: Specialisation,
    architecture: int,
    options: CompileOptions,
    driver: int | None,
) -> str:
    """Everything that the machine code depends on, as text."""
    cuda = kernel.cuda_source_for(options)
    reads_ptx = options.image_kind == "ptx" and driver is not None
    if cuda is not None:
        compiler = nvrtc_compiler.version(kernel.name)
    else:
        compiler = triton_compiler.version() or ""
    return json.dumps({
        "source": kernel.source_hash(options),
        "specialisation": wanted,
        "architecture": architecture,
        "compiler": compiler,
        "image": options.image_kind,
        "ptx": options.ptx_version,
        "driver_ptx": settings.driver_ptx_version(driver) if driver and reads_ptx else None,
    }, sort_keys=True)  # fmt: skip


def _compile(
    kernel: Kernel,
    wanted: Specialisation,
    architecture: int,
    options: CompileOptions,
    driver: int | None,
) -> Artifact:
    if (cuda := kernel.cuda_source_for(options)) is not None:
        return nvrtc_compiler.compile_kernel(kernel.name, cuda, wanted, architecture, options)
    if options.compiler == "nvrtc":
        raise UnsupportedError(
            f"[{kernel.name}] RUDA_CUDA_COMPILER=nvrtc compiles CUDA C++, and this kernel is "
            "written in Triton only: unset the variable"
        )
    reads_ptx = options.image_kind == "ptx" and driver is not None
    driver_ptx = settings.driver_ptx_version(driver) if driver and reads_ptx else None
    return triton_compiler.compile_kernel(kernel.name, wanted, architecture, options, driver_ptx)


def _weaker(kernel: Kernel, wanted: Specialisation) -> Iterator[Specialisation]:
    """The specialisation itself, then those that promise less: their code is right as well."""
    yield wanted
    if wanted.divisible:
        yield wanted._replace(divisible=())
    ones = {
        parameter.name: parameter.scalar
        for parameter in kernel.parameters
        if parameter.one and (parameter.name, 1) in wanted.constants
    }
    if ones:
        yield wanted._replace(
            signature=tuple((name, ones.get(name, kind)) for name, kind in wanted.signature),
            constants=tuple(item for item in wanted.constants if item[0] not in ones),
            divisible=(),
        )


def _words(wanted: Specialisation) -> str:
    types = ", ".join(f"{name}: {kind}" for name, kind in wanted.signature if kind != "constexpr")
    constants = ", ".join(f"{name}={value}" for name, value in wanted.constants)
    return f"({types}), {constants}, {wanted.num_warps} warps, {wanted.num_stages} stages"


def _loadable(kernel: Kernel, found: Specialisation, artifact: Artifact) -> Loadable:
    kinds = [kind for _, kind in found.signature]
    constants = dict(found.constants)
    description = {
        "image": artifact.image_hash,
        "entry": artifact.entry,
        "name": kernel.name,
        "function": kernel.function,
        "source": local_file(kernel.function),
        "parameters": [
            {
                "name": name,
                "type": kind,
                **({"value": constants[name]} if name in constants else {}),
            }
            for name, kind in found.signature
        ],
        "divisible_by_16": list(found.divisible),
        "scratch_pointers": artifact.scratch_pointers,
        "num_warps": artifact.num_warps,
        "threads_per_warp": 32,
        "shared": artifact.shared_bytes,
    }
    promised_ones = {
        parameter.name for parameter in kernel.parameters if parameter.one
    } & constants.keys()
    return Loadable(
        image=artifact.image,
        image_hash=artifact.image_hash,
        entry=artifact.entry,
        description=json.dumps(description),
        shared_bytes=artifact.shared_bytes,
        threads=artifact.num_warps * 32,
        passed=[index for index, kind in enumerate(kinds) if kind != "constexpr"],
        promises=[(name in found.divisible, name in promised_ones) for name, _ in found.signature],
        scratch_pointers=artifact.scratch_pointers,
        scratch_bytes=artifact.scratch_bytes,
        profile_bytes=artifact.profile_bytes,
    )

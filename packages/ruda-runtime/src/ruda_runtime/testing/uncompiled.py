"""Kernels without machine code, for the driver double, which executes none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ruda_runtime import _native
from ruda_runtime.kernel import defined_kernels, resolve
from ruda_runtime.kernel.artifact import Artifact
from ruda_runtime.launch import Specialisation
from ruda_runtime.testing.double import load_driver_double

__all__ = ["launch_uncompiled"]


def launch_uncompiled(note: Callable[[Specialisation], None] | None = None) -> None:
    """From now on, give kernels empty code instead of compiling them.

    The double interprets what the code would have been made from, in a fraction of the time that
    compiling takes. What only a compiler finds stays unseen: kernels need tests of their own there.

    Args:
        note: called with every specialisation at its first launch.

    Raises:
        DeviceError: a CUDA driver that is not the double is loaded already.
    """
    load_driver_double()
    number = 0

    def plan(name: str, facts: list[tuple[Any, ...]], warps: int, stages: int) -> Any:
        nonlocal number
        number += 1
        (kernel,) = (each for each in defined_kernels() if each.name == name)
        wanted = resolve.specialise(kernel, facts, warps, stages)
        if note is not None:
            note(wanted)
        return resolve._loadable(kernel, wanted, _empty_code(number, wanted))

    _native.set_plan_resolver(plan)


def _empty_code(number: int, wanted: Specialisation) -> Artifact:
    passed = sum(kind != "constexpr" for _, kind in wanted.signature)
    parameters = ", ".join(f".param .u64 p{i}" for i in range(passed))
    text = f"// {number}\n.version 8.0\n.target sm_90\n.address_size 64\n"
    text += f".visible .entry empty({parameters})\n{{\n ret;\n}}\n"
    return Artifact(
        image=text.encode(), kind="ptx", entry="empty", architecture=90,
        num_warps=wanted.num_warps, shared_bytes=0, scratch_pointers=0, scratch_bytes=0,
        profile_bytes=0, compiler="none",
    )  # fmt: skip

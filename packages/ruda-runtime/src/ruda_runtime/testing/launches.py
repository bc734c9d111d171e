"""What entries in C++ launch on the cuda target beside what their ``launch.py`` says.

For a process on the driver double with ``RUDA_DOUBLE_RECORD_ONLY=1``. Every specialisation is
"compiled" to an empty kernel and noted, and the double counts launches and their grids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from ruda_runtime import Tensor, _native, empty
from ruda_runtime.kernel import defined_kernels, discover, resolve
from ruda_runtime.kernel.artifact import Artifact
from ruda_runtime.launch import Launch, Specialisation, View, contiguous_view
from ruda_runtime.testing.double import counters, load_driver_double

__all__ = ["differences", "scratch", "shifted", "upload", "view"]


def view(tensor: Tensor | None) -> Any:
    """The ``View`` of a tensor; None stays None."""
    if tensor is None:
        return None
    return View(tensor.data_ptr, tensor.dtype_name, tuple(tensor.shape), tuple(tensor.strides))


def scratch(shape: tuple[int, ...], dtype: str) -> View:
    """Memory as the pool hands it out: aligned."""
    return contiguous_view(0, dtype, shape)


def upload(table: Sequence[int]) -> View:
    """A table of addresses and numbers in device memory."""
    return scratch((len(table),), "int64")


def shifted(shape: Sequence[int], dtype: str) -> Tensor:
    """A contiguous tensor one element behind an aligned address."""
    return empty((prod(shape) + 1,), dtype).slice(0, 1, None).view(*shape)


def differences(calls: Iterable[list[Launch]]) -> list[str]:
    """Texts that say where entries and ``launch.py`` differ; empty where they agree.

    Args:
        calls: a generator that calls an entry (or several) and then yields what ``launch.py`` says
            of that call. Dtypes, constants (block sizes among them), promised alignment, warps and
            stages are compared for all calls together, the number of launches and the sums of
            their grids' extents call by call.
    """
    used: list[Specialisation] = []
    wanted: dict[Specialisation, None] = {}
    found = []

    def note(name: str, facts: list[tuple[Any, ...]], warps: int, stages: int) -> Any:
        (kernel,) = (each for each in defined_kernels() if each.name == name)
        asked = resolve.specialise(kernel, facts, warps, stages)
        used.append(asked)
        return resolve._loadable(kernel, asked, _empty_kernel(len(used), asked))

    load_driver_double()
    discover()
    _native.set_plan_resolver(note)
    before = _grids()
    for number, said in enumerate(calls):
        launches = [each for each in said if 0 not in each.grid]  # those without programs are none
        wanted |= dict.fromkeys(launch.specialisation() for launch in launches)
        after = _grids()
        made = tuple(new - old for new, old in zip(after, before))
        said = (
            len(launches),
            *(sum(launch.grid[axis] for launch in launches) for axis in range(3)),
        )
        if made != said:
            names = [launch.definition.name for launch in launches]
            found.append(
                f"call {number} {names}: launches and grids {made} in C++, {said} in Python"
            )
        before = after
    if not wanted:
        found.append("nothing was launched")
    ours, theirs = ({repr(each) for each in some} for some in (used, wanted))  # 1 is not True
    found += [f"launch.py only: {each}" for each in sorted(theirs - ours)]
    return found + [f"C++ only: {each}" for each in sorted(ours - theirs)]


def _grids() -> tuple[int, ...]:
    now = counters()
    return tuple(now[name] for name in ("launches", "grid_x", "grid_y", "grid_z"))


def _empty_kernel(number: int, wanted: Specialisation) -> Artifact:
    passed = sum(kind != "constexpr" for _, kind in wanted.signature)
    parameters = ", ".join(f".param .u64 p{i}" for i in range(passed))
    text = f"// {number}\n.version 8.0\n.target sm_90\n.address_size 64\n"
    text += f".visible .entry empty({parameters})\n"
    return Artifact(
        image=(text + "{\n ret;\n}\n").encode(), kind="ptx", entry="empty", architecture=90,
        num_warps=wanted.num_warps, shared_bytes=0, scratch_pointers=0, scratch_bytes=0,
        profile_bytes=0, compiler="none",
    )  # fmt: skip

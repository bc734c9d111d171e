"""What entries in C++ launch on the cuda target beside what their ``launch.py`` says.

For a process on the driver double, with ``RUDA_DOUBLE_RECORD_ONLY=1`` unless an entry reads back
what its kernels compute. Every specialisation is "compiled" to an empty kernel and noted, and the
double counts launches and their grids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from ruda_runtime import Tensor, empty
from ruda_runtime.kernel import discover
from ruda_runtime.launch import Launch, Specialisation, View, contiguous_view
from ruda_runtime.testing.double import counters
from ruda_runtime.testing.uncompiled import launch_uncompiled

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

    launch_uncompiled(used.append)
    discover()
    before = _grids()
    for number, listed in enumerate(calls):
        launches = [
            each for each in listed if 0 not in each.grid
        ]  # those without programs are none
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

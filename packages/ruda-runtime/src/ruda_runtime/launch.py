"""Launches of device kernels as data: which kernel, on which grid, with which arguments.

An operator's ``launch.py`` turns the views of one call into a list of ``Launch``; the runtime
compiles or finds each kernel and submits it. Nothing here imports a compiler, so that a process
with a bundle needs none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["POINTER_TYPES", "Allocate", "Definition", "Launch", "Specialisation", "View",
           "ceil_div", "contiguous_view", "next_power_of_two", "specialisations"]  # fmt: skip

POINTER_TYPES = {
    "float32": "*fp32",
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "float64": "*fp64",
    "int8": "*i8",
    "int16": "*i16",
    "int32": "*i32",
    "int64": "*i64",
    "uint8": "*u8",
    "uint32": "*u32",
    "bool": "*u8",
}
"""Triton's pointer type of a dtype; a bool is read as its byte."""

_ITEM_SIZES = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "uint32": 4, "float16": 2, "bfloat16": 2,
    "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


class View(NamedTuple):
    """Device memory as an operator sees it; strides in elements."""

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def offset(self, elements: int) -> View:
        """The same view, ``elements`` further on in memory."""
        return self._replace(pointer=self.pointer + elements * _ITEM_SIZES[self.dtype])


Allocate = Callable[[tuple[int, ...], str], View]
"""Scratch memory of a shape and dtype, contiguous, alive until the launches are done."""


def contiguous_view(pointer: int, dtype: str, shape: tuple[int, ...]) -> View:
    """A view of row-major memory."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return View(pointer, dtype, tuple(shape), tuple(strides))


def ceil_div(value: int, by: int) -> int:
    return -(-value // by)


def next_power_of_two(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


class Specialisation(NamedTuple):
    """What a compiler needs of a launch: one machine code for one of these and an architecture."""

    function: str
    signature: tuple[tuple[str, str], ...]
    """Parameter to Triton type, in order; "constexpr" for constants."""
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[str, ...]
    """Parameters promised to be multiples of 16."""
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Definition:
    """A ``@triton.jit`` function by name and the types of its parameters, in its order.

    ``parameters`` maps a name to: "*" and the pointer types it may have ("*fp32|fp16|bf16"), with
    "?" at the end where it may be absent (None); a scalar type, with "%16" where a multiple of 16
    is passed on to the compiler, "=1" where the value 1 becomes a constant, or both ("i64%16=1");
    or "constexpr".
    """

    name: str
    function: str
    parameters: Mapping[str, str]

    def __call__(
        self,
        grid: tuple[int, ...],
        *,
        num_warps: int = 4,
        num_stages: int = 2,
        **values: Any,
    ) -> Launch:
        if values.keys() != self.parameters.keys():
            missing = sorted(self.parameters.keys() - values.keys())
            unknown = sorted(values.keys() - self.parameters.keys())
            raise TypeError(f"[{self.name}] arguments: missing {missing}, unknown {unknown}")
        x, y, z = (*grid, 1, 1)[:3]
        ordered = {name: values[name] for name in self.parameters}
        return Launch(self, (x, y, z), ordered, num_warps, num_stages)


@dataclass(frozen=True)
class Launch:
    """One kernel launch; ``values`` holds a ``View``, number or None for every parameter."""

    definition: Definition
    grid: tuple[int, int, int]
    values: Mapping[str, Any] = field(hash=False)
    num_warps: int = 4
    num_stages: int = 2

    def specialisation(self) -> Specialisation:
        """Alignment is promised for all pointers and "%16" numbers together or for none: two
        machine codes, not one for every mixture."""
        signature, constants, candidates, aligned = [], [], [], True
        for name, kind in self.definition.parameters.items():
            value = self.values[name]
            if kind.startswith("*") and value is not None:
                pointer = POINTER_TYPES[value.dtype]
                allowed = kind.removeprefix("*").removesuffix("?").split("|")
                if allowed != [""] and pointer[1:] not in allowed:
                    raise TypeError(f"[{self.definition.name}] {name}: got {value.dtype}")
                signature.append((name, pointer))
                candidates.append(name)
                aligned &= value.pointer % 16 == 0
                continue
            constant = (
                kind == "constexpr"
                or (value is None and kind.endswith("?"))
                or ("=1" in kind and value == 1)
            )
            signature.append((name, "constexpr" if constant else kind.split("%")[0].split("=")[0]))
            if constant:
                constants.append((name, value))
            elif "%16" in kind:
                candidates.append(name)
                aligned &= value % 16 == 0
        return Specialisation(
            self.definition.function, tuple(signature), tuple(constants),
            tuple(candidates) if aligned else (), self.num_warps, self.num_stages,
        )  # fmt: skip


def specialisations(launches: Iterable[Launch]) -> list[Specialisation]:
    """What these launches need compiled, each once, in order."""
    return list(dict.fromkeys(launch.specialisation() for launch in launches))

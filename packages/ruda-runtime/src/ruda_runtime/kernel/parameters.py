"""The language in which a kernel's parameters are declared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ruda_runtime.errors import RudaValueError
from ruda_runtime.launch import POINTER_TYPES, Specialisation

DTYPES = (
    "float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64", "uint8",
    "uint32", "bool",
)  # fmt: skip
"""In the order of enum ruda_dtype."""

POINTERS = POINTER_TYPES

_SCALARS = {
    "i1": ("boolean", 1, True), "i8": ("integer", 8, True), "i16": ("integer", 16, True),
    "i32": ("integer", 32, True), "i64": ("integer", 64, True), "u8": ("integer", 8, False),
    "u16": ("integer", 16, False), "u32": ("integer", 32, False), "u64": ("integer", 64, False),
    "fp32": ("real", 32, True), "fp64": ("real", 64, True),
}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """One parameter of a device kernel.

    Attributes:
        name: as in the function's signature.
        type: ``"pointer"``, ``"integer"``, ``"real"``, ``"boolean"`` or ``"constant"``.
        scalar: Triton's type of a scalar, ``""`` for others.
        bits, signed: of a scalar.
        dtypes: what a pointer may point to.
        optional: whether a pointer may be absent (``None``).
        divisible: whether divisibility by 16 is told to the compiler (pointers always).
        one: whether the value 1 becomes a constant.
    """

    name: str
    type: str
    scalar: str = ""
    bits: int = 64
    signed: bool = True
    dtypes: tuple[str, ...] = ()
    optional: bool = False
    divisible: bool = False
    one: bool = False

    def native(self) -> tuple[object, ...]:
        """The fields as ``_native.DeviceKernel`` takes them."""
        allowed = sum(1 << DTYPES.index(dtype) for dtype in self.dtypes)
        return (self.name, self.type, self.bits, self.signed, allowed, self.optional,
                self.divisible, self.one)  # fmt: skip


def parse_parameters(kernel: str, declared: Mapping[str, str]) -> tuple[Parameter, ...]:
    """Parse the declarations of ``ruda_runtime.launch.Definition``.

    Raises:
        RudaValueError: a declaration that the language does not have.
    """
    return tuple(_parse(kernel, name, text) for name, text in declared.items())


def allows(parameters: tuple[Parameter, ...], wanted: Specialisation) -> bool:
    """Whether a kernel with these parameters can have the specialisation."""
    constants = dict(wanted.constants)
    if [name for name, _ in wanted.signature] != [each.name for each in parameters]:
        return False
    may_be_divisible = []
    for parameter, (name, kind) in zip(parameters, wanted.signature):
        if kind == "constexpr":
            if not _allows_constant(parameter, constants[name]):
                return False
        elif parameter.type == "pointer":
            if kind not in {POINTERS[dtype] for dtype in parameter.dtypes}:
                return False
            may_be_divisible.append(name)
        elif kind != parameter.scalar:
            return False
        elif parameter.divisible:
            may_be_divisible.append(name)
    # Promised for all or for none.
    return not wanted.divisible or list(wanted.divisible) == may_be_divisible


def _allows_constant(parameter: Parameter, value: object) -> bool:
    if parameter.type == "pointer":
        return parameter.optional and value is None
    return parameter.type == "constant" or (parameter.one and value == 1)


def _parse(kernel: str, name: str, text: str) -> Parameter:
    if text == "constexpr":
        return Parameter(name, "constant")
    if text.startswith("*"):
        listed = text[1:].removesuffix("?")
        wanted = {f"*{each}" for each in listed.split("|")} if listed else set(POINTERS.values())
        dtypes = tuple(dtype for dtype in DTYPES if POINTERS[dtype] in wanted)
        if not wanted - set(POINTERS.values()):
            return Parameter(name, "pointer", dtypes=dtypes, optional=text.endswith("?"))
    else:
        match = re.fullmatch(r"([a-z]+\d+)((?:%16|=1)*)", text)
        if match is not None and match[1] in _SCALARS:
            kind, bits, signed = _SCALARS[match[1]]
            divisible, one = "%16" in match[2], "=1" in match[2]
            if kind == "integer" or not match[2]:
                return Parameter(name, kind, match[1], bits, signed, divisible=divisible, one=one)
    raise RudaValueError(
        f"[{kernel}] {name}: got the declaration {text!r}, wanted '*' with pointer types "
        "('*fp32|bf16', '?' at the end if it may be None), a scalar type "
        f"({', '.join(_SCALARS)}; integers may end in '%16' and '=1'), or 'constexpr'"
    )

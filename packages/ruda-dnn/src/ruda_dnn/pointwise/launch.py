"""Grids of the pointwise kernels.

Every dtype and layout is covered: tensors that are dense in the same order by `pointwise.flat`,
others by `pointwise.strided`, a launch for every index of the dimensions beyond six.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from ruda_runtime.launch import (
    Definition,
    Launch,
    Specialisation,
    View,
    ceil_div,
    contiguous_view,
    specialisations,
)

_KERNELS = "ruda_dnn.pointwise.kernels"
_TENSORS = {"out": "*", "a": "*?", "b": "*?", "c": "*?"}
_NUMBERS = {f"{name}_bits": "i64" for name in "abcde"}
_CONSTANTS = {"OP": "constexpr", "OPERANDS": "constexpr", "TYPE": "constexpr", "OUT": "constexpr"}

RANK = 6
BLOCK = 1024

FLAT = Definition(
    "pointwise.flat",
    f"{_KERNELS}:flat",
    {**_TENSORS, **_NUMBERS, "count": "i64%16", **_CONSTANTS, "BLOCK": "constexpr"},
)
STRIDED = Definition(
    "pointwise.strided",
    f"{_KERNELS}:strided",
    {
        **_TENSORS,
        **_NUMBERS,
        "count": "i64",
        **{f"size{axis}": "i64" for axis in range(RANK - 1)},
        **{f"{name}{axis}": "i64" for name in ("out", "a", "b", "c") for axis in range(RANK)},
        **_CONSTANTS,
        "RANK": "constexpr",
        "WIDE": "constexpr",
        "BLOCK": "constexpr",
    },
)

UNARY = (
    "copy", "neg", "abs", "sign", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt",
    "rsqrt", "reciprocal", "sin", "cos", "tan", "tanh", "sigmoid", "erf", "ceil", "floor", "round",
    "trunc", "bitwise_not", "logical_not", "isnan", "isinf", "isfinite", "relu", "silu", "mish",
    "gelu", "gelu_tanh", "square", "cube", "inverse_square", "frac",
    "log_sigmoid", "isposinf", "isneginf", "sinh", "cosh", "hardsigmoid", "hardswish",
)  # fmt: skip
BINARY = (
    "add", "sub", "mul", "div", "div_trunc", "div_floor", "remainder", "fmod", "pow", "maximum",
    "minimum", "fmax", "fmin", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
    "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
    "leaky_relu", "mse", "silu_backward", "mish_backward", "gelu_backward", "gelu_tanh_backward",
    "sigmoid_backward", "tanh_backward", "log_sigmoid_backward",
    "glu", "round_to", "round_from", "copysign", "logit", "xlogy", "logaddexp", "hardshrink",
    "softshrink", "cross_entropy", "hardsigmoid_backward", "hardswish_backward",
    "slope_backward", "arange",
)  # fmt: skip
MORE = {
    "add_scaled": 3, "where": 3, "where_not": 3, "clamp": 3, "lerp": 3, "addcmul": 4, "addcdiv": 4,
    "threshold": 4, "softplus": 3, "softplus_backward": 4, "elu": 4, "elu_backward": 5,
    "elu_backward_of_result": 5, "leaky_relu_backward": 3, "hardtanh_backward": 4,
    "mse_backward": 4, "nan_to_num": 4, "glu_backward": 3, "logit_backward": 3,
    "shrink_backward": 3, "smooth_l1": 3,
    "smooth_l1_backward": 5, "huber": 3, "huber_backward": 5, "cross_entropy_backward": 3,
}  # fmt: skip
OPERANDS = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2), **MORE}
"""The operators, and how many operands each has: the first three may be tensors."""

Operand = View | int | float
_BITS = {
    "float64": "int64", "int64": "int64", "float32": "int32", "int32": "int32", "uint32": "int32",
    "float16": "int16", "bfloat16": "int16", "int16": "int16", "int8": "uint8", "uint8": "uint8",
    "bool": "uint8",
}  # fmt: skip
_FLOATING = ("float32", "float16", "bfloat16", "float64")


def bits(number: float, dtype: str) -> int:
    """A number as the kernels take it in arithmetic of a dtype."""
    if dtype in _FLOATING:
        return int(struct.unpack("<q", struct.pack("<d", number))[0])
    return int(number)


def pointwise(op: str, dtype: str, out: View, *operands: Operand) -> list[Launch]:
    """out = op(operands): tensors of the shape of out, with any strides, or numbers.

    dtype is that of the arithmetic: operands are converted to it, and its result to that of out.
    """
    if len(operands) != OPERANDS[op]:
        raise TypeError(f"[{op}] got {len(operands)} operands, wanted {OPERANDS[op]}")
    if out.size == 0:
        return []
    tensors: list[View | None] = [each if isinstance(each, View) else None for each in operands[:3]]
    tensors += [None] * (3 - len(tensors))
    numbers = [0 if isinstance(each, View) else bits(each, dtype) for each in operands]
    numbers += [0] * (5 - len(numbers))
    common: dict[str, Any] = {
        **{f"{name}_bits": number for name, number in zip("abcde", numbers)},
        "OP": op, "OPERANDS": OPERANDS[op], "TYPE": dtype, "OUT": out.dtype, "BLOCK": BLOCK,
    }  # fmt: skip
    sizes, strides = coalesced(out, tensors)
    if len(sizes) == 1 and all(steps[0] == 1 for steps in strides if steps is not None):
        a, b, c = tensors
        grid = (ceil_div(out.size, BLOCK),)
        return [FLAT(grid, out=out, a=a, b=b, c=c, count=out.size, **common)]
    return [
        _strided(views, sizes, strides, common)
        for views in _outermost([out, *tensors], sizes, strides)
    ]


def copy(target: View, source: View) -> list[Launch]:
    """target = source, converted; within a dtype, bits are moved."""
    if target.dtype != source.dtype:
        return pointwise("copy", source.dtype, target, source)
    dtype = _BITS[target.dtype]
    return pointwise("copy", dtype, target._replace(dtype=dtype), source._replace(dtype=dtype))


def coalesced(
    out: View, tensors: Sequence[View | None]
) -> tuple[list[int], list[list[int] | None]]:
    """Sizes and the strides of out and the tensors, innermost first, neighbours joined."""
    views = [out, *tensors]
    order = sorted(range(len(out.shape)), key=lambda axis: (out.strides[axis], -axis))
    sizes: list[int] = []
    strides: list[list[int] | None] = [None if view is None else [] for view in views]
    for axis in order:
        size = out.shape[axis]
        if size == 1:
            continue
        steps = [None if view is None else view.strides[axis] for view in views]
        if sizes and all(
            step is None or known is None or step == known[-1] * sizes[-1]
            for step, known in zip(steps, strides)
        ):
            sizes[-1] *= size
            continue
        sizes.append(size)
        for step, known in zip(steps, strides):
            if known is not None and step is not None:
                known.append(step)
    if not sizes:
        return [1], [None if view is None else [1] for view in views]
    return sizes, strides


def _outermost(
    views: Sequence[View | None], sizes: Sequence[int], strides: Sequence[list[int] | None]
) -> Iterator[list[View | None]]:
    """The tensors at every index of the dimensions beyond RANK."""
    for index in itertools.product(*(range(size) for size in sizes[RANK:])):
        yield [
            view
            if view is None or known is None
            else view.offset(sum(i * step for i, step in zip(index, known[RANK:])))
            for view, known in zip(views, strides)
        ]


def _strided(
    views: Sequence[View | None],
    sizes: Sequence[int],
    strides: Sequence[list[int] | None],
    common: dict[str, Any],
) -> Launch:
    """The outermost dimension is the last of the kernel's six: the others are 1 in between."""
    inner, outer = sizes[: min(len(sizes), RANK) - 1], len(sizes[:RANK]) - 1
    rank = 2 if outer < 2 else 4 if outer < 4 else RANK
    count = math.prod(sizes[:RANK])
    padded = [*inner, *[1] * (RANK - 1 - len(inner))]
    values: dict[str, int] = {f"size{axis}": size for axis, size in enumerate(padded)}
    for name, known in zip(("out", "a", "b", "c"), strides):
        steps = [0] * RANK if known is None else [*known[:outer], *[0] * (5 - outer), known[outer]]
        values |= {f"{name}{axis}": step for axis, step in enumerate(steps)}
    out, a, b, c = views
    return STRIDED((ceil_div(count, BLOCK),), out=out, a=a, b=b, c=c, count=count, **values,
                   **common, RANK=rank, WIDE=count > 2**31 - 1)  # fmt: skip


_TRAINING = (
    "neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "sigmoid",
    "square", "relu", "silu", "gelu", "gelu_tanh", "add", "sub", "mul", "div", "pow", "maximum",
    "minimum",
    "silu_backward", "gelu_backward", "gelu_tanh_backward", "sigmoid_backward", "tanh_backward",
    "add_scaled", "clamp", "lerp", "addcmul", "addcdiv", "threshold",
)  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_WITH_LAYOUTS = ("add", "mul", "div", "sub")


def bundle() -> list[Specialisation]:
    """What a bundle must contain: what models and their training call; the rest is compiled at its
    first call."""
    wide, odd = (64, 16), (9, 7)
    launches: list[Launch] = []

    def add(op: str, dtype: str, out: str, *operands: str | float, layouts: bool = False) -> None:
        for extent in (wide, odd):
            target = contiguous_view(0, out, extent)
            given = [
                contiguous_view(0, each, extent) if isinstance(each, str) else each
                for each in operands
            ]
            launches.extend(pointwise(op, dtype, target, *given))
        if layouts:
            for dense in ((5, 7), (3, 4, 5, 7)):
                swapped = contiguous_view(0, "", dense)
                axes = (*range(1, len(dense)), 0)
                shape = tuple(dense[axis] for axis in axes)
                steps = tuple(2 * swapped.strides[axis] for axis in axes)
                target = contiguous_view(0, out, shape)
                given = [
                    View(0, each, shape, steps) if isinstance(each, str) else each
                    for each in operands
                ]
                launches.extend(pointwise(op, dtype, target, *given))

    for dtype in ("float32", "float16", "bfloat16"):
        for op in _TRAINING:
            count = OPERANDS[op]
            tensors = min(count, 1 if op in ("clamp", "pow") else 2 if count > 2 else count)
            if op in ("addcmul", "addcdiv"):
                tensors = 3
            layouts = op in _WITH_LAYOUTS
            add(op, dtype, dtype, *[dtype] * tensors, *[1.0] * (count - tensors), layouts=layouts)
            if op in ("add", "sub", "mul", "div", "maximum", "minimum"):
                add(op, dtype, dtype, dtype, 1.0)
        add("where", dtype, dtype, "bool", dtype, dtype, layouts=True)
        add("where_not", dtype, dtype, "bool", dtype, 1.0, layouts=True)
        for source in ("float32", "float16", "bfloat16", "int64", "bool"):
            if source != dtype:
                add("copy", source, dtype, source, layouts=True)
        for op in _COMPARISONS:
            add(op, dtype, "bool", dtype, 1.0)
    for dtype in ("float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"):
        add("copy", dtype, dtype, 1.0)
    for dtype in ("int64", "int32", "int16", "uint8"):
        add("copy", dtype, dtype, dtype, layouts=True)
    for op in _COMPARISONS:
        add(op, "int64", "bool", "int64", 1, layouts=True)
        add(op, "int64", "bool", "int64", "int64", layouts=True)
    for op in ("add", "sub", "mul"):
        add(op, "int64", "int64", "int64", 1)
        add(op, "int64", "int64", "int64", "int64")
    for op in ("bitwise_and", "bitwise_or"):
        add(op, "bool", "bool", "bool", "bool", layouts=True)
    add("logical_not", "bool", "bool", "bool")
    add("arange", "int64", "int64", 0, 1)
    return specialisations(launches)

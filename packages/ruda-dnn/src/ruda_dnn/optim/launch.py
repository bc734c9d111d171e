"""Grids of the optimiser kernels, and the tables that name their tensors.

Everything that the entries accept is covered. Tensors of one dtype share a launch; results on the
host (the norm, whether all is finite) are written to device memory, for the caller to copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ruda_runtime.launch import (
    Allocate,
    Definition,
    Launch,
    Specialisation,
    View,
    ceil_div,
    contiguous_view,
    specialisations,
)

_KERNELS = "ruda_dnn.optim.kernels"
_TABLE = {"table": "*i64", "tensors": "i32"}

ADAMW = Definition(
    "adamw.step",
    f"{_KERNELS}:adamw",
    {**_TABLE, "decay": "fp32", "beta1": "fp32", "one_minus_beta1": "fp32", "beta2": "fp32",
     "one_minus_beta2": "fp32", "step_size": "fp32", "correction": "fp32", "epsilon": "fp32",
     "gradient_scale": "fp32", "PARAMETER": "constexpr", "GRADIENT": "constexpr",
     "MASTER": "constexpr", "ALIGNED": "constexpr", "CHUNK": "constexpr"},
)  # fmt: skip
UNSCALE = Definition(
    "gradient.unscale",
    f"{_KERNELS}:unscale",
    {**_TABLE, "scale": "fp32", "flags": "*i32", "KIND": "constexpr", "WRITE": "constexpr",
     "ALIGNED": "constexpr", "CHUNK": "constexpr", "BLOCK": "constexpr"},
)  # fmt: skip
SQUARE_SUMS = Definition(
    "gradient.square_sums",
    f"{_KERNELS}:square_sums",
    {**_TABLE, "scale": "fp32", "sums": "*fp64", "KIND": "constexpr", "ALIGNED": "constexpr",
     "CHUNK": "constexpr", "BLOCK": "constexpr"},
)  # fmt: skip
FLAGS = Definition(
    "gradient.all_flags",
    f"{_KERNELS}:all_flags",
    {"flags": "*i32", "chunks": "i32", "finite": "*i32", "BLOCK": "constexpr"},
)
NORM = Definition(
    "gradient.norm_of_sums",
    f"{_KERNELS}:norm_of_sums",
    {"sums": "*fp64", "chunks": "i32", "norm": "*fp64", "finite": "*i32", "BLOCK": "constexpr"},
)

ADAMW_CHUNK = 1024
GRADIENT_CHUNK = 16384
BLOCK = 1024

Upload = Callable[[Sequence[int]], View]
"""Puts int64 numbers into device memory that lives until the launches are done."""


def _tables(
    rows: Iterable[tuple[tuple[str, ...], int, tuple[View | None, ...]]], chunk: int
) -> list[tuple[tuple[str, ...], list[int], int, int, bool]]:
    """Rows (kind, count, memory) by kind and alignment: kind, table, tensors, chunks, aligned."""
    groups: dict[tuple[tuple[str, ...], bool], list[list[int]]] = {}
    for kind, count, memory in rows:
        if count > 0:
            numbers = [count, *(0 if view is None else view.pointer for view in memory)]
            aligned = all(number % 16 == 0 for number in numbers)
            groups.setdefault((kind, aligned), []).append(numbers)
    result = []
    for (kind, aligned), members in groups.items():
        table: list[int] = []
        chunks = 0
        for numbers in members:
            table += [chunks, *numbers]
            chunks += ceil_div(numbers[0], chunk)
        result.append((kind, table, len(members), chunks, aligned))
    return result


def adamw_step(
    parameters: Sequence[View], gradients: Sequence[View], masters: Sequence[View | None],
    first_moments: Sequence[View], second_moments: Sequence[View], *, step: int,
    learning_rate: float, beta1: float, beta2: float, epsilon: float, weight_decay: float,
    gradient_scale: float, upload: Upload,
) -> list[Launch]:  # fmt: skip
    """The launches of "adamw.step". Scalars are computed in float64 and rounded once."""
    rows = [
        ((p.dtype, g.dtype, "" if m is None else "master"), p.size, (p, g, m, one, two))
        for p, g, m, one, two in zip(
            parameters, gradients, masters, first_moments, second_moments, strict=True
        )
    ]
    return [
        ADAMW((chunks,), table=upload(table), tensors=tensors,
              decay=1.0 - learning_rate * weight_decay, beta1=beta1, one_minus_beta1=1.0 - beta1,
              beta2=beta2, one_minus_beta2=1.0 - beta2,
              step_size=learning_rate / (1.0 - beta1**step),
              correction=math.sqrt(1.0 - beta2**step), epsilon=epsilon,
              gradient_scale=gradient_scale, PARAMETER=kind[0], GRADIENT=kind[1],
              MASTER=kind[2] == "master", ALIGNED=aligned, CHUNK=ADAMW_CHUNK)
        for kind, table, tensors, chunks, aligned in _tables(rows, ADAMW_CHUNK)
    ]  # fmt: skip


def unscale(
    gradients: Sequence[View], scale: float, finite: View, upload: Upload, scratch: Allocate
) -> list[Launch]:
    """The launches of "gradient.unscale"; finite int32[1] gets 1 or 0."""
    groups = _tables((((g.dtype,), g.size, (g,)) for g in gradients), GRADIENT_CHUNK)
    total = sum(chunks for *_, chunks, _ in groups)
    flags = scratch((max(total, 1),), "int32")
    launches, before = [], 0
    for (kind,), table, tensors, chunks, aligned in groups:
        launches.append(
            UNSCALE((chunks,), table=upload(table), tensors=tensors, scale=scale,
                    flags=flags.offset(before), KIND=kind, WRITE=scale != 1.0, ALIGNED=aligned,
                    CHUNK=GRADIENT_CHUNK, BLOCK=BLOCK)
        )  # fmt: skip
        before += chunks
    return [*launches, FLAGS((1,), flags=flags, chunks=total, finite=finite, BLOCK=BLOCK)]


def gradient_norm(
    gradients: Sequence[View], scale: float, norm: View, finite: View, upload: Upload,
    scratch: Allocate,
) -> list[Launch]:  # fmt: skip
    """The launches of "gradient.norm"; norm float64[1], finite int32[1]."""
    groups = _tables((((g.dtype,), g.size, (g,)) for g in gradients), GRADIENT_CHUNK)
    total = sum(chunks for *_, chunks, _ in groups)
    sums = scratch((max(total, 1),), "float64")
    launches, before = [], 0
    for (kind,), table, tensors, chunks, aligned in groups:
        launches.append(
            SQUARE_SUMS((chunks,), table=upload(table), tensors=tensors, scale=scale,
                        sums=sums.offset(before), KIND=kind, ALIGNED=aligned,
                        CHUNK=GRADIENT_CHUNK, BLOCK=BLOCK)
        )  # fmt: skip
        before += chunks
    return [*launches, NORM((1,), sums=sums, chunks=total, norm=norm, finite=finite, BLOCK=BLOCK)]


def bundle() -> list[Specialisation]:
    """What a bundle must contain: every pair of dtypes, with masters for 16-bit parameters and
    without or with one for float32; gradients of one dtype, and behind those of another, where the
    results of their chunks begin at any address."""

    def upload(table: Sequence[int]) -> View:
        return contiguous_view(0, "int64", (len(table),))

    def scratch(shape: tuple[int, ...], dtype: str) -> View:
        return contiguous_view(0, dtype, shape)

    options: dict[str, Any] = {
        "step": 1,
        "learning_rate": 0.1,
        "beta1": 0.9,
        "beta2": 0.9,
        "epsilon": 1e-8,
        "weight_decay": 0.0,
        "gradient_scale": 1.0,
    }
    one = scratch((1,), "int32")
    launches: list[Launch] = []
    for pointer in (0, 8):
        for dtype in ("float32", "float16", "bfloat16"):
            p = contiguous_view(pointer, dtype, (64,))
            state = contiguous_view(pointer, "float32", (64,))
            for gradient in dict.fromkeys((p, state)):
                for master in (None, state) if dtype == "float32" else (state,):
                    launches += adamw_step(
                        [p], [gradient], [master], [state], [state], upload=upload, **options
                    )
            before = contiguous_view(0, "float16" if dtype == "float32" else "float32", (64,))
            for gradients in ([p], [before, p]):
                norm = scratch((1,), "float64")
                launches += gradient_norm(gradients, 1.0, norm, one, upload, scratch)
                for scale in (1.0, 0.5):
                    launches += unscale(gradients, scale, one, upload, scratch)
    return specialisations(launches)

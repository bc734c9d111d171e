"""Grids of the activation kernels. Everything that the entries accept is covered."""

from __future__ import annotations

from ruda_runtime.launch import (
    Definition,
    Launch,
    Specialisation,
    View,
    ceil_div,
    contiguous_view,
    specialisations,
)

_KERNELS = "ruda_dnn.activation.kernels"
_ANY = "*fp32|fp16|bf16"

FORWARD = Definition(
    "silu_mul.forward",
    f"{_KERNELS}:silu_mul_forward",
    {"gate": _ANY, "up": _ANY, "out": _ANY, "count": "i64%16", "BLOCK": "constexpr"},
)
BACKWARD = Definition(
    "silu_mul.backward",
    f"{_KERNELS}:silu_mul_backward",
    {"gate": _ANY, "up": _ANY, "grad": _ANY, "dgate": f"{_ANY}?", "dup": f"{_ANY}?",
     "count": "i64%16", "BLOCK": "constexpr"},
)  # fmt: skip

BLOCK = 1024
"""Elements of one program: eight a thread, which are 16 bytes in half precision."""


def silu_mul_forward(gate: View, up: View, out: View) -> list[Launch]:
    """The launches of "silu_mul.forward"."""
    if gate.size == 0:
        return []
    grid = (ceil_div(gate.size, BLOCK),)
    return [FORWARD(grid, gate=gate, up=up, out=out, count=gate.size, BLOCK=BLOCK)]


def silu_mul_backward(
    gate: View, up: View, grad: View, dgate: View | None, dup: View | None
) -> list[Launch]:
    """The launches of "silu_mul.backward"."""
    if gate.size == 0 or (dgate is None and dup is None):
        return []
    return [BACKWARD((ceil_div(gate.size, BLOCK),), gate=gate, up=up, grad=grad, dgate=dgate,
                     dup=dup, count=gate.size, BLOCK=BLOCK)]  # fmt: skip


def bundle() -> list[Specialisation]:
    """What a bundle must contain."""
    launches: list[Launch] = []
    for dtype in ("float32", "float16", "bfloat16"):
        for count in (1024, 1000):
            x = contiguous_view(0, dtype, (count,))
            launches += silu_mul_forward(x, x, x)
            for dgate, dup in ((x, x), (x, None), (None, x)):
                launches += silu_mul_backward(x, x, x, dgate, dup)
    return specialisations(launches)

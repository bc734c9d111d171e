"""What device kernels are written with beside `triton.language`.

Import it in a ``kernels.py`` only: it imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))
IEEE = tl.constexpr("ieee")  # Triton 3.6 does not make constants of texts among the defaults


@triton.jit
def dot(a, b, acc=None, input_precision: tl.constexpr = IEEE):
    """The matrix product of two blocks in float32: ``a @ b``, or ``acc + a @ b``.

    Triton's interpreter multiplies bfloat16 as bit patterns, so that interpreted floating operands
    are converted to float32 first. Compiled, this is ``tl.dot``.

    Args:
        a: ``[M, K]``, floating (or int8).
        b: ``[K, N]``, of the same dtype.
        acc: ``[M, N]`` float32 (int32 for int8), or ``None``.
        input_precision: of float32 operands: ``"ieee"``, ``"tf32"`` or ``"tf32x3"``; products of
            other dtypes are exact in float32 anyway.

    Returns:
        ``[M, N]`` float32 (int32 for int8).
    """
    if INTERPRETED:  # noqa: SIM102 - the compiler reads the two conditions at different times
        if a.dtype.is_floating():
            a = a.to(tl.float32)
            b = b.to(tl.float32)
    if acc is None:
        result = tl.dot(a, b, input_precision=input_precision)
    else:
        result = tl.dot(a, b, acc, input_precision=input_precision)
    return result

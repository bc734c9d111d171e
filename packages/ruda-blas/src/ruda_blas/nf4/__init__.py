"""Weights in NF4: quantise, restore, multiply. See README.md for the mathematics."""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np

from ruda_runtime import Tensor, empty

from .. import _native
from .._tensors import check_tensor
from ..errors import Nf4Error, Nf4TypeError
from .layout import Nf4Layout

__all__ = [
    "CODEBOOK",
    "Nf4Error",
    "Nf4Layout",
    "codebook_tensor",
    "dequantize",
    "input_grad",
    "matmul",
    "quantize",
]

CODEBOOK: np.ndarray = np.array(_native.nf4_codebook, dtype=np.float32)
"""The 16 NF4 values, ascending, float32 (read only)."""
CODEBOOK.flags.writeable = False


@cache
def codebook_tensor() -> Tensor:
    """``CODEBOOK`` as a tensor, made once."""
    return Tensor.from_numpy(CODEBOOK.copy())


def quantize(weight: Tensor, block_size: int = 64) -> tuple[Tensor, Tensor]:
    """Quantise ``weight [out, in]``.

    Args:
        weight: float32, float16 or bfloat16, any strides; the result is that of a contiguous copy.
            On the cuda target the call waits for the GPU.
        block_size: values that share a scale, counted over the flat row-major weight; positive and
            even. The last block may be partial.

    Returns:
        ``packed`` uint8 ``[ceil(out * in / 2)]``, two codes a byte, the first in the high nibble;
        ``scales`` float32 ``[ceil(out * in / block_size)]``, the largest magnitude of each block. A
        value half-way between two codes takes the lower one; a block of zeros has scale 0; the last
        nibble of an odd count is the code of 0.

    Raises:
        Nf4Error: NaN or infinity (with its position), a block size that is not positive and even, a
            weight that is no matrix; Nf4TypeError for another dtype. Nothing is written then.
    """
    weight = check_tensor(weight, "nf4.quantize", "weight", Nf4TypeError)
    count = prod(weight.shape)
    blocks = -(-count // block_size) if block_size > 0 else 0
    packed = empty((count + 1) // 2, "uint8")
    scales = empty(blocks, "float32")
    _native.nf4_quantize(weight, packed, scales, block_size)
    return packed, scales


def dequantize(
    packed: Tensor,
    scales: Tensor,
    codebook: Tensor | None,
    layout: Nf4Layout,
    dtype: str = "float32",
    out: Tensor | None = None,
) -> Tensor:
    """The dense weight ``[out_features, in_features]``: ``codebook[code] * scale``, rounded once.

    Args:
        packed, scales: as from ``quantize``, contiguous, in any shape with that many elements.
        codebook: float32 ``[16]``; None is ``CODEBOOK``.
        layout: the weight's shape and block size.
        dtype: float32, float16 or bfloat16, where no ``out`` is given.
        out: where to write, any strides.

    Raises:
        Nf4Error: sizes that do not fit the layout; Nf4TypeError for wrong dtypes.
    """
    if out is None:
        out = empty((layout.out_features, layout.in_features), dtype)
    _native.nf4_dequantize(
        packed, scales, codebook_tensor() if codebook is None else codebook, out, layout.block_size
    )
    return out


def matmul(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    codebook: Tensor | None,
    layout: Nf4Layout,
    tile_rows: int = 128,
    *,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    update_x: Tensor | None = None,
    update_w: Tensor | None = None,
) -> Tensor:
    """``x @ W^T (+ bias) (+ update_x @ update_w)`` for ``x [..., in_features]``.

    The result is ``[..., out_features]`` in x's dtype; everything is summed in float32 and rounded
    once. (On the cuda target decoded weights are rounded to x's dtype first.)

    The dense weight is never made: its decoded parts take at most ``threads * tile_rows *
    in_features * 4`` bytes of scratch memory at a time, whatever the dtype of ``x``. Packed rows of
    ``x`` take at most 10 MB beside that, sums of a 16-bit result at most 400 KB a thread. On the
    cuda target parts are decoded into registers, and there is no scratch memory.

    Args:
        x: float32, float16 or bfloat16, any strides.
        packed, scales, codebook, layout: the weight, as in ``dequantize``.
        tile_rows: bounds the memory of decoded weights; small values cost speed.
        bias: ``[out_features]``, float32, float16 or bfloat16.
        out: where to write ``[M, out_features]`` for an ``x`` of two dimensions; its dtype is the
            result's.
        update_x, update_w: ``[..., r]`` (``x``'s leading dimensions) and ``[r, out_features]``,
            both or neither: a low-rank update of the weight, as LoRA has one. Float32, float16 or
            bfloat16 each, any strides.

    Raises:
        Nf4Error: shapes or sizes that do not fit; Nf4TypeError for wrong dtypes.
    """
    return _product("nf4.matmul", x, packed, scales, codebook, layout, bias, out, tile_rows,
                    layout.out_features, update_x, update_w)  # fmt: skip


def input_grad(
    grad: Tensor,
    packed: Tensor,
    scales: Tensor,
    codebook: Tensor | None,
    layout: Nf4Layout,
    tile_rows: int = 128,
    *,
    out: Tensor | None = None,
    update_x: Tensor | None = None,
    update_w: Tensor | None = None,
) -> Tensor:
    """``grad @ W (+ update_x @ update_w)``, the gradient of ``matmul`` with respect to ``x``.

    ``grad [..., out_features]`` gives ``[..., in_features]``; ``update_w`` is ``[r, in_features]``;
    the rest is as in ``matmul``. The sums run in an order that does not depend on the number of
    threads.
    """
    return _product("nf4.input_grad", grad, packed, scales, codebook, layout, None, out, tile_rows,
                    layout.in_features, update_x, update_w)  # fmt: skip


def _product(
    operation: str,
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    codebook: Tensor | None,
    layout: Nf4Layout,
    bias: Tensor | None,
    out: Tensor | None,
    tile_rows: int,
    width: int,
    update_x: Tensor | None,
    update_w: Tensor | None,
) -> Tensor:
    x = check_tensor(x, operation, "x", Nf4TypeError)
    shape = x.shape
    if len(shape) != 2 and len(shape) > 0:
        if out is not None:
            raise Nf4Error(
                f"[{operation}] out: got a tensor with an x of shape {list(shape)}, wanted an x of "
                "two dimensions"
            )
        x = x.reshape((prod(shape[:-1]), shape[-1]))
        if update_x is not None:
            update_x = check_tensor(update_x, operation, "update_x", Nf4TypeError)
            if update_x.ndim != len(shape) or update_x.shape[:-1] != shape[:-1]:
                raise Nf4Error(
                    f"[{operation}] update_x: got shape {list(update_x.shape)}, wanted "
                    f"{[*shape[:-1], 'r']}"
                )
            update_x = update_x.reshape((prod(shape[:-1]), update_x.shape[-1]))
    y = empty((x.shape[0], width) if x.ndim else (), x.dtype_name) if out is None else out
    _native.nf4_product(
        operation, x, packed, scales, codebook_tensor() if codebook is None else codebook, bias, y,
        layout.out_features, layout.in_features, layout.block_size, tile_rows,
        update_x, update_w,
    )  # fmt: skip
    return y if len(shape) == 2 else y.reshape((*shape[:-1], width))

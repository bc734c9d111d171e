"""What is refused, and in which words. Nothing is written on an error."""

from __future__ import annotations

import re

import numpy as np
import pytest

import ruda_runtime as rr
from ruda_blas import Nf4Error, Nf4TypeError, _native, nf4
from ruda_blas.nf4 import Nf4Layout

from ..tensors import tensor


def zeros(*shape: int, dtype: str = "float32") -> rr.Tensor:
    return rr.Tensor.from_numpy(np.zeros(shape, dtype))


@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "inf")])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_values_without_a_scale(bad: float, word: str, dtype: str) -> None:
    weight = np.random.default_rng(0).standard_normal((400, 200)).astype(dtype)
    weight[37, 5] = bad
    weight[390, 199] = np.nan
    text = rf"weight: got {word}.* at \[37, 5\], wanted finite values"
    packed = rr.Tensor.from_numpy(np.full(40000, 9, np.uint8))
    scales = rr.Tensor.from_numpy(np.full(1250, 9, np.float32))
    with pytest.raises(Nf4Error, match=text):
        _native.nf4_quantize(rr.Tensor.from_numpy(weight), packed, scales, 64)
    assert (packed.numpy() == 9).all() and (scales.numpy() == 9).all()
    with pytest.raises(Nf4Error, match=rf"weight: got {word}.* at \[5, 37\]"):
        nf4.quantize(rr.Tensor.from_numpy(weight[:100].T))


@pytest.mark.parametrize("block_size", [0, -64, 1, 63])
def test_block_sizes(block_size: int) -> None:
    text = f"block_size: got {block_size}, wanted a positive even number"
    with pytest.raises(Nf4Error, match=text):
        nf4.quantize(zeros(4, 4), block_size)
    with pytest.raises(Nf4Error, match=text):
        Nf4Layout(4, 4, block_size)


@pytest.mark.parametrize("dtype", ["float64", "int8", "uint8", "bool"])
def test_other_dtypes(dtype: str) -> None:
    with pytest.raises(Nf4TypeError, match=f"weight: got dtype {dtype}, wanted float32 or float16"):
        nf4.quantize(zeros(4, 4, dtype=dtype))
    packed, scales = nf4.quantize(zeros(4, 4))
    layout = Nf4Layout(4, 4)
    with pytest.raises(TypeError, match=f"x: got dtype {dtype}"):
        nf4.matmul(zeros(2, 4, dtype=dtype), packed, scales, None, layout)
    with pytest.raises(TypeError, match=f"weight: got dtype {dtype}"):
        nf4.dequantize(packed, scales, None, layout, dtype)


def test_shapes_and_kinds_of_weights() -> None:
    with pytest.raises(Nf4Error, match=r"weight: got shape \[4\], wanted \[out_features, in_feat"):
        nf4.quantize(zeros(4))
    with pytest.raises(Nf4TypeError, match=r"weight: got ndarray, wanted a ruda_runtime\.Tensor"):
        nf4.quantize(np.zeros((4, 4), np.float32))
    with pytest.raises(Nf4Error, match="out_features: got -1"):
        Nf4Layout(-1, 4)


GOOD = {
    "x": ((2, 64), "float32"),
    "packed": ((96,), "uint8"),
    "scales": ((3,), "float32"),
    "codebook": ((16,), "float32"),
    "bias": ((3,), "float32"),
    "out": ((2, 3), "float32"),
}


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "text"),
    [
        ("x", (2, 63), "float32", "x: got shape [2, 63], wanted [M, in_features] = [M, 64]"),
        ("x", (), "float32", "x: got shape [], wanted"),
        ("packed", (95,), "uint8", "packed: got shape [95] with 95 elements, wanted 96"),
        ("packed", (96,), "int8", "packed: got dtype int8, wanted uint8"),
        ("scales", (4,), "float32", "scales: got shape [4] with 4 elements, wanted 3"),
        ("scales", (3,), "float16", "scales: got dtype float16, wanted float32"),
        ("codebook", (15,), "float32", "codebook: got shape [15] with 15 elements, wanted 16"),
        ("codebook", (16,), "float64", "codebook: got dtype float64"),
        ("bias", (2,), "float32", "bias: got shape [2], wanted [3]"),
        ("out", (2, 4), "float32", "y: got shape [2, 4], wanted [2, 3]"),
    ],
)
def test_products(name: str, shape: tuple[int, ...], dtype: str, text: str) -> None:
    given = {key: zeros(*size, dtype=kind) for key, (size, kind) in GOOD.items()}
    layout = Nf4Layout(3, 64)

    def call() -> rr.Tensor:
        return nf4.matmul(given["x"], given["packed"], given["scales"], given["codebook"], layout,
                          bias=given["bias"], out=given["out"])  # fmt: skip

    call()
    given["out"].copy_from(np.full((2, 3), 7.0, np.float32))
    given[name] = zeros(*shape, dtype=dtype)
    with pytest.raises(Nf4Error, match=re.escape(text)):
        call()
    if name != "out":
        assert (given["out"].numpy() == 7.0).all()


def test_other_wrong_arguments() -> None:
    packed, scales = nf4.quantize(zeros(3, 64))
    layout, x = Nf4Layout(3, 64), zeros(2, 64)
    for tile_rows in (0, -1):
        with pytest.raises(Nf4Error, match=f"tile_rows: got {tile_rows}, wanted a positive number"):
            nf4.matmul(x, packed, scales, None, layout, tile_rows)
    with pytest.raises(Nf4Error, match=r"x: got shape \[2, 64\], wanted \[M, out_features\]"):
        nf4.input_grad(x, packed, scales, None, layout)
    with pytest.raises(Nf4Error, match="out: got memory that overlaps x"):
        square, quantized = zeros(64, 64), nf4.quantize(zeros(64, 64))
        nf4.matmul(square, *quantized, None, Nf4Layout(64, 64), out=square)
    strided = tensor(np.zeros((96, 2), np.uint8)[:, 0])
    with pytest.raises(Nf4Error, match=r"packed: got strides .* wanted a contiguous tensor"):
        nf4.matmul(x, strided, scales, None, layout)
    ux, uw = zeros(2, 5), zeros(5, 3)
    for given, text in (
        ({"update_x": ux}, "update_x and update_w: got only update_x, wanted both or neither"),
        ({"update_w": uw}, "update_x and update_w: got only update_w, wanted both or neither"),
        ({"update_x": zeros(3, 5), "update_w": uw}, "update_x: got shape [3, 5], wanted [M, r] ="),
        ({"update_x": ux, "update_w": zeros(4, 3)}, "update_w: got shape [4, 3], wanted [5, 3]"),
        ({"update_x": ux, "update_w": zeros(5, 64)}, "update_w: got shape [5, 64], wanted [5, 3]"),
        ({"update_x": ux, "update_w": zeros(5, 3, dtype="int8")}, "update_w: got dtype int8"),
    ):
        with pytest.raises(Nf4Error, match=re.escape(text)):
            nf4.matmul(x, packed, scales, None, layout, **given)
    cube = zeros(1, 2, 64)
    with pytest.raises(Nf4Error, match=re.escape("update_x: got shape [2, 5], wanted [1, 2, 'r']")):
        nf4.matmul(cube, packed, scales, None, layout, update_x=ux, update_w=uw)
    with pytest.raises(Nf4Error, match="out: got memory that overlaps update_x"):
        y = zeros(2, 3)
        nf4.matmul(x, packed, scales, None, layout, out=y, update_x=y, update_w=zeros(3, 3))
    with pytest.raises(Nf4Error, match="wanted an x of two dimensions"):
        nf4.matmul(zeros(1, 2, 64), packed, scales, None, layout, out=zeros(2, 3))
    assert nf4.matmul(x, packed.reshape((96, 1)), scales, None, layout).shape == (2, 3)

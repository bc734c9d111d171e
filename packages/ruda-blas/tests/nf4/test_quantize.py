"""Codes, scales and restored weights."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import ruda_runtime as rr
from ruda_blas import nf4
from ruda_blas.nf4 import Nf4Layout, reference
from ruda_runtime.conformance import arrange, check, check_repeatable, numpy_dtype

from ..tensors import tensor
from .cases import DTYPES, WEIGHTS, Weight, values_of

# Half the widest gap between neighbouring codes: the largest error of a value over its scale.
HALF_GAP = float(np.diff(reference.CODEBOOK).max()) / 2
MIDPOINTS = (nf4.CODEBOOK[:-1] + nf4.CODEBOOK[1:]) / np.float32(2)


def quantized(weight: np.ndarray, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    packed, scales = nf4.quantize(tensor(weight), block_size)
    assert (packed.dtype_name, scales.dtype_name) == ("uint8", "float32")
    return packed.numpy(), scales.numpy()


def test_codebook() -> None:
    assert nf4.CODEBOOK.dtype == np.float32 and not nf4.CODEBOOK.flags.writeable
    assert (reference.CODEBOOK.astype(np.float32) == nf4.CODEBOOK).all()
    assert (nf4.codebook_tensor().numpy() == nf4.CODEBOOK).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", WEIGHTS, ids=lambda case: case.name)
def test_codes_and_scales(case: Weight, dtype: str) -> None:
    weight = values_of(case, dtype)
    exact = weight.astype(np.float64)
    packed, scales = quantized(weight, case.block_size)
    layout = Nf4Layout(case.rows, case.cols, case.block_size)
    assert packed.shape == (layout.packed_bytes,) and scales.shape == (layout.blocks,)
    assert (scales == reference.scales(exact, case.block_size)).all()

    codes = reference.unpack(packed, exact.size)
    wanted = reference.codes(exact, case.block_size)
    # A code may differ from the nearest one only where rounding the ratio decides.
    scale = np.repeat(scales, case.block_size)[: exact.size].astype(np.float64)
    ratio = np.divide(exact.ravel(), scale, out=np.zeros(exact.size), where=scale > 0)
    undecided = np.abs(ratio[:, None] - MIDPOINTS).min(axis=1) < 4e-7
    differs = codes != wanted
    assert not (differs & ~undecided).any(), np.argwhere(differs & ~undecided)[:5]
    assert (np.abs(codes - wanted) <= 1).all()
    if exact.size % 2:
        assert packed[-1] & 15 == 7

    error = np.abs(reference.CODEBOOK[codes] * scale - exact.ravel())
    assert (error <= HALF_GAP * scale * (1 + 1e-6)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", WEIGHTS, ids=lambda case: case.name)
def test_dequantize(case: Weight, dtype: str) -> None:
    packed, scales = quantized(values_of(case, "float32"), case.block_size)
    if dtype == "float16":
        scales = np.minimum(scales, 6e4).astype(np.float32)
    layout = Nf4Layout(case.rows, case.cols, case.block_size)
    wanted = reference.dequantize(packed, scales, (case.rows, case.cols), case.block_size)
    result = check_repeatable(
        lambda: nf4.dequantize(tensor(packed), tensor(scales), None, layout, dtype).numpy()
    )
    assert result.dtype == numpy_dtype(dtype)
    product = (wanted.astype(np.float32)).astype(numpy_dtype(dtype)).astype(np.float64)
    # One rounding of the float32 product, bit for bit.
    assert (result.astype(np.float64) == product).all()
    if case.kind != "subnormal":
        check(result, wanted, dtype)


@pytest.mark.parametrize("layout", ["cols", "sliced", "strided"])
def test_dequantize_into_any_strides(layout: str) -> None:
    weight = values_of(Weight(33, 65))
    packed, scales = quantized(weight, 64)
    for dtype in DTYPES:
        dense = nf4.dequantize(tensor(packed), tensor(scales), None, Nf4Layout(33, 65), dtype)
        out = tensor(arrange(np.zeros((33, 65), numpy_dtype(dtype)), layout))
        result = nf4.dequantize(tensor(packed), tensor(scales), None, Nf4Layout(33, 65), out=out)
        assert result is out and (out.numpy() == dense.numpy()).all()


def test_golden_codes() -> None:
    """16 codes in order, then their midpoints: a value half-way takes the lower code."""
    weight = nf4.CODEBOOK.reshape(1, 16)
    packed, scales = quantized(weight, 16)
    assert packed.tobytes().hex() == "0123456789abcdef" and scales.tolist() == [1.0]

    ties = np.append(MIDPOINTS, np.float32(-1.0)).reshape(1, 16)
    above = np.append(np.nextafter(MIDPOINTS, np.float32(2)), np.float32(-1)).reshape(1, 16)
    for power in (1.0, 2.0**-20, 2.0**30):
        packed, scales = quantized(ties * np.float32(power), 16)
        assert packed.tobytes().hex() == "0123456789abcde0" and scales.tolist() == [power]
        packed, _ = quantized(above * np.float32(power), 16)
        assert packed.tobytes().hex() == "123456789abcdef0"


def test_golden_weights() -> None:
    """Bytes and scales that bitsandbytes 0.50.2 writes on the CPU: a partial last block, an odd
    count."""
    wave = np.round(np.sin(np.arange(130) * 0.7) * 1000).astype(np.float32).reshape(2, 65)
    packed, scales = quantized(wave, 64)
    assert packed.tobytes().hex() == (
        "7effb30017efeb30017efeb30028efea30028efea30028efea30028efea30028"
        "efea30029efea20029efe920029efe920029efe920029efe92002aefe92003aefe"
    )
    assert scales.tolist() == [998.0, 1000.0, 998.0]

    comb = (np.arange(35, dtype=np.float32).reshape(5, 7) * 37 % 101 - 50) / 64
    packed, scales = quantized(comb, 64)
    assert packed.tobytes().hex() == "04c16e29f3b05d17e29f3c05d18e2af4c167"
    assert scales.tolist() == [0.78125]


def test_zero_blocks() -> None:
    packed, scales = quantized(np.zeros((3, 33), np.float32), 32)
    assert (packed == 0x77).all() and (scales == 0).all()
    dense = nf4.dequantize(tensor(packed), tensor(scales), None, Nf4Layout(3, 33, 32)).numpy()
    assert (dense == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_do_not_change_the_result(dtype: str) -> None:
    """bitsandbytes 1995: transposes and slices were read in storage order."""
    base = values_of(Weight(70, 130), dtype)
    for view in (
        base.T, base[:, ::2], base[::3], base[:, 10:74], base[::-1, ::-1], base[20:50, 1:],
        np.broadcast_to(base[:1], (9, 130)),
    ):  # fmt: skip
        for block_size in (64, 4096):
            given = quantized(view, block_size)
            wanted = quantized(np.ascontiguousarray(view), block_size)
            assert given[0].tobytes() == wanted[0].tobytes()
            assert given[1].tobytes() == wanted[1].tobytes()


def test_bits_do_not_depend_on_the_threads() -> None:
    weight = values_of(Weight(257, 1000))
    threads = rr.get_num_threads()
    results = set()
    try:
        for count in (1, 2, 3):
            rr.set_num_threads(count)
            packed, scales = quantized(weight, 64)
            results.add(packed.tobytes() + scales.tobytes())
    finally:
        rr.set_num_threads(threads)
    assert len(results) == 1


def test_empty_weight() -> None:
    packed, scales = nf4.quantize(rr.empty((0, 5)))
    assert packed.shape == (0,) and scales.shape == (0,)
    assert nf4.dequantize(packed, scales, None, Nf4Layout(0, 5)).shape == (0, 5)


@pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 64), (33, 65), (7, 13), (128, 576)])
def test_bitsandbytes_writes_the_same(shape: tuple[int, int], dtype: str) -> None:
    """Same scales and bytes in whole blocks; the partial last block may differ in undecided codes,
    because bitsandbytes divides there and multiplies by the reciprocal elsewhere."""
    import torch
    from bitsandbytes.functional import quantize_4bit

    weight = values_of(Weight(*shape), "float32", seed=3)
    theirs = torch.from_numpy(weight).to(getattr(torch, dtype))
    packed, state = quantize_4bit(theirs, blocksize=64, quant_type="nf4")
    ours = theirs.float().numpy().astype(numpy_dtype(dtype))
    given = quantized(ours, 64)
    assert given[1].tolist() == state.absmax.tolist()
    whole = weight.size // 64 * 32
    assert given[0][:whole].tobytes() == packed.numpy().ravel()[:whole].tobytes()
    rest = [reference.unpack(side, weight.size)[2 * whole :]
            for side in (given[0], packed.numpy().ravel())]  # fmt: skip
    assert (np.abs(rest[0].astype(int) - rest[1].astype(int)) <= 1).all()
    assert (rest[0] != rest[1]).mean() < 0.02 if len(rest[0]) else True

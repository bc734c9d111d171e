"""Packing against an independent float64 quantiser, for every shape, dtype and stride."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ruda_finetune import NF4Linear, QuantizationError, pack_nf4
from ruda_finetune.quantization.pack import nf4_codebook, unpack_nf4

SHAPES = [(7, 13), (3, 65), (5, 127), (1, 1), (1, 7), (300, 64), (33, 65), (64, 64), (2, 129)]


def normal_quantiles() -> np.ndarray:
    """The NF4 values from their definition (Dettmers et al., 2023): quantiles of the normal
    distribution, eight above zero and seven below, scaled to [-1, 1], and zero."""
    from statistics import NormalDist

    offset = 1 - (1 / 32 + 1 / 30) / 2
    inverse = NormalDist().inv_cdf
    above = [inverse(float(p)) for p in np.linspace(offset, 0.5, 9)[:-1]]
    below = [-inverse(float(p)) for p in np.linspace(offset, 0.5, 8)[:-1]]
    values = np.array(sorted([*above, *below, 0.0]))
    return values / values.max()


def reference(weight: torch.Tensor, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales, one value at a time in float64."""
    flat = weight.double().contiguous().view(-1).numpy()
    book = nf4_codebook().double().numpy()
    codes = np.zeros(flat.size, dtype=np.int64)
    scales = np.array([np.abs(flat[i : i + block]).max() for i in range(0, flat.size, block)])
    for index, value in enumerate(flat):
        scale = scales[index // block]
        distance = np.abs(book - (value / scale if scale else 0.0))
        codes[index] = int(distance.argmin())
    return codes, scales


def codes_of(packed: torch.Tensor, count: int) -> np.ndarray:
    array = packed.numpy()
    return np.stack((array >> 4, array & 15), axis=1).reshape(-1)[:count].astype(np.int64)


def random_weight(shape, dtype=torch.float32, seed=0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def test_codebook_is_the_normal_quantiles():
    book = nf4_codebook()
    assert book.dtype == torch.float32
    assert book.shape == (16,)
    assert np.abs(book.numpy() - normal_quantiles()).max() < 1e-4
    assert book[7] == 0
    assert (book[1:] > book[:-1]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_codes_and_scales(shape, dtype):
    weight = random_weight(shape, dtype)
    packed, scales = pack_nf4(weight)
    count = weight.numel()
    assert packed.dtype == torch.uint8
    assert scales.dtype == torch.float32
    assert packed.shape == (-(-count // 2),)
    assert scales.shape == (-(-count // 64),)
    codes, wanted_scales = reference(weight, 64)
    np.testing.assert_array_equal(scales.numpy(), wanted_scales.astype(np.float32))
    got = codes_of(packed, count)
    wrong = np.flatnonzero(got != codes)
    # float32 and float64 may part only at a midpoint between two codes
    book = nf4_codebook().double().numpy()
    for index in wrong:
        value = float(weight.double().view(-1)[index]) / wanted_scales[index // 64]
        near = sorted((abs(book[got[index]] - value), abs(book[codes[index]] - value)))
        assert near[1] - near[0] < 1e-6


@pytest.mark.parametrize("block", [2, 6, 64, 128, 1024, 4096])
@pytest.mark.parametrize("shape", [(7, 13), (300, 64), (1, 4097)])
def test_error_is_at_most_half_the_widest_gap(shape, block):
    weight = random_weight(shape)
    layer = NF4Linear.from_linear(linear_of(weight), block_size=block)
    restored = layer.dequantize()
    assert restored.shape == weight.shape
    book = nf4_codebook()
    gap = float((book[1:] - book[:-1]).max()) / 2
    error = (restored - weight).abs().view(-1)
    for start in range(0, weight.numel(), block):
        scale = weight.view(-1)[start : start + block].abs().max()
        assert error[start : start + block].max() <= gap * scale * (1 + 1e-5)


def linear_of(weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = torch.nn.Parameter(weight)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias)
    return layer


@pytest.mark.parametrize(
    "view",
    [
        lambda w: w.t(),
        lambda w: w[:, ::2],
        lambda w: w[3:9],
        lambda w: w[1::3, 4:],
        lambda w: w[0].expand(5, -1),
    ],
    ids=["transposed", "columns", "rows", "slice", "expanded"],
)
def test_strided_weight_equals_its_copy(view):
    weight = view(random_weight((12, 30)))
    for got, wanted in zip(pack_nf4(weight), pack_nf4(weight.contiguous())):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("chunk_blocks", [1, 3, 1024])
def test_chunks_do_not_change_the_result(chunk_blocks):
    weight = random_weight((37, 41))
    for got, wanted in zip(pack_nf4(weight, 64, chunk_blocks), pack_nf4(weight, 64, 10**6)):
        assert torch.equal(got, wanted)


def test_zero_block_is_exactly_zero():
    weight = random_weight((4, 64))
    weight[1] = 0
    packed, scales = pack_nf4(weight)
    assert scales[1] == 0
    restored = unpack_nf4(packed, scales, nf4_codebook(), 4, 64, 64)
    assert (restored[1] == 0).all()
    assert torch.isfinite(restored).all()


def test_extremes_of_a_block_are_exact():
    weight = random_weight((8, 64))
    restored = NF4Linear.from_linear(linear_of(weight)).dequantize()
    for row in range(8):
        index = weight[row].abs().argmax()
        assert restored[row, index] == weight[row, index]


@pytest.mark.parametrize(
    "bad, text",
    [
        (torch.zeros(0, 4), "non-empty"),
        (torch.zeros(4), "non-empty matrix"),
        (torch.zeros(2, 3, 4), "non-empty matrix"),
        (torch.zeros(2, 3, dtype=torch.float64), "float64"),
        (torch.zeros(2, 3, dtype=torch.int8), "int8"),
        (torch.zeros(2, 3, device="meta"), "meta"),
        (torch.tensor([[1.0, math.nan, 2.0]]), "1 values that are NaN or infinite, of 3"),
        (torch.tensor([[1.0, math.inf, -math.inf]]), "2 values that are NaN or infinite"),
    ],
)
def test_bad_weights_are_refused(bad, text):
    with pytest.raises(QuantizationError, match=text):
        pack_nf4(bad)


@pytest.mark.parametrize("block", [0, -64, 63, 2.0, True, None])
def test_bad_block_sizes_are_refused(block):
    with pytest.raises(QuantizationError, match="positive even integer"):
        pack_nf4(torch.ones(2, 2), block)


def test_bitsandbytes_gives_the_same_codes():
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = random_weight((96, 64))
    packed, scales = pack_nf4(weight)
    theirs, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    torch.testing.assert_close(state.absmax, scales, rtol=0, atol=0)
    different = codes_of(packed, weight.numel()) != codes_of(theirs.view(-1), weight.numel())
    assert different.mean() < 1e-3  # both round to nearest; midpoints may fall either way

"""Random operators: the map from an element's index to its number, seeds, and distributions."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ruda_runtime

D = "ruda"
N = 200_000
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def philox(seed: int, first: int, count: int) -> np.ndarray:
    """Words of Philox4x32-10 from block `first` on, written from the paper."""
    blocks = (count + 3) // 4
    counter = np.zeros((blocks, 4), dtype=np.uint64)
    index = np.arange(first, first + blocks, dtype=np.uint64)
    counter[:, 0], counter[:, 1] = index & 0xFFFFFFFF, index >> 32
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        left, right = 0xD2511F53 * counter[:, 0], 0xCD9E8D57 * counter[:, 2]
        counter = np.stack(
            [
                (right >> np.uint64(32)) ^ counter[:, 1] ^ np.uint64(key[0]),
                right & 0xFFFFFFFF,
                (left >> np.uint64(32)) ^ counter[:, 3] ^ np.uint64(key[1]),
                left & 0xFFFFFFFF,
            ],
            axis=1,
        )
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter.reshape(-1)[:count].astype(np.uint32)


def test_philox_reference_is_the_published_one() -> None:
    # Known answer of the Random123 distribution for an all-zero counter and key.
    assert philox(0, 0, 4).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 3])
def test_numbers_follow_the_elements_index(seed: int) -> None:
    torch.manual_seed(seed)
    first = torch.rand(1001, device=D).cpu().numpy()
    second = torch.rand(50, device=D).cpu().numpy()
    wanted = (philox(seed, 0, 1001) >> 8).astype(np.float32) / np.float32(2**24)
    assert np.array_equal(first, wanted)
    # 1001 numbers move the offset to the next multiple of four.
    wanted = (philox(seed, 251, 50) >> 8).astype(np.float32) / np.float32(2**24)
    assert np.array_equal(second, wanted)


def test_wide_counters() -> None:
    generator = torch.Generator(D).manual_seed(5)
    generator.set_offset(4 * (2**32 - 2))
    values = torch.rand(16, device=D, generator=generator).cpu().numpy()
    wanted = (philox(5, 2**32 - 2, 16) >> 8).astype(np.float32) / np.float32(2**24)
    assert np.array_equal(values, wanted)


DRAWS = {
    "rand": lambda t: t.uniform_(),
    "randn": lambda t: t.normal_(),
    "exponential": lambda t: t.exponential_(),
    "bernoulli": lambda t: t.bernoulli_(0.3),
    "bernoulli tensor": lambda t: t.bernoulli_(torch.full_like(t, 0.3)),
    "random": lambda t: t.random_(0, 1000),
    "geometric": lambda t: t.geometric_(0.3),
    "cauchy": lambda t: t.cauchy_(),
    "log_normal": lambda t: t.log_normal_(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_same_values_for_any_layout(name: str) -> None:
    draw = DRAWS[name]

    def drawn(tensor: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(11)
        return draw(tensor).cpu()

    wanted = drawn(torch.empty(37, 150, device=D))
    assert torch.equal(drawn(torch.empty(150, 37, device=D).t()), wanted)
    assert torch.equal(drawn(torch.empty(37, 301, device=D)[:, 1::2]), wanted)
    assert torch.equal(drawn(torch.empty(37 * 150, device=D)).view(37, 150), wanted)
    assert len(wanted.unique()) > 1


@pytest.mark.parametrize("name", DRAWS)
def test_same_values_for_any_number_of_threads(name: str) -> None:
    threads = ruda_runtime.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            ruda_runtime.set_num_threads(count)
            torch.manual_seed(3)
            results.append(DRAWS[name](torch.empty(100_003, device=D)).cpu())
    finally:
        ruda_runtime.set_num_threads(threads)
    assert torch.equal(*results)


def test_masks_are_the_same_for_every_dtype() -> None:
    masks = []
    for dtype in (*FLOATS, torch.int64, torch.bool):
        torch.manual_seed(1)
        masks.append(torch.empty(999, dtype=dtype, device=D).bernoulli_(0.4).bool().cpu())
    assert all(torch.equal(mask, masks[0]) for mask in masks)


def test_seeds_and_generators() -> None:
    torch.manual_seed(42)
    first = torch.randn(10, device=D)
    assert not torch.equal(first, torch.randn(10, device=D))
    torch.manual_seed(42)
    assert torch.equal(first, torch.randn(10, device=D))
    own = torch.Generator(D).manual_seed(42)
    state = torch.ruda.get_rng_state()
    assert torch.equal(first, torch.randn(10, device=D, generator=own))
    assert torch.equal(state, torch.ruda.get_rng_state())
    assert own.get_offset() == 12
    for make in (
        lambda g: torch.rand(5, device=D, generator=g),
        lambda g: torch.randint(9, (5,), device=D, generator=g),
        lambda g: torch.randperm(5, device=D, generator=g),
        lambda g: torch.multinomial(torch.ones(5, device=D), 2, generator=g),
        lambda g: torch.bernoulli(torch.full((5,), 0.5, device=D), generator=g),
        lambda g: torch.normal(torch.zeros(5, device=D), 1.0, generator=g),
        lambda g: torch.poisson(torch.ones(5, device=D), generator=g),
    ):
        results = [make(torch.Generator(D).manual_seed(s)) for s in (1, 1, 2)]
        assert torch.equal(results[0], results[1])
        assert torch.equal(state, torch.ruda.get_rng_state())
    with pytest.raises(RuntimeError, match=r"generator|Generator"):
        torch.rand(5, device=D, generator=torch.Generator())


def close(actual: float, expected: float, deviation: float) -> None:
    """Within five standard deviations of the estimate."""
    assert abs(actual - expected) <= 5 * deviation, (actual, expected, deviation)


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.empty(N, dtype=dtype, device=D).uniform_(-2.0, 3.0)
    assert x.dtype == dtype
    values = x.cpu().double()
    assert values.min() >= -2.0 and values.max() < 3.0
    grain = 5 * 2.0 ** -(8 if dtype == torch.bfloat16 else 11)
    close(values.mean(), 0.5, 5 / math.sqrt(12 * N) + grain / 5)
    close(values.var(), 25 / 12, 0.01 + grain / 5)
    if dtype in (torch.float32, torch.float64):
        counts = torch.histc(values, 50, -2.0, 3.0)
        chi2 = ((counts - N / 50) ** 2 / (N / 50)).sum()
        close(chi2, 49, math.sqrt(2 * 49))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_uniform_never_reaches_its_end(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.empty(N, dtype=dtype, device=D).uniform_(1.0, 1.0 + 2 * torch.finfo(dtype).eps)
    assert set(x.cpu().double().unique().tolist()) == {1.0, 1.0 + torch.finfo(dtype).eps}


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.empty(N, dtype=dtype, device=D).normal_(1.0, 2.0)
    z = (x.cpu().double() - 1.0) / 2.0
    rounding = 4e-3 if dtype == torch.bfloat16 else 0.0
    close(z.mean(), 0.0, 1 / math.sqrt(N) + rounding)
    close(z.var(), 1.0, math.sqrt(2 / N) + rounding)
    close((z**3).mean(), 0.0, math.sqrt(15 / N) + rounding)
    close((z**4).mean(), 3.0, math.sqrt(96 / N) + 3 * rounding)
    close((z.abs() > 3).double().mean(), 0.0026998, math.sqrt(0.0027 / N) + rounding / 5)
    assert z.isfinite().all()
    # The pairs of one block are independent.
    close((z[0::2] * z[1::2]).mean(), 0.0, 1 / math.sqrt(N / 2) + rounding)


def test_normal_of_complex_numbers() -> None:
    torch.manual_seed(0)
    z = torch.randn(N, dtype=torch.complex64, device=D).cpu()
    close(z.real.var(), 0.5, 0.005)
    close(z.imag.var(), 0.5, 0.005)


@pytest.mark.parametrize("dtype", FLOATS)
def test_exponential(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.empty(N, dtype=dtype, device=D).exponential_(2.0)
    values = x.cpu().double()
    assert (values > 0).all() and values.isfinite().all()
    close(values.mean(), 0.5, 0.5 / math.sqrt(N) + (1e-3 if dtype == torch.bfloat16 else 0))
    close((values > 1.0).double().mean(), math.exp(-2), 2e-3)


def test_other_continuous_distributions() -> None:
    torch.manual_seed(0)
    cauchy = torch.empty(N, device=D).cauchy_(1.0, 2.0).cpu().double()
    close(cauchy.median(), 1.0, 2 * math.pi / 2 / math.sqrt(N))
    close((cauchy > 3.0).double().mean(), 0.25, 1e-3)
    log_normal = torch.empty(N, device=D).log_normal_(0.5, 0.25).cpu().double().log()
    close(log_normal.mean(), 0.5, 0.25 / math.sqrt(N))
    close(log_normal.std(), 0.25, 1e-3)
    for dtype in (torch.float32, torch.int64):
        trials = torch.empty(N, dtype=dtype, device=D).geometric_(0.3).cpu().double()
        assert trials.min() == 1
        close(trials.mean(), 1 / 0.3, math.sqrt(0.7) / 0.3 / math.sqrt(N))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool])
def test_bernoulli(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for p in (0.0, 0.3, 1.0):
        x = torch.empty(N, dtype=dtype, device=D).bernoulli_(p).cpu().double()
        assert set(x.unique().tolist()) <= {0.0, 1.0}
        close(x.mean(), p, math.sqrt(p * (1 - p) / N))
    chances = torch.tensor([0.0, 0.25, 1.0], device=D).expand(N, 3)
    means = torch.bernoulli(chances).cpu().double().mean(0)
    assert means[0] == 0 and means[2] == 1
    close(means[1], 0.25, math.sqrt(0.1875 / N))
    for wrong in (-0.1, 1.5, torch.nan):
        with pytest.raises(RuntimeError, match="p_in >= 0"):
            torch.bernoulli(torch.full((3,), wrong, device=D))
        with pytest.raises(RuntimeError, match="in \\[0, 1\\]"):
            torch.empty(3, device=D).bernoulli_(wrong)


def test_integers() -> None:
    torch.manual_seed(0)
    x = torch.randint(-3, 4, (N,), device=D)
    counts = torch.bincount(x.cpu() + 3, minlength=7).double()
    assert counts.numel() == 7
    close(((counts - N / 7) ** 2 / (N / 7)).sum(), 6, math.sqrt(12))
    wide = torch.empty(N, dtype=torch.int64, device=D).random_(-(2**62), 2**62).cpu().double()
    close(wide.mean() / 2**62, 0.0, 1 / math.sqrt(3 * N))
    whole = torch.empty(N, dtype=torch.int64, device=D).random_(-(2**63), None).cpu()
    assert (whole < 0).any() and (whole > 2**62).any()
    for dtype, largest in [
        (torch.int64, 2**63 - 1), (torch.int32, 2**31 - 1), (torch.uint8, 255), (torch.int8, 127),
        (torch.float32, 2**24), (torch.float16, 2**11), (torch.bool, 1),
    ]:  # fmt: skip
        values = torch.empty(N, dtype=dtype, device=D).random_().cpu().double()
        assert values.min() >= 0 and values.max() <= largest
        close(values.mean() / largest, 0.5, 1 / math.sqrt(12 * N) + 1e-3)
    for dtype in (torch.float16, torch.bfloat16):
        halves = torch.empty(N, dtype=dtype, device=D).random_(0, 100).cpu().double()
        assert halves.max() < 100 and (halves == halves.round()).all()
    with pytest.raises(RuntimeError, match="'from' to be less than 'to'"):
        torch.empty(3, device=D).random_(5, 5)
    with pytest.raises(RuntimeError, match="out of bounds"):
        torch.empty(3, dtype=torch.uint8, device=D).random_(0, 300)


def test_randperm() -> None:
    torch.manual_seed(0)
    for n in (0, 1, 2, 1000):
        for dtype in (torch.int64, torch.int32, torch.float32):
            order = torch.randperm(n, dtype=dtype, device=D)
            assert order.device.type == D and order.dtype == dtype
            assert torch.equal(order.cpu().sort().values, torch.arange(n, dtype=dtype))
    # Each of the six orders of three equally often.
    orders = torch.stack([torch.randperm(3, device=D) for _ in range(3000)]).cpu()
    counts = torch.bincount(orders @ torch.tensor([9, 3, 1]))
    counts = counts[counts > 0].double()
    assert counts.numel() == 6
    close(((counts - 500) ** 2 / 500).sum(), 5, math.sqrt(10))
    with pytest.raises(RuntimeError, match="without overflow"):
        torch.randperm(300, dtype=torch.uint8, device=D)
    with pytest.raises(RuntimeError, match="too large"):
        torch.randperm(3001, dtype=torch.float16, device=D)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_multinomial_frequencies(dtype: torch.dtype, replacement: bool) -> None:
    torch.manual_seed(0)
    weights = torch.tensor([0.0, 1.0, 3.0, 4.0, 0.0], dtype=dtype, device=D)
    if replacement:
        draws = torch.multinomial(weights, N, replacement=True).cpu()
    else:
        draws = torch.multinomial(weights.expand(N, 5), 1).cpu().flatten()
    counts = torch.bincount(draws, minlength=5).double() / N
    assert counts[0] == 0 and counts[4] == 0
    for i, p in ((1, 1 / 8), (2, 3 / 8), (3, 4 / 8)):
        close(counts[i], p, math.sqrt(p * (1 - p) / N))


def test_multinomial_without_replacement() -> None:
    torch.manual_seed(0)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], device=D)
    draws = torch.multinomial(weights.expand(20_000, 4), 3).cpu()
    assert all(len(set(row)) == 3 for row in draws[:200].tolist())
    # P(first 3, then 2) = 4/10 * 3/6.
    share = ((draws[:, 0] == 3) & (draws[:, 1] == 2)).double().mean()
    close(share, 0.2, math.sqrt(0.2 * 0.8 / 20_000))
    assert torch.multinomial(weights, 4).sort().values.tolist() == [0, 1, 2, 3]
    assert torch.multinomial(weights, 2).shape == (2,)


@pytest.mark.parametrize(
    ("weights", "count", "text"),
    [
        ([1.0, -1.0], 1, "element < 0"),
        ([1.0, math.nan], 1, "nan"),
        ([1.0, math.inf], 1, "inf"),
        ([0.0, 0.0], 1, "sum of probabilities <= 0"),
        ([1.0, 1.0], 3, "without replacement"),
        ([1.0, 1.0], 0, "n_sample <= 0"),
    ],
)
def test_multinomial_errors(weights: list[float], count: int, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        torch.multinomial(torch.tensor(weights, device=D), count)


def test_multinomial_draws_categories_at_the_ends_of_float64() -> None:
    smallest = torch.tensor([0.0, 5e-324, 0.0], dtype=torch.float64, device=D)
    assert torch.multinomial(smallest, 200, replacement=True).unique().tolist() == [1]
    largest = torch.full((4,), 1e308, dtype=torch.float64, device=D)
    with pytest.raises(RuntimeError, match="beyond float64"):
        torch.multinomial(largest, 8, replacement=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_dropout(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.full((N,), 2.0, dtype=dtype, device=D, requires_grad=True)
    y = F.dropout(x, 0.25)
    kept = (y != 0).cpu()
    close(kept.double().mean(), 0.75, math.sqrt(0.1875 / N))
    scaled = torch.tensor(2.0 * (1 / 0.75), dtype=torch.float64).to(dtype)
    assert torch.equal(y.detach().cpu()[kept].unique(), scaled.reshape(1))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad.cpu() != 0, kept)
    torch.testing.assert_close(grad.cpu()[kept].double().mean(), torch.tensor(1 / 0.75).double(),
                               rtol=8e-3, atol=0)  # fmt: skip


def test_dropout_edges() -> None:
    x = torch.ones(8, device=D)
    assert torch.equal(F.dropout(x, 0.0), x)
    assert torch.equal(F.dropout(x, 0.5, training=False), x)
    assert torch.equal(F.dropout(x, 1.0), torch.zeros_like(x))
    assert F.dropout(torch.ones(0, 3, device=D)).shape == (0, 3)
    values, mask = torch.native_dropout(x, 0.5, False)
    assert torch.equal(values, x) and mask.dtype == torch.bool and mask.all()
    values, mask = torch.native_dropout(x, 1.0, True)
    assert not values.any() and not mask.any()
    bad = torch.full((4,), torch.nan, device=D)
    assert torch.native_dropout(bad, 0.0, True)[0].isnan().all()
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        torch.native_dropout(x, 1.5, True)


def test_dropout_mask_does_not_depend_on_layout_or_dtype() -> None:
    masks = []
    for x in (
        torch.ones(30, 40, device=D),
        torch.ones(40, 30, device=D).t(),
        torch.ones(30, 40, device=D, dtype=torch.bfloat16),
    ):
        torch.manual_seed(9)
        masks.append(torch.native_dropout(x, 0.5, True)[1].cpu())
    assert torch.equal(masks[0], masks[1]) and torch.equal(masks[0], masks[2])


def test_normal_with_tensor_parameters() -> None:
    torch.manual_seed(0)
    mean = torch.tensor([0.0, 10.0], device=D).expand(N, 2)
    std = torch.tensor([1.0, 3.0], device=D).expand(N, 2)
    for values, spread in [
        (torch.normal(mean, std), (1.0, 3.0)),
        (torch.normal(mean, 2.0), (2.0, 2.0)),
        (torch.normal(5.0, std) - 5.0 + mean, (1.0, 3.0)),
    ]:
        for column, (m, s) in enumerate(zip((0.0, 10.0), spread, strict=True)):
            close(values[:, column].cpu().double().mean(), m, s / math.sqrt(N))
            close(values[:, column].cpu().double().std(), s, s / math.sqrt(2 * N))
    with pytest.raises(RuntimeError, match="std"):
        torch.normal(mean, -std)


def test_poisson_gamma_dirichlet_binomial() -> None:
    torch.manual_seed(0)
    n = 50_000
    for rate in (0.0, 0.5, 4.0, 30.0, 400.0):
        counts = torch.poisson(torch.full((n,), rate, device=D)).cpu().double()
        close(counts.mean(), rate, math.sqrt(rate / n))
        close(counts.var(), rate, math.sqrt((rate + 2 * rate**2) / n) + 1e-9)
    for alpha in (0.3, 1.0, 7.0):
        gamma = torch._standard_gamma(torch.full((n,), alpha, device=D)).cpu().double()
        assert (gamma > 0).all()
        close(gamma.mean(), alpha, math.sqrt(alpha / n))
    shares = torch._sample_dirichlet(torch.tensor([1.0, 2.0, 5.0], device=D).expand(n, 3)).cpu()
    torch.testing.assert_close(shares.sum(1), torch.ones(n))
    close(shares[:, 2].double().mean(), 5 / 8, math.sqrt(15 / 64 / 9 / n))
    trials = torch.binomial(torch.full((n,), 20.0, device=D), torch.tensor(0.3, device=D).expand(n))
    close(trials.cpu().double().mean(), 6.0, math.sqrt(4.2 / n))
    assert torch.distributions.Beta(torch.tensor(2.0, device=D), 3.0).sample((5,)).shape == (5,)


def test_rrelu() -> None:
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 1001, device=D, requires_grad=True)
    y = F.rrelu(x, 0.1, 0.4, training=True)
    slopes = (y / x).detach().cpu()[:500]
    assert slopes.min() >= 0.1 - 1e-6 and slopes.max() <= 0.4 + 1e-6 and slopes.std() > 0.05
    assert torch.equal(y[501:], x[501:])
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad.cpu()[:500], slopes)
    torch.testing.assert_close(
        F.rrelu(x, 0.1, 0.4).detach().cpu(), F.rrelu(x.detach().cpu(), 0.1, 0.4)
    )


def test_initialisers_and_samplers() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(300, 200, device=D)
    bound = 1 / math.sqrt(300)
    assert layer.weight.abs().max() <= bound and layer.weight.std() > 0.5 * bound
    torch.nn.init.orthogonal_(layer.weight)
    torch.testing.assert_close(
        (layer.weight @ layer.weight.T).cpu(), torch.eye(200), rtol=1e-4, atol=1e-4
    )
    torch.nn.init.trunc_normal_(layer.weight, std=0.02)
    sampler = torch.distributions.Categorical(logits=torch.zeros(4, device=D))
    assert sampler.sample((100,)).unique().numel() == 4
    assert F.gumbel_softmax(torch.zeros(3, 5, device=D), hard=True).sum().item() == 3


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="one code path only")
def test_same_numbers_without_wide_instructions() -> None:
    program = (
        "import torch, ruda_torch, zlib; torch.manual_seed(3); "
        "print(zlib.crc32(torch.rand(5000, device='ruda').cpu().numpy().tobytes()))"
    )
    results = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "RUDA_CPU": level},
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
        for level in ("auto", "baseline")
    }
    torch.manual_seed(3)
    here = zlib.crc32(torch.rand(5000, device=D).cpu().numpy().tobytes())
    assert results == {f"{here}\n"}

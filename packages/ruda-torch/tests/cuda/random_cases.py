"""Random numbers to draw on either target. `draw()` gives a list of tensors on the CPU for every
case: the results, then the generator's state after it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

D = "ruda"
FLOATING = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
N = 2501  # several programs, the last one in part; no multiple of a counter block

EXACT: dict[str, Callable[[], object]] = {
    "rand_nothing": lambda: torch.rand(0, 3, device=D),
    "randint": lambda: torch.randint(-5, 100, (N,), device=D),
    "randint_int32": lambda: torch.randint(0, 7, (N,), device=D, dtype=torch.int32),
    "randint_int8": lambda: torch.randint(-100, 100, (N,), device=D, dtype=torch.int8),
    "randint_uint8": lambda: torch.randint(0, 255, (N,), device=D, dtype=torch.uint8),
    "randint_float32": lambda: torch.randint(0, 9, (N,), device=D, dtype=torch.float32),
    "random_int64": lambda: torch.empty(N, device=D, dtype=torch.int64).random_(),
    "random_all": lambda: torch.empty(N, device=D, dtype=torch.int64).random_(-(2**63), None),
    "random_int32": lambda: torch.empty(N, device=D, dtype=torch.int32).random_(),
    "random_bool": lambda: torch.empty(N, device=D, dtype=torch.bool).random_(),
    "random_float32": lambda: torch.empty(N, device=D).random_(),
    "random_transposed": lambda: torch.empty(30, 40, device=D, dtype=torch.int64).t().random_(9),
    "bernoulli_float32": lambda: torch.empty(N, device=D).bernoulli_(0.3),
    "bernoulli_bfloat16": lambda: torch.empty(N, device=D, dtype=torch.bfloat16).bernoulli_(0.3),
    "bernoulli_bool": lambda: torch.empty(N, device=D, dtype=torch.bool).bernoulli_(0.3),
    "bernoulli_int64": lambda: torch.empty(N, device=D, dtype=torch.int64).bernoulli_(0.3),
    "bernoulli_transposed": lambda: torch.empty(30, 40, device=D).t().bernoulli_(0.5),
    "bernoulli_never": lambda: torch.empty(N, device=D).bernoulli_(0.0),
    "bernoulli_always": lambda: torch.empty(N, device=D).bernoulli_(1.0),
    "randperm": lambda: torch.randperm(1000, device=D),
    "randperm_int32": lambda: torch.randperm(77, device=D, dtype=torch.int32),
    "multinomial": lambda: torch.multinomial(torch.arange(1.0, 51.0).to(D), 20),
    "multinomial_rows": lambda: torch.multinomial(torch.arange(1.0, 51.0).view(2, 25).to(D), 1),
    "multinomial_again": lambda: torch.multinomial(torch.arange(0.0, 9.0).to(D), 40, True),
    "dropout_nothing": lambda: F.dropout(torch.ones(3, 0).to(D), 0.5),
    "dropout_off": lambda: torch.native_dropout(torch.arange(9.0).to(D), 0.5, False),
    "dropout_rows": lambda: torch.native_dropout(numbers((30, 40)).to(D).t(), 0.2, True),
    "geometric_int64": lambda: torch.empty(N, device=D, dtype=torch.int64).geometric_(0.2),
    "geometric_float32": lambda: torch.empty(N, device=D).geometric_(0.7),
    "two_draws": lambda: (torch.rand(5, device=D), torch.rand(5, device=D)),
    "own_generator": lambda: torch.rand(N, device=D, generator=generator()),
}
"""What is bit-equal to the host."""

NEAR: dict[str, Callable[[], object]] = {
    "normal_transposed": lambda: torch.empty(30, 40, device=D).t().normal_(),
    "normal_odd": lambda: torch.randn(7, device=D),
    "own_generator_normal": lambda: torch.randn(N, device=D, generator=generator()),
}
"""What differs by the last bits of a logarithm, a sine or a cosine."""

CAUCHY: dict[str, Callable[[], object]] = {
    name: lambda dtype=dtype: torch.empty(N, device=D, dtype=dtype).cauchy_(0.5, 2.0)
    for name, dtype in FLOATING.items()
}

for name, dtype in FLOATING.items():
    empty = lambda dtype=dtype: torch.empty(N, device=D, dtype=dtype)  # noqa: E731
    EXACT |= {
        f"rand_{name}": lambda dtype=dtype: torch.rand(N, device=D, dtype=dtype),
        f"uniform_{name}": lambda empty=empty: empty().uniform_(-0.3, 0.7),
        f"uniform_point_{name}": lambda empty=empty: empty().uniform_(2, 2),
        f"dropout_{name}": lambda dtype=dtype: torch.native_dropout(
            numbers((N,)).to(dtype).to(D), 0.1, True
        ),
        f"dropout_all_{name}": lambda dtype=dtype: torch.native_dropout(
            numbers((9,)).to(dtype).to(D), 1.0, True
        ),
        f"bernoulli_each_{name}": lambda dtype=dtype: torch.empty(N, device=D).bernoulli_(
            torch.linspace(0, 1, N).to(dtype).to(D)
        ),
        f"bernoulli_of_{name}": lambda dtype=dtype: torch.bernoulli(
            torch.linspace(0, 1, N).to(dtype).to(D)
        ),
    }
    NEAR |= {
        f"randn_{name}": lambda dtype=dtype: torch.randn(N, device=D, dtype=dtype),
        f"normal_{name}": lambda empty=empty: empty().normal_(-2.0, 0.02),
        f"exponential_{name}": lambda empty=empty: empty().exponential_(1.5),
        f"log_normal_{name}": lambda empty=empty: empty().log_normal_(0.5, 0.25),
    }


def numbers(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def generator() -> torch.Generator:
    return torch.Generator(D).manual_seed(2**40 + 3)


def run(case: Callable[[], object]) -> list[Tensor]:
    torch.manual_seed(11)
    result = case()
    tensors = result if isinstance(result, tuple) else (result,)
    return [tensor.cpu() for tensor in tensors] + [torch.ruda.get_rng_state()]


def draw() -> dict[str, list[Tensor]]:
    return {name: run(case) for name, case in {**EXACT, **NEAR, **CAUCHY}.items()}

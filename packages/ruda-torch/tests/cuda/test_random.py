"""Random operators on the cuda target draw the host target's numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from .host_process import on_host
from .random_cases import CAUCHY, EXACT, FLOATING, NEAR, D, run

TOLERANCE = {
    torch.float32: 5e-7,
    torch.float64: 1e-15,
    torch.float16: 2**-10,
    torch.bfloat16: 2**-7,
}
"""Of the number and of its distribution's width: normal numbers near 0 are differences."""


@pytest.fixture(scope="module")
def host() -> dict[str, list[Tensor]]:
    return on_host(Path(__file__).with_name("random_cases.py"), "draw")


@pytest.mark.parametrize("name", list(EXACT))
def test_numbers_are_the_hosts(host, name: str) -> None:
    drawn = run(EXACT[name])
    assert len(drawn) == len(host[name])
    for here, there in zip(drawn, host[name]):
        assert here.dtype == there.dtype
        assert torch.equal(here, there)


@pytest.mark.parametrize("name", list(NEAR))
def test_numbers_are_close_to_the_hosts(host, name: str) -> None:
    (here, state), (there, host_state) = run(NEAR[name]), host[name]
    assert here.dtype == there.dtype
    assert torch.equal(state, host_state)
    tolerance = TOLERANCE[here.dtype]
    torch.testing.assert_close(here, there, rtol=tolerance, atol=tolerance)
    assert len(here.unique()) > 6  # of bfloat16 near -2


@pytest.mark.parametrize("name", list(FLOATING))
def test_cauchy(host, name: str) -> None:
    """Angles near a right one make steps of their last bit large: near the median only."""
    (here, state), (there, host_state) = run(CAUCHY[name]), host[name]
    assert here.dtype == there.dtype
    assert torch.equal(state, host_state)
    near = there.abs() < 8
    tolerance = 4 * TOLERANCE[here.dtype]
    torch.testing.assert_close(here[near], there[near], rtol=tolerance, atol=tolerance)
    assert near.sum() > 0.7 * len(there)


def test_dropout_has_its_gradient() -> None:
    x = torch.ones(700, device=D, requires_grad=True)
    y = F.dropout(x, 0.25)
    y.backward(torch.full((700,), 3.0, device=D))
    assert torch.equal(x.grad.cpu(), y.detach().cpu() * 3)


def test_random_leaky_relu_draws_its_slopes() -> None:
    x = torch.linspace(-2, 2, 401).to(D)
    slopes = (F.rrelu(x, 0.25, 0.5, training=True) / x).cpu()
    assert ((slopes[:200] >= 0.25 - 1e-6) & (slopes[:200] <= 0.5 + 1e-6)).all()
    assert torch.equal(slopes[201:], torch.ones(200))
    assert len(slopes[:200].unique()) > 150


@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan")])
def test_bernoulli_refuses_what_is_no_probability(wrong: float) -> None:
    p = torch.full((300,), 0.5)
    p[177] = wrong
    with pytest.raises(RuntimeError, match="Expected p_in >= 0 && p_in <= 1"):
        torch.bernoulli(p.to(D))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.poisson(torch.ones(5, device=D)),
        lambda: torch._standard_gamma(torch.ones(5, device=D)),
        lambda: torch._sample_dirichlet(torch.ones(5, device=D)),
        lambda: torch.binomial(torch.ones(5, device=D), torch.ones(5, device=D)),
    ],
)
def test_the_rest_is_refused(draw) -> None:
    with pytest.raises(NotImplementedError, match="target cuda"):
        draw()


def test_launches_are_those_of_launch_py(request: pytest.FixtureRequest) -> None:
    """Dtypes, constants, promised alignment and grids, of nll_loss too."""
    if request.config.getoption("--target") != "double":
        pytest.skip("the driver double counts launches")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUDA_")}
    double = {"RUDA_TARGET": "cuda", "RUDA_CUDA_DRIVER": "double", "RUDA_DOUBLE_RECORD_ONLY": "1"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("random_launches.py"))],
        env={**kept, **double}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

"""Which threads do the work: the runtime's pool, as many as torch says, and no OpenMP team."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import ruda_torch


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> int:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def run() -> tuple[torch.Tensor, ...]:
    """A product, a norm and elementwise work, large enough for many parts."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(700, 900, generator=generator).to("ruda:0")
    w = torch.randn(300, 900, generator=generator).to("ruda:0")
    columns = x.T.sigmoid().mul_(2)  # strided
    broadcast = torch.addcmul(x, x[:1], x[:, :1], value=0.5).to(torch.bfloat16)
    return tuple(
        result.cpu() for result in (x @ w.T, ruda_torch.rms_norm(x, None, 1e-6), columns, broadcast)
    )


def test_results_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    torch.set_num_threads(1)
    wanted = run()
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(run(), wanted, strict=True))


STEP = """
from pathlib import Path
import torch, ruda_torch

def names():
    return [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]

torch.set_num_threads(3)
x = torch.empty(600, 1000, device="ruda:0").fill_(0.5)
before = names()  # with the pool's two
w = torch.ones(400, 1000, device="ruda:0", requires_grad=True)
for _ in range(2):
    y = ruda_torch.rms_norm(x, None, 1e-6) + x * 2.0
    z = (y @ w.t()).tanh() * 0.5
    z.detach().clamp_(max=0.4)
    z = z.clone().to(torch.bfloat16).to(torch.float32)
    z = torch.nn.functional.scaled_dot_product_attention(*[z.view(1, 6, 100, 400)] * 3)
    z[:, :, :40].sum().backward()
    w.data.add_(w.grad, alpha=-0.1)
    ids = torch.arange(400, device="ruda:0")
    w[ids[:50]].sum().item()
after = names()
print(len(after) - len(before) - sum("autograd" in name for name in after))  # idle threads of torch
print(after.count("ruda-worker"))
"""


def test_a_training_step_starts_no_openmp_team() -> None:
    """Its idle threads would spin, and each of its loops would wait for its slowest thread."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RUDA_", "OMP"))}
    done = subprocess.run(
        [sys.executable, "-c", STEP], capture_output=True, text=True, timeout=300,
        env={**kept, "RUDA_TARGET": "host", "RUDA_NUM_THREADS": "3"}, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["0", "2"]

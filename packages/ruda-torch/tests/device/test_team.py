"""ruda's kernels run on ATen's threads: one team, and results that do not depend on its size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ruda_runtime
import ruda_torch


def thread_names() -> list[str]:
    return [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> int:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def run() -> tuple[torch.Tensor, torch.Tensor]:
    """A product and a norm, large enough for many parts."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(700, 900, generator=generator).to("ruda:0")
    w = torch.randn(300, 900, generator=generator).to("ruda:0")
    return (x @ w.T).cpu(), ruda_torch.rms_norm(x, None, 1e-6).cpu()


def test_no_second_team_of_threads_and_equal_results(threads: int) -> None:
    torch.set_num_threads(1)
    wanted = run()
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(run(), wanted))
    # Queued work keeps off the team on purpose: its worker would get a second one.
    assert ruda_runtime._native.asynchronous() or "ruda-worker" not in thread_names()

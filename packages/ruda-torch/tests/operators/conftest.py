"""ATen's kernels on one thread: tensors here are tiny, and on a machine that does other work every
parallel region of OpenMP waits for its slowest thread."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

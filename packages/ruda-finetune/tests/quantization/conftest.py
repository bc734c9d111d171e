from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=["cpu", "ruda:0"])
def device(request):
    if request.param != "cpu":
        import ruda_torch  # noqa: F401 - registers the device
    return torch.device(request.param)

"""Tensors elsewhere: one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ruda_torch

x = torch.ones(2, 64)
CALLS: dict[str, Callable[[], object]] = {
    "rms_norm": lambda: ruda_torch.rms_norm(x),
    "silu_mul": lambda: ruda_torch.silu_mul(x, x),
    "nf4_linear": lambda: ruda_torch.nf4_linear(
        x, x, x, x, out_features=1, in_features=64, block_size=64
    ),
    "linear_cross_entropy": lambda: ruda_torch.linear_cross_entropy(x, x, torch.zeros(2).long()),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_cpu_tensor_is_refused_by_name(name: str) -> None:
    with pytest.raises(TypeError, match=rf"\[{name}\] .*got a tensor on cpu.*\.to\(\"ruda\"\)"):
        CALLS[name]()

"""Tensors on the device, float64 values, and the criteria of a right result with torch as peer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ruda_runtime import conformance

Array = NDArray[np.float64]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def normal(*shape: int, dtype: torch.dtype, seed: int, scale: float = 1.0) -> Tensor:
    """On the CPU, already rounded to the dtype."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator)).to(dtype)


def on_ruda(tensor: Tensor, grad: bool = True) -> Tensor:
    return tensor.detach().to("ruda").requires_grad_(grad and tensor.is_floating_point())


def values(tensor: Tensor) -> Array:
    return tensor.detach().cpu().double().numpy()


def check(
    actual: Tensor,
    reference: Array,
    dtype: torch.dtype,
    *,
    peer: Tensor | None = None,
    long_reduction: bool = False,
    name: str = "result",
) -> None:
    """ruda_runtime.conformance on a tensor of the device; ``peer`` is torch's result."""
    assert actual.dtype == dtype, (name, actual.dtype)
    assert actual.device.type == "ruda", (name, actual.device)
    conformance.check(
        values(actual),
        reference,
        name_of(dtype),
        peer=None if peer is None else values(peer),
        long_reduction=long_reduction,
        name=name,
    )


def same_bits(left: Tensor, right: Tensor) -> bool:
    first, second = (tensor.detach().cpu().reshape(-1) for tensor in (left, right))
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))

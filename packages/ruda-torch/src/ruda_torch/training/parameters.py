"""Which parameters and gradients the native optimiser takes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

STORAGE = (torch.float32, torch.float16, torch.bfloat16)


def check_parameter(parameter: Tensor, name: str) -> None:
    """A dense leaf on ruda of a dtype with kernels; ``name`` goes into the error text."""
    if parameter.device.type != "ruda":
        raise TypeError(
            f"[AdamW] {name}: got a parameter on {parameter.device}, wanted one on ruda:0; move "
            "the model before making the optimiser"
        )
    if parameter.dtype not in STORAGE:
        raise TypeError(
            f"[AdamW] {name}: got dtype {parameter.dtype}, wanted float32, float16 or bfloat16"
        )
    if not parameter.is_leaf:
        raise ValueError(f"[AdamW] {name}: got a tensor that is no leaf, wanted a parameter")
    if not torch.ops.aten.is_non_overlapping_and_dense(parameter):
        raise ValueError(
            f"[AdamW] {name}: got strides {tuple(parameter.stride())} for shape "
            f"{tuple(parameter.shape)}, wanted memory without gaps or overlaps"
        )


def check_overlap(parameters: Iterable[tuple[str, Tensor]]) -> None:
    """No two parameters share memory: one would be updated twice."""
    spans = sorted(
        (parameter.data_ptr(), parameter.data_ptr() + parameter.nbytes, name)
        for name, parameter in parameters
        if parameter.numel() != 0
    )
    for (_, end, name), (start, _, other) in pairwise(spans):
        if start < end:
            raise ValueError(
                f"[AdamW] {name} and {other} share memory: got overlapping parameters, wanted each "
                "once"
            )


def check_gradient(parameter: Tensor, name: str) -> Tensor:
    """The parameter's gradient: dense, on its device; ``name`` goes into the error text."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.layout is not torch.strided:
        raise NotImplementedError(
            f"[AdamW] gradient of {name}: got layout {gradient.layout}, wanted a dense gradient; "
            "sparse gradients have no kernel (nn.Embedding(sparse=False))"
        )
    if gradient.device != parameter.device:
        raise TypeError(
            f"[AdamW] gradient of {name}: got it on {gradient.device}, wanted {parameter.device}"
        )
    if gradient.dtype not in (torch.float32, parameter.dtype):
        raise TypeError(
            f"[AdamW] gradient of {name}: got dtype {gradient.dtype}, wanted the parameter's "
            f"{parameter.dtype} or float32"
        )
    # The first question is answered without a dispatch and settles nearly every gradient.
    if not gradient.is_contiguous() and not torch.ops.aten.is_non_overlapping_and_dense(gradient):
        raise ValueError(
            f"[AdamW] gradient of {name}: got strides {tuple(gradient.stride())} for shape "
            f"{tuple(gradient.shape)}, wanted memory without gaps or overlaps; replace it by its "
            "contiguous(), for example parameter.grad = parameter.grad.contiguous()"
        )
    return gradient


def check_numbers(group: dict[str, Any]) -> None:
    """The settings of one parameter group."""
    betas = group["betas"]
    if len(betas) != 2 or not all(0.0 <= float(beta) < 1.0 for beta in betas):
        raise ValueError(f"[AdamW] betas: got {betas}, wanted two numbers in [0, 1)")
    for key in ("lr", "eps", "weight_decay"):
        value = float(group[key])
        if not 0.0 <= value < float("inf"):
            raise ValueError(f"[AdamW] {key}: got {value}, wanted a finite number >= 0")

"""Modules over the native training operations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .functional import layer_norm, rms_norm


class RMSNorm(nn.Module):
    """:func:`ruda_torch.rms_norm` over the last axis with a trainable weight.

    Args:
        width: size of the last axis.
        eps: positive; None is the machine epsilon of the input's dtype.
        elementwise_affine: whether there is a weight (ones at the start).
        device, dtype: of the weight; float32 by default, whatever torch's default dtype. The module
            may be built on the CPU and moved to ruda before it runs.

    Raises:
        ValueError: width is not positive, or eps is not positive.
    """

    weight: nn.Parameter | None

    def __init__(
        self,
        width: int,
        eps: float | None = 1e-5,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"[RMSNorm] width: got {width}, wanted a positive number")
        if eps is not None and not eps > 0:
            raise ValueError(f"[RMSNorm] eps: got {eps}, wanted a positive number")
        self.width = width
        self.eps = eps
        if elementwise_affine:
            self.weight = nn.Parameter(
                torch.ones(width, device=device, dtype=dtype or torch.float32)
            )
        else:
            self.register_parameter("weight", None)

    def reset_parameters(self) -> None:
        """Set the weight to ones."""
        if self.weight is not None:
            nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width]`` on ruda -> the same shape and dtype."""
        if x.shape[-1:] != (self.width,):
            raise ValueError(f"[RMSNorm] x: got shape {list(x.shape)}, wanted [..., {self.width}]")
        return rms_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}, elementwise_affine={self.weight is not None}"


class LayerNorm(nn.Module):
    """:func:`ruda_torch.layer_norm` over the last axis with trainable weight and bias.

    Args:
        width: size of the last axis.
        eps: positive.
        elementwise_affine: whether there is a weight (ones at the start), and with it a bias.
        bias: whether there is a bias (zeros at the start) beside the weight.
        device, dtype: of both; float32 by default, whatever torch's default dtype. The module may
            be built on the CPU and moved to ruda before it runs.

    Raises:
        ValueError: width or eps is not positive.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        width: int,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"[LayerNorm] width: got {width}, wanted a positive number")
        if not eps > 0:
            raise ValueError(f"[LayerNorm] eps: got {eps}, wanted a positive number")
        self.width = width
        self.eps = eps
        made = {"device": device, "dtype": dtype or torch.float32}
        weight = nn.Parameter(torch.ones(width, **made)) if elementwise_affine else None
        self.register_parameter("weight", weight)
        shift = nn.Parameter(torch.zeros(width, **made)) if elementwise_affine and bias else None
        self.register_parameter("bias", shift)

    def reset_parameters(self) -> None:
        """Set the weight to ones and the bias to zeros."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width]`` on ruda -> the same shape and dtype."""
        if x.shape[-1:] != (self.width,):
            raise ValueError(
                f"[LayerNorm] x: got shape {list(x.shape)}, wanted [..., {self.width}]"
            )
        return layer_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.width}, eps={self.eps}, elementwise_affine={self.weight is not None}, "
            f"bias={self.bias is not None}"
        )

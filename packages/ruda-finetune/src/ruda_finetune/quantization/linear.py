"""A linear layer whose weight is stored as packed NF4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from ..errors import QuantizationError
from .pack import check_block_size, nf4_codebook, pack_nf4, packed_sizes, unpack_nf4


class _ReferenceProduct(torch.autograd.Function):
    """x @ W^T on any device with plain torch operators; the dense weight lives only inside a call.

    Accumulates in float32 (float64 for float64 inputs) and rounds once, as the kernels do.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: NF4Linear) -> torch.Tensor:
        ctx.layer = layer
        compute = torch.promote_types(x.dtype, torch.float32)
        return F.linear(x.to(compute), layer.dequantize(compute)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        compute = torch.promote_types(grad.dtype, torch.float32)
        return torch.matmul(grad.to(compute), ctx.layer.dequantize(compute)).to(grad.dtype), None


class NF4Linear(nn.Module):
    """`y = x @ W^T + bias` with W kept as NF4 codes and block scales; no dense copy is stored.

    in_features, out_features: the weight is [out_features, in_features].
    packed: uint8 [ceil(out*in/2)]; scales: float32 [ceil(out*in/block_size)]; see `pack_nf4`.
    block_size: values that share one scale. tile_rows: weight rows decoded at a time, which bounds
        the working memory of the product.
    bias: [out_features] or None.

    x is [..., in_features] in float32, float16 or bfloat16; the result has x's dtype, whatever
    dtype the layer was made from. Gradients go to x (once: no double backward) and to a trainable
    bias, never to W.

    State dict: `packed`, `scales` and, if present, `bias`. The codebook is a constant and is not
    stored. `.to(dtype)` and `.half()` change the bias only: scales and codebook stay float32.

    On `ruda:0` the product is `torch.ops.ruda.nf4_linear`. On the CPU it is the reference path:
    dequantise, then multiply, with the dense weight alive only during the call.
    """

    packed: torch.Tensor
    scales: torch.Tensor
    codebook: torch.Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        packed: torch.Tensor,
        scales: torch.Tensor,
        block_size: int = 64,
        tile_rows: int = 128,
        bias: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        for name, value in (
            ("in_features", in_features),
            ("out_features", out_features),
            ("tile_rows", tile_rows),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise QuantizationError(
                    f"[NF4Linear] {name} must be a positive integer: got {value!r}"
                )
        check_block_size(block_size, "NF4Linear")
        bytes_, blocks = packed_sizes(out_features, in_features, block_size)
        _check("packed", packed, torch.uint8, [bytes_])
        _check("scales", scales, torch.float32, [blocks])
        if scales.device != packed.device:
            raise QuantizationError(
                f"[NF4Linear] packed is on {packed.device} but scales on {scales.device}"
            )
        if bias is not None and list(bias.shape) != [out_features]:
            raise QuantizationError(
                f"[NF4Linear] bias must have shape [{out_features}]: got {list(bias.shape)}"
            )
        self.in_features = in_features
        self.out_features = out_features
        self.block_size = block_size
        self.tile_rows = tile_rows
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)
        self.register_buffer("codebook", nf4_codebook(packed.device), persistent=False)
        if bias is not None and not isinstance(bias, nn.Parameter):
            bias = nn.Parameter(bias, requires_grad=False)
        self.register_parameter("bias", bias)

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, block_size: int = 64, tile_rows: int = 128
    ) -> NF4Linear:
        """Quantise a dense layer on the CPU; the bias parameter is taken over as it is."""
        packed, scales = pack_nf4(linear.weight, block_size)
        layer = cls(
            linear.in_features,
            linear.out_features,
            packed,
            scales,
            block_size,
            tile_rows,
            linear.bias,
        )
        return layer.train(linear.training)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The dense weight [out_features, in_features], a new tensor on the layer's device."""
        return unpack_nf4(
            self.packed,
            self.scales,
            self.codebook,
            self.out_features,
            self.in_features,
            self.block_size,
            dtype,
        )

    def frozen(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What the operators of `torch.ops.ruda` take as the weight: packed, scales, codebook."""
        buffers: Any = self._buffers  # an attribute of a module costs a microsecond
        return buffers["packed"], buffers["scales"], buffers["codebook"]

    def sizes(self) -> tuple[int, int, int, int]:
        """How it is stored: out_features, in_features, block_size, tile_rows."""
        return self.out_features, self.in_features, self.block_size, self.tile_rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features] -> [..., out_features] in x's dtype."""
        if x.shape[-1:] != (self.in_features,):
            raise QuantizationError(
                f"[NF4Linear] x must have {self.in_features} features: got {list(x.shape)}"
            )
        bias = self.bias
        if bias is not None and bias.dtype != x.dtype:
            bias = bias.to(x.dtype)
        if x.device.type == "ruda":
            # the operator's only gradient is x's: a trainable bias is added outside
            trained = bias is not None and bias.requires_grad and torch.is_grad_enabled()
            y = torch.ops.ruda.nf4_linear(
                x,
                self.packed,
                self.scales,
                self.codebook,
                None if trained else bias,
                self.out_features,
                self.in_features,
                self.block_size,
                self.tile_rows,
            )
            return y + bias if trained else y
        if x.device != self.packed.device:
            raise QuantizationError(
                f"[NF4Linear] x is on {x.device} but the layer on {self.packed.device}"
            )
        y = _ReferenceProduct.apply(x, self)
        return y if bias is None else y + bias

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        exact = {"scales": self.scales, "codebook": self.codebook}
        super()._apply(fn, recurse)
        for name, before in exact.items():
            after = self._buffers[name]
            if after is not None and after.dtype != torch.float32:
                # the cast has lost digits: move the float32 original instead
                self._buffers[name] = before.to(after.device)
        if exact["codebook"].is_meta and not self.codebook.is_meta:
            self.codebook = nf4_codebook(self.codebook.device)  # to_empty() gave it no values
        return self

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, block_size={self.block_size}, "
            f"tile_rows={self.tile_rows}"
        )


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: list[int]) -> None:
    if tensor.dtype != dtype or list(tensor.shape) != shape or not tensor.is_contiguous():
        raise QuantizationError(
            f"[NF4Linear] {name} must be contiguous {dtype} of shape {shape}: "
            f"got {tensor.dtype} of shape {list(tensor.shape)}"
        )

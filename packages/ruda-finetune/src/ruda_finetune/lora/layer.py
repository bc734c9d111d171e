"""A frozen linear layer with a trainable low-rank update."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..quantization import NF4Linear
from ..targets import module_device

_KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _is_fixed(bias: torch.Tensor) -> bool:
    return bias.dtype in _KERNEL_DTYPES and not bias.requires_grad


class LoRALinear(nn.Module):
    """`base(x) + scaling * B(A(dropout(x)))` (Hu et al., 2021).

    base_layer: `nn.Linear` or `NF4Linear`; it is not changed.
    lora_A: [rank, in_features], Kaiming uniform with a = sqrt(5) as in PEFT; lora_B:
        [out_features, rank], zero, so that the layer starts as its base. Both are trainable, in
        `adapter_dtype`, on the base's device. lora_A is drawn from the CPU generator on every
        device, so that a seed gives the same adapter everywhere.
    scaling: `alpha / rank`, or `alpha / sqrt(rank)` with `use_rslora`.
    dropout: probability that an input of the update is zeroed in training.

    The update is computed in the activation's dtype, whatever dtype the base was stored in; the
    trainable weights are cast on the way, and their gradients come back in `adapter_dtype`. Over
    NF4 on `ruda`, without dropout, base and update are one operator, `ruda::nf4_lora_linear`.
    """

    def __init__(
        self,
        base_layer: nn.Module,
        rank: int = 16,
        alpha: float = 16.0,
        adapter_dtype: torch.dtype = torch.float32,
        dropout: float = 0.0,
        use_rslora: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(base_layer, (nn.Linear, NF4Linear)):
            raise TypeError(
                f"[LoRALinear] base_layer must be a linear layer: got {type(base_layer).__name__}"
            )
        self.in_features = base_layer.in_features
        self.out_features = base_layer.out_features
        self.rank = rank
        self.alpha = alpha
        self.use_rslora = use_rslora
        self.scaling = alpha / math.sqrt(rank) if use_rslora else alpha / rank
        self.base_layer = base_layer
        self.dropout = nn.Dropout(dropout) if dropout > 0 else None
        device = module_device(base_layer)
        down = torch.empty(rank, self.in_features, dtype=torch.float32, device="cpu")
        nn.init.kaiming_uniform_(down, a=math.sqrt(5))
        self.lora_A = nn.Parameter(down.to(device=device, dtype=adapter_dtype))
        self.lora_B = nn.Parameter(
            torch.zeros(self.out_features, rank, dtype=adapter_dtype, device=device)
        )
        self.train(base_layer.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features] -> [..., out_features]."""
        if self.runs_fused(x):
            base = self.base_layer
            return torch.ops.ruda.nf4_lora_linear(
                x, *base.frozen(), base.bias, self.lora_A, self.lora_B, self.scaling, *base.sizes()
            )  # fmt: skip
        rows = x.reshape(-1, x.shape[-1])  # [M, in]
        result = self.base_layer(rows)
        if self.dropout is not None:
            rows = self.dropout(rows)
        # the scaling goes onto the small factor and the sum into the product, so that the result
        # is touched once
        low = F.linear(rows, self.lora_A.to(rows.dtype)) * self.scaling
        low, up = low.to(result.dtype), self.lora_B.to(result.dtype).t()
        if self._owns_result():
            result = result.addmm_(low, up)
        else:
            result = torch.addmm(result, low, up)
        return result.view(*x.shape[:-1], self.out_features)

    def runs_fused(self, x: torch.Tensor) -> bool:
        """Whether base and update are one operator: plain NF4 on ruda, without dropout."""
        base = self._modules["base_layer"]  # an attribute of a module costs a microsecond
        if type(base) is not NF4Linear or x.device.type != "ruda":
            return False
        bias, dropout = base._parameters["bias"], self._modules.get("dropout")
        return (
            base.frozen()[0].device == x.device
            and x.dtype in _KERNEL_DTYPES
            and self._parameters["lora_A"].dtype in _KERNEL_DTYPES  # type: ignore[union-attr]
            and (dropout is None or not self.training)
            and (bias is None or _is_fixed(bias))
            and not (base._forward_hooks or base._forward_pre_hooks)
            and "forward" not in vars(base)
        )

    def _owns_result(self) -> bool:
        """Whether the base's result is a new tensor that nobody else sees."""
        base = self.base_layer
        return type(base) in (nn.Linear, NF4Linear) and not base._forward_hooks

    def delta(self) -> torch.Tensor:
        """The update of the weight, `scaling * B @ A`, float32 [out_features, in_features]."""
        return (self.lora_B.detach().float() @ self.lora_A.detach().float()) * self.scaling

    def extra_repr(self) -> str:
        dropout = self.dropout.p if self.dropout is not None else 0.0
        return (
            f"rank={self.rank}, alpha={self.alpha:g}, dropout={dropout:g}, "
            f"use_rslora={self.use_rslora}, dtype={self.lora_A.dtype}"
        )

"""LoRA over NF4 on `ruda`, several layers at a time: what they share is kept once.

A frozen weight's low-rank update needs its input again in backward. Inputs that are cheap to make
again are not kept: a normalised input is made from the activation that its norm keeps anyway, and
`silu(gate) * up` from gate and up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.modules import module as torch_module

from .layer import LoRALinear

_OPS: Any = torch.ops.ruda


@dataclass(frozen=True)
class NormSource:
    """How a normalised tensor was made: `ruda::rms_norm(x, weight, epsilon)`."""

    x: torch.Tensor
    weight: torch.Tensor
    epsilon: float
    version: int  # of the normalised tensor when it was made


def remember_norm(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
    """Note on `y` that it is `rms_norm(x, weight, epsilon)`, so that its users need not keep it."""
    y._ruda_norm = NormSource(x, weight, epsilon, y._version)  # type: ignore[attr-defined]


def _source_of(y: torch.Tensor) -> NormSource | None:
    source = getattr(y, "_ruda_norm", None)
    unchanged = isinstance(source, NormSource) and source.version == y._version
    return source if unchanged else None


def _bare(module: nn.Module) -> bool:
    """Whether calling the module is calling its class's forward, and nothing else."""
    return "forward" not in vars(module) and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or torch_module._has_any_global_hook()
    )


def can_fuse(x: torch.Tensor, layers: Sequence[nn.Module]) -> bool:
    """Whether these layers can run on `x` as one autograd function.

    All are `LoRALinear` over NF4 without dropout, hooks or a trained bias, on ruda, with gradients
    on. Under autocast and under a compiler the layers run one by one.
    """
    return (
        x.device.type == "ruda"
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("ruda")
        and not torch.compiler.is_compiling()
        and all(
            type(layer) is LoRALinear
            and _bare(layer)
            and layer.runs_fused(x)
            and _bare(layer._modules["base_layer"])  # type: ignore[arg-type]
            for layer in layers
        )
    )


Frozen = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Sizes = tuple[int, int, int, int]


def _adapters(layers: Sequence[Any]) -> list[torch.Tensor]:
    return [layer._parameters[name] for layer in layers for name in ("lora_A", "lora_B")]


def _base(layer: LoRALinear) -> Any:
    return layer._modules["base_layer"]


class _Projections(torch.autograd.Function):
    """Several layers of one input: y_i = layer_i(x)."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: torch.Tensor,  # [..., in]
        source: NormSource | None,
        layers: Sequence[LoRALinear],
        *adapters: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        lows, outputs, ctx.fixed = [], [], []
        for layer, down, up in zip(layers, adapters[::2], adapters[1::2]):
            base = _base(layer)
            frozen, sizes = base.frozen(), base.sizes()
            low = _OPS.lora_low(x, down, layer.scaling)
            bias = base._parameters["bias"]
            outputs.append(_OPS.nf4_lora_linear_from_low(x, low, *frozen, bias, up, *sizes))
            lows.append(low)
            ctx.fixed.append((frozen, sizes))
        ctx.epsilon = None if source is None else source.epsilon
        kept = [x] if source is None else [source.x, source.weight]
        ctx.scalings = [layer.scaling for layer in layers]
        ctx.save_for_backward(*kept, *lows, *adapters)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        saved, count = ctx.saved_tensors, len(grads)
        lows, adapters = saved[-3 * count : -2 * count], saved[-2 * count :]
        x = saved[0]
        if ctx.epsilon is not None:
            x = _OPS.rms_norm(x.contiguous(), saved[1], ctx.epsilon)
        total: torch.Tensor | None = None
        factors: list[torch.Tensor | None] = []
        for index, grad in enumerate(grads):
            if grad is None:
                factors += [None, None]
                continue
            wanted = [ctx.needs_input_grad[i] for i in (0, 3 + 2 * index, 4 + 2 * index)]
            frozen, sizes = ctx.fixed[index]
            down, up = adapters[2 * index : 2 * index + 2]
            dx, ddown, dup = _OPS.nf4_lora_linear_backward(
                grad, x, lows[index], *frozen, down, up, ctx.scalings[index], *sizes, wanted
            )
            if wanted[0]:
                total = dx if total is None else total.add_(dx)
            factors += [ddown if wanted[1] else None, dup if wanted[2] else None]
        return total, None, None, *factors


def project(x: torch.Tensor, layers: Sequence[nn.Module]) -> tuple[torch.Tensor, ...]:
    """`tuple(layer(x) for layer in layers)`, as one autograd function where that is possible."""
    if can_fuse(x, layers):
        return _Projections.apply(x, _source_of(x), layers, *_adapters(layers))  # type: ignore[no-any-return]
    return tuple(layer(x) for layer in layers)


class _Gated(torch.autograd.Function):
    """(silu(gate) * up, its low-rank image): the first half of the down projection.

    It keeps everything that both halves need. The second half keeps nothing, and so activation
    checkpointing, which computes a layer again until its last kept tensor is there, leaves that
    product out.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        gate: torch.Tensor,
        up: torch.Tensor,
        layer: LoRALinear,
        lora_a: torch.Tensor,
        lora_b: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        product = _OPS.silu_mul(gate, up)
        low = _OPS.lora_low(product, lora_a, layer.scaling)
        ctx.mark_non_differentiable(low)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gate, up, low, lora_a, lora_b)
        return product, low

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor | None, _: None) -> tuple[Any, ...]:
        if grad is None:
            return (None,) * 5
        gate, up = ctx.opened  # by the second half: checkpointing lets a tensor be opened once
        del ctx.opened
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1]]
        dgate, dup = _OPS.silu_mul_backward(grad, gate, up, wanted)
        return dgate if wanted[0] else None, dup if wanted[1] else None, None, None, None


class _Down(torch.autograd.Function):
    """The down projection of `_Gated`'s results; what backward needs is kept there."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        product: torch.Tensor,
        low: torch.Tensor,
        first: Any,  # _Gated's node
        layer: LoRALinear,
        lora_a: torch.Tensor,
        lora_b: torch.Tensor,
    ) -> torch.Tensor:
        base = _base(layer)
        ctx.first, ctx.scaling = first, layer.scaling
        ctx.frozen, ctx.sizes = base.frozen(), base.sizes()
        return _OPS.nf4_lora_linear_from_low(
            product, low, *ctx.frozen, base._parameters["bias"], lora_b, *ctx.sizes
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        gate, up, low, lora_a, lora_b = ctx.first.saved_tensors
        ctx.first.opened = gate, up
        wanted = [ctx.needs_input_grad[i] for i in (0, 4, 5)]
        product = _OPS.silu_mul(gate, up)
        dx, da, db = _OPS.nf4_lora_linear_backward(
            grad, product, low, *ctx.frozen, lora_a, lora_b, ctx.scaling, *ctx.sizes, wanted
        )
        return (
            dx if wanted[0] else None, None, None, None,
            da if wanted[1] else None, db if wanted[2] else None,
        )  # fmt: skip


def gated_down(gate: torch.Tensor, up: torch.Tensor, down: nn.Module) -> torch.Tensor | None:
    """`down(silu(gate) * up)` without keeping the product, or None where that is not possible."""
    if not (gate.requires_grad and gate.dtype == up.dtype and can_fuse(gate, (down,))):
        return None
    layer: Any = down
    product, low = _Gated.apply(gate, up, layer, layer.lora_A, layer.lora_B)
    return _Down.apply(product, low, product.grad_fn, layer, layer.lora_A, layer.lora_B)  # type: ignore[no-any-return]

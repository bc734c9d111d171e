"""One optimiser update: gradient norm, clipping, loss scale, and whether it was skipped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..errors import FinetuneError


def _setting(optimizer: torch.optim.Optimizer, name: str) -> Any:
    """A setting of the whole optimiser: an attribute, or among its defaults."""
    return getattr(optimizer, name, optimizer.defaults.get(name))


class OptimizerUpdate:
    """Steps an optimiser once per window and reports the gradient norm and a skipped update.

    `ruda_torch.AdamW(fused_step=True)` measures and clips inside its own step, in one pass over the
    gradients; every other optimiser gets `torch.nn.utils`' norm and clipping before its step.
    Non-finite gradients skip the update with every optimiser.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, scaler: Any, max_grad_norm: float | None
    ) -> None:
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise FinetuneError(f"[SFTTrainer] max_grad_norm must be positive, got {max_grad_norm}")
        self.optimizer = optimizer
        self.scaler = scaler
        self.max_grad_norm = max_grad_norm
        # Optimisers that check gradients themselves say so by these attributes.
        self.checks = hasattr(optimizer, "last_step_skipped")
        self.fused = self.checks and bool(_setting(optimizer, "fused_step"))
        if self.fused:
            self._adopt_fused_clipping()
        unscales = scaler is None or hasattr(scaler, "unscale_")
        if not self.fused and not unscales and max_grad_norm is not None:
            raise FinetuneError(
                f"[SFTTrainer] {type(scaler).__name__} does not unscale gradients before the step, "
                "so they can be clipped only inside it: make the optimiser with "
                f"AdamW(fused_step=True, max_grad_norm={max_grad_norm})"
            )

    def _adopt_fused_clipping(self) -> None:
        own = _setting(self.optimizer, "max_grad_norm")
        if self.max_grad_norm is not None and own != self.max_grad_norm:
            raise FinetuneError(
                f"[SFTTrainer] max_grad_norm is {self.max_grad_norm}, but the optimiser, which "
                f"clips in its own fused step, was made with max_grad_norm={own}: give it the same"
            )
        self.max_grad_norm = own

    def apply(self, parameters: Sequence[nn.Parameter]) -> tuple[float | None, bool]:
        """Step once: (gradient norm before clipping, skipped)."""
        if self.fused:
            self._step()
            norm = getattr(self.optimizer, "last_grad_norm", None)
            return (None if norm is None else float(norm)), bool(self.optimizer.last_step_skipped)  # type: ignore[attr-defined]
        scale = 1.0
        if self.scaler is not None:
            if hasattr(self.scaler, "unscale_"):
                self.scaler.unscale_(self.optimizer)
            else:
                scale = float(self.scaler.get_scale())
        gradients = [value.grad for value in parameters if value.grad is not None]
        total = torch.nn.utils.get_total_norm(gradients)
        norm = float(total) / scale
        if self.scaler is None and not math.isfinite(norm):
            return norm, True
        if self.max_grad_norm is not None and math.isfinite(norm):
            torch.nn.utils.clip_grads_with_norm_(parameters, self.max_grad_norm, total)
        skipped = self._step()
        return norm, skipped or not math.isfinite(norm)

    def _step(self) -> bool:
        """The optimiser's step, through the scaler if there is one; whether it was skipped."""
        if self.scaler is None:
            self.optimizer.step()
            return self.checks and bool(self.optimizer.last_step_skipped)  # type: ignore[attr-defined]
        before = float(self.scaler.get_scale())
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.checks:
            return bool(self.optimizer.last_step_skipped)  # type: ignore[attr-defined]
        return float(self.scaler.get_scale()) < before

"""Learning-rate schedules: constant, linear and cosine, each after a linear warmup."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import CheckpointError, FinetuneError

KINDS = ("constant", "linear", "cosine")


class LRSchedule:
    """The learning rate as a function of the number of optimiser steps made.

    Args:
        optimizer: anything with `param_groups`; each group's `lr` at construction is its peak.
        kind: "constant", "linear" or "cosine".
        total_steps: steps until the decay ends (any value serves "constant").
        warmup_steps: step s of the first w runs at (s + 1) / w of the peak.
        min_ratio: the decay ends at this share of the peak.

    `step()` moves on by one and sets the groups' `lr`. The trainer calls it only after steps that
    changed the weights.
    """

    def __init__(
        self,
        optimizer: Any,
        kind: str,
        total_steps: int,
        warmup_steps: int = 0,
        min_ratio: float = 0.0,
    ) -> None:
        if kind not in KINDS:
            raise FinetuneError(
                f"[LRSchedule] no schedule {kind!r}: choose one of {', '.join(KINDS)}"
            )
        if total_steps < 1 or not 0 <= warmup_steps <= total_steps:
            raise FinetuneError(
                f"[LRSchedule] wanted 0 <= warmup_steps <= total_steps and at least one step, got "
                f"{warmup_steps} and {total_steps}"
            )
        if not 0.0 <= min_ratio <= 1.0:
            raise FinetuneError(f"[LRSchedule] min_ratio must lie in 0..1, got {min_ratio}")
        self.optimizer = optimizer
        self.kind = kind
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.min_ratio = min_ratio
        self.steps = 0
        self.base_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self._apply()

    def factor(self, step: int) -> float:
        """The share of the peak at which step number `step` (from 0) runs."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.kind == "constant":
            return 1.0
        rest = self.total_steps - self.warmup_steps
        done = min(1.0, (step - self.warmup_steps) / rest) if rest else 1.0
        shape = 1.0 - done if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.min_ratio + (1.0 - self.min_ratio) * shape

    def get_last_lr(self) -> list[float]:
        """The learning rate of each parameter group now."""
        return [base * self.factor(self.steps) for base in self.base_lrs]

    def step(self) -> None:
        self.steps += 1
        self._apply()

    def _apply(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.get_last_lr()):
            group["lr"] = rate

    def _settings(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "min_ratio": self.min_ratio,
            "base_lrs": list(self.base_lrs),
        }

    def state_dict(self) -> dict[str, Any]:
        return {**self._settings(), "steps": self.steps}

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise `CheckpointError` when the state is that of another schedule."""
        for name, value in self._settings().items():
            if state.get(name) != value:
                raise CheckpointError(
                    f"[LRSchedule] {name} differs: checkpoint {state.get(name)!r}, this run "
                    f"{value!r}"
                )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state_dict(state)
        self.steps = state["steps"]
        self._apply()

"""What the trainer tells: results of steps, and callbacks that hear of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .trainer import SFTTrainer


@dataclass(frozen=True)
class StepResult:
    """One optimiser step.

    step: its number, from 1; epoch: epochs done after it (None without a data cursor).
    loss: mean over the window's supervised tokens, before the update.
    supervised_tokens, input_tokens (without padding), padded_tokens (all positions computed).
    grad_norm: global L2 norm of the gradients before clipping; None where the optimiser does not
    say. lr: learning rate of the first group during the step. seconds: data, passes and update.
    skipped: non-finite gradients, nothing was changed.
    """

    step: int
    epoch: float | None
    loss: float
    supervised_tokens: int
    input_tokens: int
    padded_tokens: int
    grad_norm: float | None
    lr: float
    seconds: float
    skipped: bool

    @property
    def tokens_per_second(self) -> float:
        """Input tokens (without padding) per second."""
        return self.input_tokens / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """The fields and `tokens_per_second`, for JSON."""
        return {**asdict(self), "tokens_per_second": self.tokens_per_second}


@dataclass(frozen=True)
class EvaluationResult:
    """The mean loss over all supervised tokens of an evaluation."""

    loss: float
    supervised_tokens: int
    seconds: float


@dataclass(frozen=True)
class FitResult:
    """How a call of `fit` ended: "finished", "stopped" (by a callback) or "interrupted"."""

    status: str
    step: int
    total_steps: int
    losses: list[float]  # one a step of this call
    seconds: float
    input_tokens: int
    checkpoint: Path | None  # the last one written

    @property
    def tokens_per_second(self) -> float:
        return self.input_tokens / self.seconds if self.seconds else 0.0


class Interrupted(Exception):
    """A signal ended training after a whole step; the checkpoint (if any) is at that step.

    `exit_code` is 128 + the signal's number (130 for Ctrl-C).
    """

    def __init__(self, result: FitResult, signal_number: int) -> None:
        where = f"; resume from {result.checkpoint}" if result.checkpoint else ""
        super().__init__(f"interrupted after step {result.step} of {result.total_steps}{where}")
        self.result = result
        self.exit_code = 128 + signal_number


class TrainerCallback:
    """Hooks that do nothing; override those you need. They run between steps, in order.

    A callback may call `trainer.request_stop()`, `trainer.evaluate(…)` and `trainer.save(…)`.
    """

    def on_fit_start(self, trainer: SFTTrainer, total_steps: int) -> None:
        """Before the first step; `trainer.step` is not 0 for a resumed run."""

    def on_step(self, trainer: SFTTrainer, result: StepResult) -> None:
        """After every step."""

    def on_save(self, trainer: SFTTrainer, path: Path) -> None:
        """After a checkpoint was written and checked."""

    def on_message(self, trainer: SFTTrainer, text: str) -> None:
        """Something the user should read (a fallback, something not restored)."""

    def on_fit_end(self, trainer: SFTTrainer, result: FitResult) -> None:
        """After the last step of a call of `fit`, also of an interrupted one."""


class MetricsWriter(TrainerCallback):
    """Append each step's results to a file, one JSON object a line.

    A resumed run keeps the lines up to its checkpoint's step and drops later ones, which it writes
    again; a new run starts the file anew.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_fit_start(self, trainer: SFTTrainer, total_steps: int) -> None:
        kept = []
        if trainer.step and self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    step = json.loads(line)["step"]
                except (ValueError, KeyError):  # cut short by a kill
                    continue
                if step <= trainer.step:
                    kept.append(line + "\n")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(kept))

    def on_step(self, trainer: SFTTrainer, result: StepResult) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(result.as_dict()) + "\n")


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines that `MetricsWriter` wrote."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]

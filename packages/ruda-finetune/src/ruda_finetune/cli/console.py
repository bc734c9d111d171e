"""Live output: a progress bar on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ruda_finetune.training import SFTTrainer, StepResult, TrainerCallback

if TYPE_CHECKING:
    from ruda_finetune.generation import GenerationProgress
    from ruda_finetune.training import FitResult


def duration(seconds: float | None) -> str:
    """Seconds for people: 8 s, 3 min 05 s, 1 h 20 min."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class TrainingDisplay(TrainerCallback):
    """Shows each step. The first one is followed by a line with the speed and the time left."""

    LOG_SECONDS = 15.0  # between lines where there is no terminal

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress: Progress | None = None
        self._task: Any = None
        self._total = 0
        self._first = True
        self._logged = 0.0

    def on_fit_start(self, trainer: SFTTrainer, total_steps: int) -> None:
        self._total = total_steps
        self._first = True
        if not self.console.is_terminal:
            return
        self.progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[speed]} tokens/s  "
                       "{task.fields[left]} left"),
            console=self.console,
        )  # fmt: skip
        self._task = self.progress.add_task(
            "training", total=total_steps, completed=trainer.step, loss="…", speed="…", left="…"
        )
        self.progress.start()

    def on_step(self, trainer: SFTTrainer, result: StepResult) -> None:
        left = duration(trainer.progress(self._total)["eta_seconds"])
        speed = f"{result.tokens_per_second:.0f}"
        if self.progress is not None:
            self.progress.update(
                self._task, completed=result.step, loss=f"{result.loss:.4f}", speed=speed, left=left
            )
        if result.skipped:
            self._say(f"step {result.step}: gradients were not finite, the step was skipped")
        now = time.monotonic()
        if self._first:
            self._first = False
            self._say(
                f"first step: {duration(result.seconds)}, {speed} tokens/s, about {left} left"
            )
            self._logged = now
        elif self.progress is None and (
            now - self._logged >= self.LOG_SECONDS or result.step == self._total
        ):
            self._say(
                f"step {result.step}/{self._total}  loss {result.loss:.4f}  {speed} tokens/s  "
                f"{left} left"
            )
            self._logged = now

    def on_message(self, trainer: SFTTrainer, text: str) -> None:
        self._say(text)

    def on_fit_end(self, trainer: SFTTrainer, result: FitResult) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar off the screen; also after an error."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False)


@contextmanager
def answering(
    console: Console, label: str, total: int
) -> Iterator[Callable[[GenerationProgress], None]]:
    """A bar over `total` answers; gives the function that generation calls."""
    if not console.is_terminal:
        console.print(f"{label}: {total} answer{'s' if total > 1 else ''} …", markup=False)
        yield lambda state: None
        return
    with Progress(
        TextColumn(label), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[steps]} tokens each"), console=console, transient=True,
    ) as progress:  # fmt: skip
        task = progress.add_task(label, total=total, steps=0)

        def update(state: GenerationProgress) -> None:
            progress.update(task, completed=state.done, steps=state.steps)

        yield update

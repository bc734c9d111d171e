"""`SFTTrainer`: token-weighted steps, exact checkpoints, and the loop around them."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from ..errors import CheckpointError, DataError, FinetuneError
from .checkpoint import NoCheckpointError, find_checkpoint, write_checkpoint
from .evaluation import mean_loss, place_batch
from .events import EvaluationResult, FitResult, Interrupted, StepResult, TrainerCallback
from .loss import count_supervised
from .progress import seconds_left, write_progress_file
from .rundir import check_same_run, claim_run_directory, locked_run_directory, read_run
from .signals import SignalGuard
from .state import (
    differences,
    finetune_state_dict,
    load_finetune_state_dict,
    model_device,
    optimizer_options,
    option_differences,
    plain,
    trainable_parameters,
)
from .updates import OptimizerUpdate

Batch = Mapping[str, torch.Tensor]


class WindowSource(Protocol):
    """Where `fit` gets its windows from; `ruda_finetune.TrainingBatches` is one."""

    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def position(self) -> float: ...
    def next_window(self) -> Sequence[Batch]: ...
    def identity(self) -> Mapping[str, Any]: ...
    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class ResumeWarning(UserWarning):
    """A run goes on, but not exactly from where it was left."""


@dataclass
class Counters:
    """What a run has done so far; stored in its checkpoints."""

    step: int = 0  # windows trained on, skipped ones included
    updates: int = 0  # steps that changed the weights
    supervised_tokens: int = 0
    input_tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class ResumeReport:
    """What `resume` found: the file, its step, and messages the user should read (often none).

    path: None for a run that ended before its first checkpoint; it starts at step 0.
    """

    path: Path | None
    step: int
    messages: list[str] = field(default_factory=list)


class SFTTrainer:
    """Trains a model window by window; a window is the microbatches of one optimiser step.

    Args:
        model: called as `model(**batch, reduction="sum")`, returns the summed loss over the
            batch's shifted labels that are not -100 (`CausalLMFinetuner`).
        optimizer: over all trainable parameters of the model and no others.
        base_id: what the frozen base is (a hash of its file); a checkpoint of another base is
            refused.
        run_config: everything that must be equal for a resumed run to be the same run: data, rank,
            seed, …; any nesting of JSON values.
        scaler: a loss scaler (`ruda_torch.GradScaler`, `torch.amp.GradScaler`).
        scheduler: something with `step()`, `state_dict()` and `load_state_dict()` (`LRSchedule`).
        max_grad_norm: clip the global L2 norm of the gradients.
        data: the windows (`TrainingBatches`); its cursor is stored in checkpoints.
        callbacks: hear of steps, saves and messages, see `TrainerCallback`.
        max_skipped_steps: so many steps in a row with non-finite gradients are an error.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        base_id: str,
        run_config: Mapping[str, Any],
        scaler: Any = None,
        scheduler: Any = None,
        max_grad_norm: float | None = None,
        data: WindowSource | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        max_skipped_steps: int = 20,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.base_id = str(base_id)
        self.run_config: dict[str, Any] = plain(dict(run_config))
        if not isinstance(self.run_config, dict):
            raise FinetuneError("[SFTTrainer] run_config must hold JSON values only")
        self.scaler = scaler
        self.scheduler = scheduler
        self.data = data
        self.callbacks = list(callbacks)
        self.max_skipped_steps = max_skipped_steps
        self.device = model_device(model)
        self.counters = Counters()
        self.last: StepResult | None = None
        self._parameters = list(trainable_parameters(model).values())
        self._update = OptimizerUpdate(optimizer, scaler, max_grad_norm)
        self._skipped_in_a_row = 0
        self._step_seconds: list[float] = []
        self._directory: Path | None = None  # the run that this trainer belongs to
        self._stop = False
        self._progress_failed = False
        self._check_parameters()

    def _check_parameters(self) -> None:
        names = trainable_parameters(self.model)
        held = {id(value) for group in self.optimizer.param_groups for value in group["params"]}
        left_out = [name for name, value in names.items() if id(value) not in held]
        if left_out:
            raise FinetuneError(
                f"[SFTTrainer] {len(left_out)} trainable parameters are not in the optimiser (the "
                f"first is {left_out[0]}): freeze them or add them; an optimiser made before "
                "adapters were injected holds other tensors"
            )
        foreign = len(held - {id(value) for value in names.values()})
        if foreign:
            raise FinetuneError(
                f"[SFTTrainer] the optimiser holds {foreign} parameters that the model does not "
                "train: make it from the model's trainable parameters"
            )

    @property
    def step(self) -> int:
        """Windows trained on so far."""
        return self.counters.step

    @property
    def max_grad_norm(self) -> float | None:
        """The clipping limit in use, the optimiser's own included."""
        return self._update.max_grad_norm

    # -- one step ----------------------------------------------------------------------------------

    def train_step(self, microbatches: Iterable[Batch]) -> StepResult:
        """Train on one window: the loss is its sum over tokens / the window's supervised tokens.

        Microbatches are dicts of tensors with `input_ids`, `labels` and, where rows are padded,
        `attention_mask`, on the CPU or the model's device. Gradients are cleared before and
        afterwards, also when something fails. Raises `DataError` for a window without a supervised
        token, and `FinetuneError` after `max_skipped_steps` non-finite steps in a row.
        """
        return self._train_step(microbatches, time.perf_counter())

    def _train_step(self, microbatches: Iterable[Batch], started: float) -> StepResult:
        window = list(microbatches)
        counts = [count_supervised(batch["labels"]) for batch in window]
        tokens = sum(counts)
        if tokens == 0:
            raise DataError(
                f"[train_step] step {self.step + 1}: no supervised token in its {len(window)} "
                "microbatches: every label is masked"
            )
        if not self.model.training:
            self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        rate = float(self.optimizer.param_groups[0]["lr"])
        sums: list[torch.Tensor] = []
        try:
            with self._backward_on_this_thread():
                for batch, count in zip(window, counts):
                    if count == 0:
                        continue  # all masked: its share of the loss and gradient is zero
                    loss = self.model(
                        **place_batch(self.model, batch, self.device), reduction="sum"
                    )
                    sums.append(loss.detach())
                    share = loss / tokens
                    (share if self.scaler is None else self.scaler.scale(share)).backward()
                norm, skipped = self._update.apply(self._parameters)
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        if not skipped and self.scheduler is not None:
            self.scheduler.step()
        loss_value = math.fsum(float(value) for value in sums) / tokens
        inputs = [_input_tokens(batch) for batch in window]
        result = StepResult(
            step=self.step + 1,
            epoch=None if self.data is None else self.data.position,
            loss=loss_value,
            supervised_tokens=tokens,
            input_tokens=sum(inputs),
            padded_tokens=sum(batch["input_ids"].numel() for batch in window),
            grad_norm=norm,
            lr=rate,
            seconds=time.perf_counter() - started,
            skipped=skipped,
        )
        self._count(result)
        return result

    def _count(self, result: StepResult) -> None:
        counters = self.counters
        counters.step += 1
        counters.updates += not result.skipped
        counters.supervised_tokens += result.supervised_tokens
        counters.input_tokens += result.input_tokens
        counters.seconds += result.seconds
        self.last = result
        self._step_seconds.append(result.seconds)
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if result.skipped else 0
        if self._skipped_in_a_row >= self.max_skipped_steps:
            raise FinetuneError(
                f"[train_step] the gradients of {self._skipped_in_a_row} steps in a row were not "
                f"finite (loss {result.loss} at step {result.step}): lower the learning rate or "
                "train in float32"
            )

    def _backward_on_this_thread(self) -> AbstractContextManager[Any]:
        # autograd's own device thread would bring a second team of worker threads to the host
        if self.device.type == "ruda":
            return torch.autograd.set_multithreading_enabled(False)
        return nullcontext()

    def evaluate(self, batches: Iterable[Batch]) -> EvaluationResult:
        """The mean loss over all supervised tokens of the batches; nothing is changed.

        The model runs in evaluation mode and goes back to the mode it was in.
        """
        return mean_loss(self.model, batches, self.device)

    # -- checkpoints -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The run's state as `save` stores it; only between steps."""
        state = finetune_state_dict(
            self.model, self.optimizer, self.scaler, self.scheduler, self.data
        )
        state["counters"] = dict(vars(self.counters))
        state["run"] = self._identity()
        return state

    def _identity(self) -> dict[str, Any]:
        return {
            "base_id": self.base_id,
            "run_config": self.run_config,
            "data": None if self.data is None else plain(dict(self.data.identity())),
            "optimizer": optimizer_options(self.optimizer, self.scheduler is not None),
            "max_grad_norm": self.max_grad_norm,
        }

    def save(self, directory: str | Path) -> Path:
        """Write a checkpoint into `directory` and return its path, `latest.pt`.

        It is written as `next.pt`, flushed and read back; then `latest.pt` becomes `previous.pt`
        and the new file `latest.pt`. Raises `CheckpointError` (no space, no permission); the last
        good checkpoint then stays. Only what is trained is stored, never the base.
        """
        path = write_checkpoint(Path(directory), self.state_dict())
        for callback in self.callbacks:
            callback.on_save(self, path)
        return path

    def resume(self, path: str | Path) -> ResumeReport:
        """Go on from a checkpoint: a file, or the `latest.pt` of a directory.

        Restored: trained weights, optimiser, scaler, scheduler, counters, data cursor, and the
        random states of Python, NumPy, torch and ruda. Where `latest.pt` is damaged or missing the
        older `previous.pt` is taken, with a message (in the report, to callbacks, and as a
        `ResumeWarning`). A directory with a run (`run.json`) that ended before its first
        checkpoint starts that run: nothing is restored, the step is 0, and the report says so.

        Raises `CheckpointError`, before anything is changed, when the run differs: every field of
        the base id, the run configuration, the data and the optimiser's settings that is not equal
        is named.
        """
        path = Path(path)
        try:
            state, file, message = find_checkpoint(path)
        except NoCheckpointError:
            record = read_run(path)
            if record is None:
                raise
            return self._start_again(path, record)
        theirs, ours = dict(state["run"]), self._identity()
        found = option_differences(theirs.pop("optimizer"), ours.pop("optimizer"))
        found = differences(theirs, ours) + found
        if found:
            lines = [line.removeprefix("run_config.") for line in found]
            raise CheckpointError(f"[resume] {file} belongs to another run: " + "; ".join(lines))
        missing = load_finetune_state_dict(
            state, self.model, self.optimizer, self.scaler, self.scheduler, self.data
        )
        self.counters = Counters(**state["counters"])
        self._directory = file.parent.resolve()
        self._skipped_in_a_row = 0
        messages = [message] if message else []
        messages += [f"not restored: {entry}" for entry in missing]
        for text in messages:
            self._tell(text)
        return ResumeReport(file, self.step, messages)

    def _start_again(self, directory: Path, record: Mapping[str, Any]) -> ResumeReport:
        """Adopt a run that ended before its first checkpoint."""
        check_same_run(directory, record, self.base_id, self.run_config)
        if self.step:
            raise CheckpointError(
                f"[resume] the run in {directory} has no checkpoint and starts at step 0, but this "
                f"trainer is at step {self.step}: make a new one"
            )
        self._directory = directory.resolve()
        text = f"{directory} has no checkpoint yet: the run starts at step 0"
        for callback in self.callbacks:
            callback.on_message(self, text)
        return ResumeReport(None, 0, [text])

    def _tell(self, text: str) -> None:
        for callback in self.callbacks:
            callback.on_message(self, text)
        warnings.warn(text, ResumeWarning, stacklevel=3)

    # -- the loop ----------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """End `fit` after the current step, with a checkpoint; for callbacks."""
        self._stop = True

    def progress(self, total_steps: int, status: str = "running") -> dict[str, Any]:
        """Where the run stands, as `write_progress` writes it."""
        counters, last = self.counters, self.last
        return {
            "status": status,
            "step": self.step,
            "total_steps": total_steps,
            "epoch": None if self.data is None else self.data.position,
            "loss": None if last is None else last.loss,
            "tokens_per_second": None if last is None else last.tokens_per_second,
            "supervised_tokens": counters.supervised_tokens,
            "input_tokens": counters.input_tokens,
            "elapsed_seconds": counters.seconds,
            "eta_seconds": seconds_left(self._step_seconds, total_steps - self.step),
        }

    def write_progress(self, path: str | Path, total_steps: int, status: str = "running") -> Path:
        """Write `progress.json`: steps, loss, tokens, elapsed seconds and seconds left.

        `path` is the file or a directory that exists.
        """
        return write_progress_file(path, self.progress(total_steps, status))

    def fit(
        self,
        data: WindowSource | None = None,
        *,
        steps: int | None = None,
        epochs: float | None = None,
        directory: str | Path | None = None,
        save_every: int | None = None,
        handle_signals: bool = True,
    ) -> FitResult:
        """Train until step `steps`, or for `epochs` of the data, counted from the run's start.

        Args:
            data: the windows; None: those given at construction.
            directory: where checkpoints, `run.json` and `progress.json` go; it must not hold
                another run. None: nothing is written.
            save_every: a checkpoint after every so many steps; one is always written at the end.
            handle_signals: Ctrl-C (or SIGTERM) ends training after the current step, with a
                checkpoint, by raising `Interrupted`. A second Ctrl-C ends it at once.
        """
        if data is not None:
            self.data = data
        if self.data is None:
            raise FinetuneError("[fit] no data: pass a TrainingBatches here or to SFTTrainer")
        total = self._total_steps(self.data, steps, epochs)
        if save_every is not None and (save_every < 1 or directory is None):
            raise FinetuneError(
                f"[fit] save_every must be at least 1 and needs a directory, got {save_every}"
            )
        home = None
        guard = SignalGuard() if handle_signals else SignalGuard(())
        with nullcontext() if directory is None else locked_run_directory(directory), guard:
            if directory is not None:
                home = self.claim(directory)
            result = self._loop(self.data, total, home, save_every, guard)
        if guard.received is not None and result.status == "interrupted":
            raise Interrupted(result, guard.received)
        return result

    def claim(self, directory: str | Path) -> Path:
        """Make `directory` this run's, as `fit` does it: before anything else is written there.

        Raises `CheckpointError` for a directory that holds another run, or one that this trainer
        was not resumed from.
        """
        resuming = self._directory == Path(directory).resolve()
        home = claim_run_directory(directory, self.base_id, self.run_config, resuming)
        self._directory = home.resolve()
        return home

    def _total_steps(self, data: WindowSource, steps: int | None, epochs: float | None) -> int:
        if (steps is None) == (epochs is None):
            raise FinetuneError("[fit] wanted one of steps and epochs")
        total = steps if steps is not None else math.ceil((epochs or 0) * data.steps_per_epoch)
        if total < 1 or total < self.step:
            raise FinetuneError(
                f"[fit] asked to train until step {total}, but the run is at step {self.step}"
            )
        return total

    def _loop(
        self,
        data: WindowSource,
        total: int,
        home: Path | None,
        save_every: int | None,
        guard: SignalGuard,
    ) -> FitResult:
        self._stop = False
        losses: list[float] = []
        before = Counters(**vars(self.counters))
        saved: Path | None = None
        status, ended = "failed", False
        for callback in self.callbacks:
            callback.on_fit_start(self, total)
        try:
            while not ended:
                if self.step < total:
                    started = time.perf_counter()
                    step = self._train_step(data.next_window(), started)
                    losses.append(step.loss)
                    for callback in self.callbacks:
                        callback.on_step(self, step)
                ended = self.step >= total or self._stop or guard.received is not None
                due = save_every is not None and self.step % save_every == 0
                if home is not None and (ended or due):
                    saved = self.save(home)
                if home is not None and not ended:
                    self._show_progress(home, total, "running")
            if self.step >= total:
                status = "finished"
            else:
                status = "stopped" if guard.received is None else "interrupted"
        finally:
            if home is not None:
                self._show_progress(home, total, status)
        now = self.counters
        result = FitResult(
            status=status,
            step=self.step,
            total_steps=total,
            losses=losses,
            seconds=now.seconds - before.seconds,
            input_tokens=now.input_tokens - before.input_tokens,
            checkpoint=saved,
        )
        for callback in self.callbacks:
            callback.on_fit_end(self, result)
        return result

    def _show_progress(self, home: Path, total: int, status: str) -> None:
        """Write progress.json; a full disk ends a run when it saves, not here."""
        try:
            self.write_progress(home, total, status)
        except OSError as error:
            if not self._progress_failed:
                self._tell(f"cannot write progress.json in {home}: {error.strerror or error}")
            self._progress_failed = True


def _input_tokens(batch: Batch) -> int:
    """Tokens of a batch without its padding."""
    mask = batch.get("attention_mask")
    return batch["input_ids"].numel() if mask is None else int(mask.sum())

"""Training: the chunked loss, checkpointed activations, exact steps, checkpoints, the loop.

Every public name is loaded at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .activation import activation_checkpoint_modules as activation_checkpoint_modules
    from .activation import remove_activation_checkpoints as remove_activation_checkpoints
    from .checkpoint import DamagedCheckpointError as DamagedCheckpointError
    from .checkpoint import read_checkpoint as read_checkpoint
    from .events import EvaluationResult as EvaluationResult
    from .events import FitResult as FitResult
    from .events import Interrupted as Interrupted
    from .events import MetricsWriter as MetricsWriter
    from .events import StepResult as StepResult
    from .events import TrainerCallback as TrainerCallback
    from .events import read_metrics as read_metrics
    from .finetuner import CausalLMFinetuner as CausalLMFinetuner
    from .loss import chunked_lm_cross_entropy as chunked_lm_cross_entropy
    from .loss import count_supervised as count_supervised
    from .rundir import claim_run_directory as claim_run_directory
    from .rundir import read_run as read_run
    from .schedules import LRSchedule as LRSchedule
    from .state import finetune_state_dict as finetune_state_dict
    from .state import load_finetune_state_dict as load_finetune_state_dict
    from .trainer import ResumeReport as ResumeReport
    from .trainer import ResumeWarning as ResumeWarning
    from .trainer import SFTTrainer as SFTTrainer

_EXPORTS: dict[str, str] = {
    "chunked_lm_cross_entropy": "loss",
    "count_supervised": "loss",
    "activation_checkpoint_modules": "activation",
    "remove_activation_checkpoints": "activation",
    "CausalLMFinetuner": "finetuner",
    "LRSchedule": "schedules",
    "SFTTrainer": "trainer",
    "ResumeReport": "trainer",
    "ResumeWarning": "trainer",
    "StepResult": "events",
    "mean_loss": "evaluation",
    "EvaluationResult": "events",
    "FitResult": "events",
    "Interrupted": "events",
    "TrainerCallback": "events",
    "MetricsWriter": "events",
    "read_metrics": "events",
    "finetune_state_dict": "state",
    "load_finetune_state_dict": "state",
    "DamagedCheckpointError": "checkpoint",
    "read_checkpoint": "checkpoint",
    "check_run_directory": "rundir",
    "claim_run_directory": "rundir",
    "locked_run_directory": "rundir",
    "read_run": "rundir",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})

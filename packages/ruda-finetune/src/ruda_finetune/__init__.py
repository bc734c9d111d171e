"""NF4 and LoRA fine-tuning of causal language models on `ruda:0`, on a CPU or a GPU.

Importing this package imports neither torch nor transformers: every public name is loaded from its
subpackage at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import _abi
from ._version import __version__
from .errors import (
    AdapterError,
    CheckpointError,
    DataError,
    FinetuneError,
    ModelFileError,
    QuantizationError,
    TargetModuleError,
    TemplateError,
)

try:
    from ruda_runtime import check_abi as _check_abi

    _check_abi("ruda-finetune", __version__, _abi.PROVIDES, _abi.REQUIRES)
except ImportError as _error:
    if not _abi.is_the_command():
        raise
    raise SystemExit(f"error: {_abi.broken_installation(_error)}") from None

if TYPE_CHECKING:  # the same names for type checkers; a test holds the two lists together
    from .data import CHATML_TRAINING_TEMPLATE as CHATML_TRAINING_TEMPLATE
    from .data import DataWarning as DataWarning
    from .data import EncodedRow as EncodedRow
    from .data import LengthReport as LengthReport
    from .data import RecordFile as RecordFile
    from .data import SFTCollator as SFTCollator
    from .data import SFTDataset as SFTDataset
    from .data import TrainingBatches as TrainingBatches
    from .data import chatml_training_template as chatml_training_template
    from .data import describe_row as describe_row
    from .data import evaluation_batches as evaluation_batches
    from .data import generation_blocks as generation_blocks
    from .data import own_template_is_chatml as own_template_is_chatml
    from .data import read_records as read_records
    from .generation import GenerationProgress as GenerationProgress
    from .generation import generate as generate
    from .generation import generate_tokens as generate_tokens
    from .generation import stop_token_ids as stop_token_ids
    from .loading import GGUFFile as GGUFFile
    from .loading import LoadedModel as LoadedModel
    from .loading import LoadReport as LoadReport
    from .loading import SourceInfo as SourceInfo
    from .loading import load_gguf as load_gguf
    from .loading import load_gguf_tokenizer as load_gguf_tokenizer
    from .loading import load_hf_nf4_model as load_hf_nf4_model
    from .loading import load_model as load_model
    from .loading import load_nf4_safetensors as load_nf4_safetensors
    from .loading import open_gguf as open_gguf
    from .lora import LoRALinear as LoRALinear
    from .lora import adapter_state_dict as adapter_state_dict
    from .lora import inject_lora as inject_lora
    from .lora import load_adapter as load_adapter
    from .lora import load_adapter_state_dict as load_adapter_state_dict
    from .lora import merge_lora as merge_lora
    from .lora import save_adapter as save_adapter
    from .models import FusionReport as FusionReport
    from .models import fuse_model as fuse_model
    from .quantization import NF4Linear as NF4Linear
    from .quantization import pack_nf4 as pack_nf4
    from .quantization import quantize_nf4 as quantize_nf4
    from .targets import TargetReport as TargetReport
    from .targets import resolve_targets as resolve_targets
    from .training import CausalLMFinetuner as CausalLMFinetuner
    from .training import DamagedCheckpointError as DamagedCheckpointError
    from .training import EvaluationResult as EvaluationResult
    from .training import FitResult as FitResult
    from .training import Interrupted as Interrupted
    from .training import LRSchedule as LRSchedule
    from .training import MetricsWriter as MetricsWriter
    from .training import ResumeReport as ResumeReport
    from .training import ResumeWarning as ResumeWarning
    from .training import SFTTrainer as SFTTrainer
    from .training import StepResult as StepResult
    from .training import TrainerCallback as TrainerCallback
    from .training import activation_checkpoint_modules as activation_checkpoint_modules
    from .training import chunked_lm_cross_entropy as chunked_lm_cross_entropy
    from .training import claim_run_directory as claim_run_directory
    from .training import count_supervised as count_supervised
    from .training import finetune_state_dict as finetune_state_dict
    from .training import load_finetune_state_dict as load_finetune_state_dict
    from .training import read_checkpoint as read_checkpoint
    from .training import read_metrics as read_metrics
    from .training import read_run as read_run
    from .training import remove_activation_checkpoints as remove_activation_checkpoints

# public name -> subpackage that defines it
_EXPORTS: dict[str, str] = {
    "NF4Linear": "quantization",
    "pack_nf4": "quantization",
    "quantize_nf4": "quantization",
    "LoRALinear": "lora",
    "TargetReport": "targets",
    "adapter_state_dict": "lora",
    "inject_lora": "lora",
    "load_adapter": "lora",
    "load_adapter_state_dict": "lora",
    "merge_lora": "lora",
    "resolve_targets": "targets",
    "save_adapter": "lora",
    "GGUFFile": "loading",
    "LoadReport": "loading",
    "LoadedModel": "loading",
    "SourceInfo": "loading",
    "load_gguf": "loading",
    "load_gguf_tokenizer": "loading",
    "load_hf_nf4_model": "loading",
    "load_model": "loading",
    "load_nf4_safetensors": "loading",
    "open_gguf": "loading",
    "GenerationProgress": "generation",
    "generate": "generation",
    "generate_tokens": "generation",
    "stop_token_ids": "generation",
    "FusionReport": "models",
    "fuse_model": "models",
    "CHATML_TRAINING_TEMPLATE": "data",
    "DataWarning": "data",
    "EncodedRow": "data",
    "LengthReport": "data",
    "RecordFile": "data",
    "SFTCollator": "data",
    "SFTDataset": "data",
    "TrainingBatches": "data",
    "chatml_training_template": "data",
    "describe_row": "data",
    "evaluation_batches": "data",
    "generation_blocks": "data",
    "own_template_is_chatml": "data",
    "read_records": "data",
    "CausalLMFinetuner": "training",
    "DamagedCheckpointError": "training",
    "EvaluationResult": "training",
    "FitResult": "training",
    "Interrupted": "training",
    "LRSchedule": "training",
    "MetricsWriter": "training",
    "ResumeReport": "training",
    "ResumeWarning": "training",
    "SFTTrainer": "training",
    "StepResult": "training",
    "TrainerCallback": "training",
    "activation_checkpoint_modules": "training",
    "chunked_lm_cross_entropy": "training",
    "claim_run_directory": "training",
    "count_supervised": "training",
    "finetune_state_dict": "training",
    "load_finetune_state_dict": "training",
    "read_checkpoint": "training",
    "read_metrics": "training",
    "read_run": "training",
    "remove_activation_checkpoints": "training",
}

__all__ = [
    "__version__",
    "AdapterError",
    "CheckpointError",
    "DataError",
    "FinetuneError",
    "ModelFileError",
    "QuantizationError",
    "TargetModuleError",
    "TemplateError",
    *_EXPORTS,
]


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module("._device", __name__)
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})

"""The exceptions of ruda-finetune. All of them are `ValueError`s: what was handed in is wrong."""

from __future__ import annotations


class FinetuneError(ValueError):
    """Base of every error that ruda-finetune raises about its inputs."""


class TargetModuleError(FinetuneError):
    """A target module does not exist, is not a linear layer, or was given twice."""


class QuantizationError(FinetuneError):
    """A weight that cannot be quantised: tied, not finite, empty, or on another device."""


class AdapterError(FinetuneError):
    """An adapter that does not belong to this model: tensors missing, unexpected or misshaped."""


class DataError(FinetuneError):
    """A data file or record that cannot be trained on."""


class TemplateError(FinetuneError):
    """A chat template that cannot say which tokens are the assistant's."""


class CheckpointError(FinetuneError):
    """A checkpoint that is damaged, foreign, or of another run."""


class ModelFileError(FinetuneError):
    """A model file (safetensors, GGUF, config) that is damaged, incomplete or unsupported."""

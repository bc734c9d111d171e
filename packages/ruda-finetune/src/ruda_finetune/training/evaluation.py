"""The mean loss of a model over batches."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ..errors import DataError
from .events import EvaluationResult
from .loss import count_supervised

Batch = Mapping[str, torch.Tensor]


def place_batch(model: nn.Module, batch: Batch, device: torch.device) -> dict[str, Any]:
    """A batch on the model's device, as the model wants it (`CausalLMFinetuner.prepare_batch`)."""
    prepare = getattr(model, "prepare_batch", None)
    if prepare is not None:
        placed: dict[str, Any] = prepare(batch, device)
        return placed
    return {name: tensor.to(device) for name, tensor in batch.items()}


def mean_loss(model: nn.Module, batches: Iterable[Batch], device: torch.device) -> EvaluationResult:
    """The mean loss over all supervised tokens of the batches; nothing is changed.

    `model(**batch, reduction="sum")` gives a batch's summed loss. The model runs in evaluation mode
    and goes back to the mode it was in. Raises `DataError` where no token is supervised.
    """
    started = time.perf_counter()
    training = model.training
    total, tokens = 0.0, 0
    model.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                tokens += count_supervised(batch["labels"])
                total += float(model(**place_batch(model, batch, device), reduction="sum"))
    finally:
        model.train(training)
    if tokens == 0:
        raise DataError("[evaluate] no supervised token in the batches")
    return EvaluationResult(total / tokens, tokens, time.perf_counter() - started)

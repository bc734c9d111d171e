"""`CausalLMFinetuner`: backbone and vocabulary head joined by the chunked loss."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from ..errors import FinetuneError
from .activation import activation_checkpoint_modules, decoder_layers
from .loss import chunked_lm_cross_entropy, lean_chunk

# Settings that change the logits after the head; the chunked loss would not see them.
_LOGIT_SETTINGS = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}


class CausalLMFinetuner(nn.Module):
    """A causal language model that returns its loss and never builds its full logits.

    Args:
        backbone: maps `input_ids` to hidden states [B, T, H] (a tensor, a tuple that starts with
            it, or an object with `last_hidden_state`). It must be causal: positions never look to
            the right.
        head: the vocabulary head, see `chunked_lm_cross_entropy`.
        token_chunk_size: tokens whose logits exist at one time; None: as many as take 48 MiB, or 24
            with activation checkpointing.
        activation_checkpointing: recompute the backbone's layers in backward: less memory, about
            a third more time.
        checkpoint_modules: which modules of the backbone; None: each entry of its longest
            `ModuleList`.
        preserve_rng_state: the second pass draws the same dropout masks. Switch it off only for a
            model without any random operation.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        token_chunk_size: int | None = None,
        activation_checkpointing: bool = True,
        checkpoint_modules: Sequence[str] | None = None,
        preserve_rng_state: bool = True,
    ) -> None:
        super().__init__()
        if checkpoint_modules is not None and not activation_checkpointing:
            raise FinetuneError(
                "[CausalLMFinetuner] checkpoint_modules is given but activation_checkpointing is "
                "off: drop one of the two"
            )
        self.backbone = backbone
        self.head = head
        self.token_chunk_size = token_chunk_size
        self.checkpointed: list[str] = []
        if activation_checkpointing:
            paths = [decoder_layers(backbone)] if checkpoint_modules is None else checkpoint_modules
            self.checkpointed = activation_checkpoint_modules(backbone, paths, preserve_rng_state)
            if token_chunk_size is None:
                self.token_chunk_size = lean_chunk(head)
        parameters = inspect.signature(backbone.forward).parameters
        anything = any(entry.kind is entry.VAR_KEYWORD for entry in parameters.values())
        self._takes_mask = anything or "attention_mask" in parameters
        self._options: dict[str, Any] = {}
        if "use_cache" in parameters or (anything and hasattr(backbone, "config")):
            self._options["use_cache"] = False

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        token_chunk_size: int | None = None,
        activation_checkpointing: bool = True,
        checkpoint_modules: Sequence[str] | None = None,
        preserve_rng_state: bool = True,
    ) -> CausalLMFinetuner:
        """Split a causal language model of transformers into backbone and head; nothing is copied.

        Raises `FinetuneError` for a model that has no separate head, or whose configuration changes
        the logits after the head (soft caps, scales).
        """
        backbone = getattr(model, "base_model", None)
        outputs = getattr(model, "get_output_embeddings", None)
        head = outputs() if callable(outputs) else None
        if not isinstance(backbone, nn.Module) or backbone is model or head is None:
            raise FinetuneError(
                f"[CausalLMFinetuner] {type(model).__name__} is not a causal language model with a "
                "base model and a vocabulary head: pass backbone and head yourself"
            )
        for name, neutral in _LOGIT_SETTINGS.items():
            value = getattr(getattr(model, "config", None), name, None)
            if value is not None and value != neutral:
                raise FinetuneError(
                    f"[CausalLMFinetuner] {type(model).__name__} sets {name} = {value}, which "
                    "changes the logits after the head; the chunked loss does not apply it"
                )
        return cls(
            backbone,
            head,
            token_chunk_size,
            activation_checkpointing,
            checkpoint_modules,
            preserve_rng_state,
        )

    def hidden_states(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **inputs: Any
    ) -> torch.Tensor:
        """The backbone's last hidden states [B, T, H] for `input_ids` [B, T]."""
        if attention_mask is not None:
            if not self._takes_mask:
                raise FinetuneError(
                    f"[CausalLMFinetuner] {type(self.backbone).__name__} takes no attention_mask"
                )
            inputs["attention_mask"] = attention_mask
        output = self.backbone(input_ids, **inputs, **self._options)
        hidden = getattr(output, "last_hidden_state", output)
        return hidden[0] if isinstance(hidden, tuple) else hidden

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        **inputs: Any,
    ) -> torch.Tensor:
        """The loss of a batch, a float32 scalar: mean or sum over its supervised tokens.

        input_ids int64 [B, T]; labels int64 [B, T], unshifted, -100 where nothing is learned;
        attention_mask bool [B, T]; further inputs go to the backbone as they are.
        """
        hidden = self.hidden_states(input_ids, attention_mask, **inputs)
        return chunked_lm_cross_entropy(
            hidden, self.head, labels, self.token_chunk_size, reduction=reduction
        )

    def prepare_batch(
        self, batch: Mapping[str, torch.Tensor], device: torch.device
    ) -> dict[str, torch.Tensor]:
        """Move a batch to the device; leave out a mask that changes nothing.

        In a right-padded row padding comes after everything that counts, and a causal model never
        looks to the right: without the mask attention can take its faster causal path.
        """
        batch = dict(batch)
        mask = batch.get("attention_mask")
        if mask is not None and right_padded(mask):
            del batch["attention_mask"]
        return {name: tensor.to(device) for name, tensor in batch.items()}


def right_padded(attention_mask: torch.Tensor) -> bool:
    """Whether in every row of a [B, T] mask all padding comes after all tokens."""
    mask = attention_mask.bool()
    return not bool((mask[:, 1:] & ~mask[:, :-1]).any())

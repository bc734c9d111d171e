"""Cross entropy of a vocabulary head in chunks of tokens: the full logits never exist."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from ..errors import FinetuneError

IGNORE_INDEX = -100
_CHUNK_BYTES = 48 * 2**20  # float32 logits of one chunk, when the caller names no chunk size


def shifted_labels(labels: torch.Tensor, ignore_index: int = IGNORE_INDEX) -> torch.Tensor:
    """Labels moved one position to the left: entry t is what position t must predict.

    Same shape [..., T]; the last position predicts nothing and gets `ignore_index`.
    """
    target = torch.full_like(labels, ignore_index)
    target[..., :-1] = labels[..., 1:]
    return target


def count_supervised(
    labels: torch.Tensor, ignore_index: int = IGNORE_INDEX, shift: bool = True
) -> int:
    """How many targets cost something: the denominator of a mean loss.

    With `shift` (labels as the collator makes them) the first position of each row is no target.
    """
    counted = labels[..., 1:] if shift else labels
    return int((counted != ignore_index).sum())


def chunked_lm_cross_entropy(
    hidden: torch.Tensor,
    head: nn.Module | torch.Tensor,
    labels: torch.Tensor,
    token_chunk_size: int | None = None,
    ignore_index: int = IGNORE_INDEX,
    shift: bool = True,
    reduction: Literal["mean", "sum"] = "mean",
    recompute: bool = True,
) -> torch.Tensor:
    """Cross entropy of `head(hidden)` against `labels`, a chunk of tokens at a time.

    Args:
        hidden: [..., T, H], the backbone's last hidden states.
        head: the vocabulary head: a weight [V, H], or a module that maps [N, H] to [N, V]
            (`nn.Linear`, `NF4Linear`, `LoRALinear`, …).
        labels: int64 [..., T] on the same device; `ignore_index` where nothing is learned.
        token_chunk_size: tokens whose logits exist at one time; None: as many as keep the float32
            logits within 48 MiB.
        shift: labels belong to their own position and are shifted here; False: they are targets.
        reduction: "mean" over the valid (shifted) targets, or their "sum".
        recompute: for a head module that is trained, compute each chunk's logits again in backward
            instead of keeping them. Dense heads and frozen heads need no second pass: their
            gradients are made together with the loss.

    Returns a scalar, float32 (float64 for float64 inputs). Without any valid target it is a zero
    that can be differentiated. On `ruda:0` dense heads run `torch.ops.ruda.linear_cross_entropy`.

    Raises `FinetuneError` for shapes, dtypes or devices that do not fit, a target outside the
    vocabulary, and a bad `token_chunk_size` or `reduction`.
    """
    _check(hidden, labels, token_chunk_size, reduction)
    target = (shifted_labels(labels, ignore_index) if shift else labels).reshape(-1)
    rows = hidden.reshape(-1, hidden.shape[-1])  # [N, H]
    dense = _dense_parts(head)
    if dense is not None and hidden.device.type == "ruda":
        weight, bias = dense
        loss, count = torch.ops.ruda.linear_cross_entropy(
            rows.contiguous(), weight, bias, target, token_chunk_size or 0, ignore_index
        )
        return loss / count.clamp(min=1) if reduction == "mean" else loss
    valid = (target != ignore_index).nonzero().flatten()
    count = valid.numel()
    if count == 0:
        return _differentiable_zero(rows, head)
    # Only rows that cost something are multiplied with the vocabulary.
    rows, target = rows.index_select(0, valid), target.index_select(0, valid)
    vocabulary = _vocabulary(head, dense)
    _check_targets(target, vocabulary)
    chunk = _chunk_tokens(token_chunk_size, vocabulary)
    if dense is not None:
        loss = _dense_loss(rows, *dense, target, chunk)
    else:
        assert isinstance(head, nn.Module)
        loss = _module_loss(rows, head, target, chunk, recompute)
    return loss / count if reduction == "mean" else loss


def _check(
    hidden: torch.Tensor, labels: torch.Tensor, token_chunk_size: int | None, reduction: str
) -> None:
    if reduction not in ("mean", "sum"):
        raise FinetuneError(
            f"[chunked_lm_cross_entropy] reduction must be 'mean' or 'sum', got {reduction!r}"
        )
    if token_chunk_size is not None and token_chunk_size < 1:
        raise FinetuneError(
            f"[chunked_lm_cross_entropy] token_chunk_size must be positive, got {token_chunk_size}"
        )
    if hidden.dim() < 2 or labels.shape != hidden.shape[:-1]:
        raise FinetuneError(
            "[chunked_lm_cross_entropy] wanted hidden [..., T, H] with labels [..., T], got "
            f"{list(hidden.shape)} and {list(labels.shape)}"
        )
    if labels.dtype != torch.int64 or labels.device != hidden.device:
        raise FinetuneError(
            f"[chunked_lm_cross_entropy] labels must be int64 on {hidden.device}, got "
            f"{labels.dtype} on {labels.device}"
        )


def _dense_parts(
    head: nn.Module | torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Weight and bias, where calling the head does nothing but multiply and add them."""
    if isinstance(head, torch.Tensor):
        return head, None
    # A subclass or a hook may do more than the product.
    hooks = (head._forward_hooks, head._forward_pre_hooks, head._backward_hooks)
    if type(head) is nn.Linear and "forward" not in vars(head) and not any(hooks):
        return head.weight, head.bias
    return None


def _vocabulary(
    head: nn.Module | torch.Tensor, dense: tuple[torch.Tensor, torch.Tensor | None] | None
) -> int | None:
    if dense is not None:
        return dense[0].shape[0]
    width = getattr(head, "out_features", None)
    return width if isinstance(width, int) else None


def _chunk_tokens(token_chunk_size: int | None, vocabulary: int | None) -> int:
    if token_chunk_size is not None:
        return token_chunk_size
    if vocabulary is None:
        raise FinetuneError(
            "[chunked_lm_cross_entropy] this head does not say how wide the vocabulary is (no "
            "out_features): pass token_chunk_size"
        )
    return max(1, _CHUNK_BYTES // (4 * vocabulary))


def lean_chunk(head: nn.Module) -> int | None:
    """Tokens whose float32 logits take 24 MiB; None for a head that does not tell its width.

    For training that saves memory elsewhere too: half the logits cost a second pass over the head.
    """
    width = getattr(head, "out_features", None)
    return max(1, _CHUNK_BYTES // 2 // (4 * width)) if isinstance(width, int) else None


def _check_targets(target: torch.Tensor, vocabulary: int | None) -> None:
    low, high = int(target.min()), int(target.max())
    if low < 0 or (vocabulary is not None and high >= vocabulary):
        raise FinetuneError(
            f"[chunked_lm_cross_entropy] label {low if low < 0 else high} is outside the "
            f"vocabulary 0..{'V' if vocabulary is None else vocabulary}-1: are model and tokenizer "
            "of one family?"
        )


def _differentiable_zero(rows: torch.Tensor, head: nn.Module | torch.Tensor) -> torch.Tensor:
    """Zero, whatever the values are (0 * inf is NaN, an empty sum is not), with zero gradients."""
    tensors = [head] if isinstance(head, torch.Tensor) else list(head.parameters())
    parts = [rows, *(tensor for tensor in tensors if tensor.requires_grad)]
    zero = torch.stack([part.reshape(-1)[:0].sum().to(_compute_dtype(rows)) for part in parts])
    return zero.sum()


def _compute_dtype(tensor: torch.Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


class _DenseLoss(torch.autograd.Function):
    """Summed cross entropy of a dense head; gradients of the sum are made in the same pass.

    They are kept in float32 (float64 for float64) and summed over chunks in it: in half precision
    the head's gradient would lose more the more chunks there are.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        rows: torch.Tensor,  # [N, H]
        weight: torch.Tensor,  # [V, H]
        bias: torch.Tensor | None,  # [V]
        target: torch.Tensor,  # [N]
        chunk: int,
        wanted: tuple[bool, bool, bool],
    ) -> torch.Tensor:
        dtype = _compute_dtype(rows)
        inputs = (rows, weight, bias)
        grads = [
            torch.zeros(tensor.shape, dtype=dtype, device=rows.device)
            if needed and tensor is not None
            else None
            for tensor, needed in zip(inputs, wanted)
        ]
        loss = torch.zeros((), dtype=dtype, device=rows.device)
        for start in range(0, rows.shape[0], chunk):
            part = slice(start, start + chunk)
            logits = F.linear(rows[part], weight, bias).to(dtype)  # [C, V]
            normaliser = torch.logsumexp(logits, dim=-1, keepdim=True)
            picked = target[part, None]
            loss += (normaliser - logits.gather(1, picked)).sum()
            if not any(wanted):
                continue
            delta = logits.sub_(normaliser).exp_()  # probabilities, then minus one at the target
            delta.scatter_add_(1, picked, torch.full_like(picked, -1, dtype=dtype))
            if grads[0] is not None:
                grads[0][part] = delta.to(weight.dtype) @ weight
            if grads[1] is not None:
                grads[1] += delta.t() @ rows[part].to(dtype)
            if grads[2] is not None:
                grads[2] += delta.sum(0)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in inputs]
        ctx.save_for_backward(*grads)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:  # type: ignore[override]
        scaled = [
            None if saved is None else (saved * grad).to(dtype)
            for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes)
        ]
        return (*scaled, None, None, None)


def _dense_loss(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    chunk: int,
) -> torch.Tensor:
    if weight.dim() != 2 or weight.shape[1] != rows.shape[1] or weight.dtype != rows.dtype:
        raise FinetuneError(
            f"[chunked_lm_cross_entropy] head must have shape [V, {rows.shape[1]}] and dtype "
            f"{rows.dtype}, got {list(weight.shape)} and {weight.dtype}"
        )
    grad_mode = torch.is_grad_enabled()
    wanted = tuple(
        grad_mode and tensor is not None and tensor.requires_grad for tensor in (rows, weight, bias)
    )
    return _DenseLoss.apply(rows, weight, bias, target, chunk, wanted)


def _chunk_loss(head: nn.Module, rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(head(rows).to(_compute_dtype(rows)), target, reduction="sum")


class _FrozenHeadLoss(torch.autograd.Function):
    """Summed cross entropy of any frozen head; the rows' gradient is made in the forward pass."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, rows: torch.Tensor, head: nn.Module, target: torch.Tensor, chunk: int
    ) -> torch.Tensor:
        loss = torch.zeros((), dtype=_compute_dtype(rows), device=rows.device)
        gradient = torch.empty(rows.shape, dtype=loss.dtype, device=rows.device)
        for start in range(0, rows.shape[0], chunk):
            part = slice(start, start + chunk)
            with torch.enable_grad():
                leaf = rows[part].detach().requires_grad_()
                value = _chunk_loss(head, leaf, target[part])
                gradient[part] = torch.autograd.grad(value, leaf)[0]
            loss += value.detach()
        ctx.dtype = rows.dtype
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:  # type: ignore[override]
        (gradient,) = ctx.saved_tensors
        return (gradient * grad).to(ctx.dtype), None, None, None


def _module_loss(
    rows: torch.Tensor, head: nn.Module, target: torch.Tensor, chunk: int, recompute: bool
) -> torch.Tensor:
    trained = any(parameter.requires_grad for parameter in head.parameters())
    if torch.is_grad_enabled() and rows.requires_grad and not trained:
        return _FrozenHeadLoss.apply(rows, head, target, chunk)
    again = recompute and torch.is_grad_enabled() and (trained or rows.requires_grad)
    loss = torch.zeros((), dtype=_compute_dtype(rows), device=rows.device)
    for part, wanted in zip(rows.split(chunk), target.split(chunk)):
        if again:
            value = checkpoint(_chunk_loss, head, part, wanted, use_reentrant=False)
        else:
            value = _chunk_loss(head, part, wanted)
        loss = loss + value
    return loss

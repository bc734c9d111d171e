"""Batched generation with left padding, equal to generating every row alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..errors import DataError, FinetuneError, TemplateError

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class GenerationProgress:
    """How far a call has come: rows finished, rows in all, steps of one token taken."""

    done: int
    total: int
    steps: int


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str | Messages],
    *,
    max_new_tokens: int = 128,
    batch_size: int = 8,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int | None = None,
    stop: Sequence[str] = (),
    chat_template: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    skip_special_tokens: bool = True,
    progress: Callable[[GenerationProgress], None] | None = None,
) -> list[str]:
    """Continue every prompt; returns the new texts, in the prompts' order.

    prompts: texts, continued as they are, or lists of messages (`{"role": …, "content": …}`), which
        the chat template turns into a prompt that asks for the assistant's turn. Both kinds may be
        mixed.
    max_new_tokens: at most so many tokens a row. batch_size: rows generated together; rows of
        similar length share a batch.
    temperature: 0 takes the likeliest token (greedy); above 0 samples, from the `top_k` likeliest
        tokens (0: all) that hold `top_p` of the probability, repeatable with `seed`.
    stop: texts that end a row; a row's text is cut before the first of them. The end tokens of the
        tokenizer and of the model's `generation_config` always end a row.
    chat_template, template_kwargs: in place of the tokenizer's template, and its variables.
    progress: called after every step of a batch and after every batch.

    The penalties and defaults of the model's `generation_config` do not apply. The model is in
    evaluation mode meanwhile. Raises `DataError` naming the prompt for one that is empty or too
    long for the model, `TemplateError` for messages without a template.
    """
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], Mapping)):
        raise DataError(
            "[generate] prompts must be a list of texts or of message lists: got a single one; "
            "write [prompt]"
        )
    if any(not text for text in stop):
        raise FinetuneError("[generate] stop must not hold an empty text")
    rows = [
        _encode(tokenizer, prompt, index, chat_template, template_kwargs)
        for index, prompt in enumerate(prompts)
    ]
    tokens = generate_tokens(
        model,
        rows,
        tokenizer=tokenizer,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop=stop,
        progress=progress,
    )
    return [_text(tokenizer, row, stop, skip_special_tokens) for row in tokens]


def generate_tokens(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_new_tokens: int = 128,
    batch_size: int = 8,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int | None = None,
    stop: Sequence[str] = (),
    progress: Callable[[GenerationProgress], None] | None = None,
) -> list[list[int]]:
    """`generate` on token ids: the new ids of every row, its end token included.

    tokenizer: needed for its end token and for `stop` texts only.
    """
    _check(model, tokenizer, max_new_tokens, batch_size, temperature, top_p, top_k, stop)
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    embedding: Any = model.get_input_embeddings()
    vocabulary = int(embedding.weight.shape[0])
    for index, row in enumerate(prompts):
        if len(row) == 0:
            raise DataError(f"[generate] prompt {index} has no tokens")
        if min(row) < 0 or max(row) >= vocabulary:
            wrong = min(row) if min(row) < 0 else max(row)
            raise DataError(
                f"[generate] prompt {index} holds the token {wrong}; the model's vocabulary has "
                f"{vocabulary} tokens, 0..{vocabulary - 1}"
            )
        if limit is not None and len(row) + max_new_tokens > limit:
            raise DataError(
                f"[generate] prompt {index} has {len(row)} tokens; with max_new_tokens="
                f"{max_new_tokens} that is more than the model's {limit} positions"
            )
    ends = stop_token_ids(model, tokenizer)
    config = _generation_config(ends, max_new_tokens, temperature, top_p, top_k)
    results: list[list[int]] = [[] for _ in prompts]
    # rows of similar length share a batch, the longest first: memory peaks at the start
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    done = steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if progress is not None:
            progress(GenerationProgress(done, len(prompts), steps))

    with _asking(model, config), _seeded(model.device, seed):
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            new = _generate_batch(model, tokenizer, [prompts[i] for i in batch], stop, step)
            for index, row in zip(batch, new):
                results[index] = _until_end(row, ends)
            done += len(batch)
            if progress is not None:
                progress(GenerationProgress(done, len(prompts), steps))
    return results


def stop_token_ids(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None
) -> tuple[int, ...]:
    """The token ids that end an answer, by the model's generation config and the tokenizer."""
    ids: list[int] = []
    for source in (model.generation_config, tokenizer):
        eos = getattr(source, "eos_token_id", None)
        if eos is not None:
            ids += [int(index) for index in (eos if isinstance(eos, list | tuple) else [eos])]
    return tuple(dict.fromkeys(ids))


def _check(
    model: Any,
    tokenizer: Any,
    max_new_tokens: int,
    batch_size: int,
    temperature: float,
    top_p: float,
    top_k: int,
    stop: Sequence[str],
) -> None:
    if not callable(getattr(model, "generate", None)):
        raise FinetuneError(f"[generate] {type(model).__name__} has no generate method")
    check_sampling(max_new_tokens, batch_size, temperature, top_p, top_k)
    if stop and tokenizer is None:
        raise FinetuneError("[generate] stop texts need a tokenizer")


def check_sampling(
    max_new_tokens: int, batch_size: int, temperature: float, top_p: float, top_k: int
) -> None:
    """Raise `FinetuneError` for numbers that `generate` does not take."""
    for name, value, wanted, valid in (
        ("max_new_tokens", max_new_tokens, "at least 1", max_new_tokens >= 1),
        ("batch_size", batch_size, "at least 1", batch_size >= 1),
        ("temperature", temperature, "0 or more", 0 <= temperature < float("inf")),
        ("top_p", top_p, "in (0, 1]", 0 < top_p <= 1),
        ("top_k", top_k, "0 (all) or more", top_k >= 0),
    ):
        if not valid:
            raise FinetuneError(f"[generate] {name} must be {wanted}: got {value!r}")
    if temperature == 0 and (top_p != 1 or top_k != 0):
        raise FinetuneError(
            f"[generate] top_p={top_p} and top_k={top_k} need a temperature above 0: at 0 the "
            "likeliest token is taken"
        )


def _generation_config(
    ends: tuple[int, ...], max_new_tokens: int, temperature: float, top_p: float, top_k: int
) -> GenerationConfig:
    from transformers import GenerationConfig

    sampling: dict[str, Any] = {}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": top_k}
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=list(ends) or None,
        # only fills rows that have ended; attention goes by the mask, never by this id
        pad_token_id=ends[0] if ends else 0,
        use_cache=True,
        **sampling,
    )


@contextmanager
def _asking(model: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """Evaluation mode, and a generation config of our own so that no default leaks in."""
    before, training = model.generation_config, model.training
    model.generation_config = config
    model.eval()
    try:
        yield
    finally:
        model.generation_config = before
        model.train(training)


@contextmanager
def _seeded(device: torch.device, seed: int | None) -> Iterator[None]:
    """The device's and the host's generators seeded for a while; untouched without a seed."""
    if seed is None:
        yield
        return
    devices = [] if device.type == "cpu" else [device.index or 0]
    kind = "cuda" if device.type == "cpu" else device.type
    with torch.random.fork_rng(devices=devices, device_type=kind):
        torch.manual_seed(seed)
        yield


def _generate_batch(
    model: PreTrainedModel,
    tokenizer: Any,
    rows: Sequence[Sequence[int]],
    stop: Sequence[str],
    step: Callable[[], None],
) -> list[list[int]]:
    from transformers import StoppingCriteriaList

    from .stopping import AfterEachToken, StopTexts

    width = max(map(len, rows))
    fill = model.generation_config.pad_token_id
    ids = torch.tensor([[fill] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    criteria: list[Any] = [AfterEachToken(step)]
    texts = StopTexts(tokenizer, stop, width, len(rows)) if stop else None
    if texts is not None:
        criteria.append(texts)
    output = model.generate(
        ids.to(model.device),
        attention_mask=mask.to(model.device),
        stopping_criteria=StoppingCriteriaList(criteria),
    )
    new = output[:, width:].tolist()
    if texts is None:
        return new
    return [row[:length] for row, length in zip(new, texts.lengths)]


def _until_end(row: list[int], ends: tuple[int, ...]) -> list[int]:
    """A row up to its end token; what follows only fills the batch."""
    for position, token in enumerate(row):
        if token in ends:
            return row[: position + 1]
    return row


def _encode(
    tokenizer: Any,
    prompt: str | Messages,
    index: int,
    chat_template: str | None,
    template_kwargs: Mapping[str, Any] | None,
) -> list[int]:
    if isinstance(prompt, str):
        return list(tokenizer(prompt).input_ids)
    if chat_template is None and not tokenizer.chat_template:
        raise TemplateError(
            f"[generate] prompt {index} is a list of messages, but the tokenizer has no chat "
            "template: pass chat_template="
        )
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in prompt],
            chat_template=chat_template,
            add_generation_prompt=True,
            tokenize=False,
            **(template_kwargs or {}),
        )
    except Exception as error:  # templates raise whatever they like
        raise TemplateError(
            f"[generate] the chat template failed on prompt {index}: {error}"
        ) from error
    # the template writes the special tokens itself
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def _text(tokenizer: Any, row: list[int], stop: Sequence[str], skip_special_tokens: bool) -> str:
    """The text of a row, whose last token completes the stop text if there is one."""
    text = tokenizer.decode(row, skip_special_tokens=skip_special_tokens)
    cuts = [at for end in stop if (at := text.find(end)) >= 0]
    return text[: min(cuts)] if cuts else text

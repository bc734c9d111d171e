"""From one record to token ids and labels: assistant spans, stop tokens, previews."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from ..errors import DataError, TemplateError
from .records import validate_record

IGNORE_INDEX = -100
_MASK_KEYS = ("assistant_masks", "assistant_mask")


@dataclass(frozen=True)
class EncodedRow:
    """One row ready for a batch: token ids and, at each position, its own id or -100.

    Labels are not shifted: position t's label is what the model must say at position t - 1. The
    label at position 0 therefore costs nothing and does not count. Both are kept as arrays of
    32-bit integers: a tuple of Python integers takes nine times the memory.
    """

    input_ids: Sequence[int]
    labels: Sequence[int]

    def __post_init__(self) -> None:
        for name in ("input_ids", "labels"):
            object.__setattr__(self, name, array("i", getattr(self, name)))

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def supervised_tokens(self) -> int:
        """Labels that cost something: those after position 0."""
        return sum(label != IGNORE_INDEX for label in self.labels[1:])

    def cut(self, length: int) -> EncodedRow:
        """The first `length` tokens."""
        return EncodedRow(self.input_ids[:length], self.labels[:length])


def encode_tokens(record: Mapping[str, Any], train_on_prompt: bool, where: str) -> EncodedRow:
    """A row from `input_ids` with `labels` or `assistant_masks` made elsewhere; unpadded."""
    ids = _integers(record, "input_ids", where)
    if not ids:
        raise DataError(f"{where}: input_ids is empty")
    if min(ids) < 0 or max(ids) >= 2**31:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise DataError(f"{where}: input_ids holds {wrong}; token ids lie in 0..2**31-1")
    if 0 in _integers(record, "attention_mask", where, len(ids)):
        raise DataError(
            f"{where}: attention_mask holds zeros; rows come unpadded, the collator pads them"
        )
    if train_on_prompt:
        return EncodedRow(ids, ids)
    labels = _integers(record, "labels", where, len(ids))
    if labels:
        for label in labels:
            if label != IGNORE_INDEX and not 0 <= label < 2**31:
                raise DataError(f"{where}: labels holds {label}; wanted token ids or -100")
        return EncodedRow(ids, labels)
    for key in _MASK_KEYS:
        mask = _integers(record, key, where, len(ids))
        if mask:
            return EncodedRow(ids, _labels(ids, mask))
    raise DataError(
        f"{where}: input_ids without labels or assistant_masks: nothing says which tokens to "
        "learn; add one of them, or pass train_on_prompt=True to learn every token"
    )


def check_vocabulary(row: EncodedRow, size: int, tokenizer: Any, where: str) -> None:
    """Raise `DataError` for the first id or label that a vocabulary of `size` tokens has not."""
    for name, values in (("input_ids", row.input_ids), ("labels", row.labels)):
        largest = max(values, default=-1)
        if largest < size:
            continue
        position = values.index(largest)
        text = ""
        if tokenizer is not None and largest < len(tokenizer):
            text = f" ({tokenizer.convert_ids_to_tokens(largest)!r})"
        raise DataError(
            f"{where}: {name} holds {largest}{text} at position {position}; the model's vocabulary "
            f"has {size} tokens, 0..{size - 1}"
        )


def _integers(
    record: Mapping[str, Any], key: str, where: str, length: int | None = None
) -> tuple[int, ...]:
    """A flat sequence of integers, or () where the record has no such key."""
    value = record.get(key)
    if value is None:
        return ()
    values = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(values, Sequence) or not all(isinstance(entry, int) for entry in values):
        raise DataError(f"{where}: {key} must be one flat list of integers")
    if length is not None and len(values) != length:
        raise DataError(f"{where}: {key} has {len(values)} entries for {length} input_ids")
    return tuple(int(entry) for entry in values)


def _labels(ids: Sequence[int], mask: Sequence[int | bool]) -> tuple[int, ...]:
    return tuple(token if keep else IGNORE_INDEX for token, keep in zip(ids, mask))


def encode_chat(
    tokenizer: Any,
    record: Mapping[str, Any],
    template: str,
    template_kwargs: Mapping[str, Any],
    train_on_prompt: bool,
    stop_token_ids: Collection[int],
    where: str,
) -> EncodedRow:
    """A row from chat messages; the assistant's spans come from the template's markers.

    Each assistant turn's labels run up to and including its stop token, even where the template
    left that token outside the markers.
    """
    validate_record(record, where)
    options: dict[str, Any] = {"chat_template": template, **template_kwargs}
    if record.get("tools"):
        options["tools"] = record["tools"]
    try:
        out = tokenizer.apply_chat_template(
            record["messages"],
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=not train_on_prompt,
            **options,
        )
    except (jinja2.TemplateError, TypeError) as error:
        raise DataError(f"{where}: the chat template cannot render it: {error}") from error
    ids = tuple(out["input_ids"])
    if train_on_prompt:
        return EncodedRow(ids, ids)
    mask = [bool(keep) for keep in out["assistant_masks"]]
    turns = [message for message in record["messages"] if message["role"] == "assistant"]
    _check_spans(tokenizer, ids, mask, turns, where)
    _close_turns(tokenizer, ids, mask, stop_token_ids, where)
    return EncodedRow(ids, _labels(ids, mask))


def _spans(mask: Sequence[bool]) -> list[tuple[int, int]]:
    """Start and end of every run of marked tokens."""
    spans, start = [], None
    for position, keep in enumerate([*mask, False]):
        if keep and start is None:
            start = position
        elif not keep and start is not None:
            spans.append((start, position))
            start = None
    return spans


def _check_spans(
    tokenizer: Any,
    ids: Sequence[int],
    mask: Sequence[bool],
    turns: Sequence[Mapping[str, Any]],
    where: str,
) -> None:
    spans = _spans(mask)
    row = describe_row(tokenizer, ids, _labels(ids, mask))
    if len(spans) < len(turns):
        raise TemplateError(
            f"{where}: the chat template marks {len(spans)} of {len(turns)} assistant turns; "
            "every assistant turn must stand between {% generation %} and {% endgeneration %}. "
            f"The row as it would be learned:\n{row}"
        )
    texts = [tokenizer.decode(ids[a:b], skip_special_tokens=True).strip() for a, b in spans]
    if not any(texts) and not any(turn.get("tool_calls") for turn in turns):
        raise TemplateError(
            f"{where}: the marked assistant spans hold no text, only special tokens. The row as "
            f"it would be learned:\n{row}"
        )


def _close_turns(
    tokenizer: Any,
    ids: Sequence[int],
    mask: list[bool],
    stop_token_ids: Collection[int],
    where: str,
) -> None:
    """Extend each span of `mask` to its stop token; a turn that has none is an error."""

    def blank(token: int) -> bool:
        return token not in stop_token_ids and not tokenizer.decode([token]).strip()

    for number, (start, end) in enumerate(_spans(mask), 1):
        last = end - 1
        while last > start and blank(ids[last]):
            last -= 1
        if ids[last] in stop_token_ids:
            continue
        following = end
        while following < len(ids) and blank(ids[following]):
            following += 1
        if following == len(ids) or ids[following] not in stop_token_ids:
            raise TemplateError(
                f"{where}: assistant turn {number} ends without a stop token, so the model would "
                "never learn to stop: put the end-of-turn token inside {% generation %}, or name "
                "it in stop_token_ids when it is not one of the tokenizer's special tokens. The "
                f"row as it would be learned:\n{describe_row(tokenizer, ids, _labels(ids, mask))}"
            )
        mask[end : following + 1] = [True] * (following + 1 - end)


def stop_tokens(tokenizer: Any) -> frozenset[int]:
    """Tokens that can end a turn: the tokenizer's end-of-text token and its special tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    found = {index for index, token in added.items() if token.special}
    found.update(tokenizer.all_special_ids)
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    return frozenset(found)


def describe_row(
    tokenizer: Any, input_ids: Sequence[int], labels: Sequence[int], limit: int = 400
) -> str:
    """The row decoded, a line for each masked or kept part, in order.

    `limit`: characters of a part that are shown; longer parts lose their middle. Without a
    tokenizer the token ids stand in the text's place.
    """
    lines = []
    start = 0
    for position in range(1, len(input_ids) + 1):
        kept = labels[start] != IGNORE_INDEX
        if position < len(input_ids) and (labels[position] != IGNORE_INDEX) == kept:
            continue
        part = list(input_ids[start:position])
        text = repr(part if tokenizer is None else tokenizer.decode(part))
        if len(text) > limit:
            text = f"{text[: limit // 2]} … {text[-(limit // 2) :]}"
        lines.append(f"  {'kept  ' if kept else 'masked'} {text}")
        start = position
    return "\n".join(lines)

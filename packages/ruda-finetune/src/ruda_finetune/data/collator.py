"""`SFTCollator`: records in, padded tensors with labels out."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from ..errors import DataError, TemplateError
from .encoding import (
    IGNORE_INDEX,
    EncodedRow,
    check_vocabulary,
    describe_row,
    encode_chat,
    encode_tokens,
    stop_tokens,
)
from .lengths import DataWarning, fit_rows
from .templates import resolve_chat_template

# What the collator itself passes to apply_chat_template.
_RESERVED = {
    "chat_template", "tokenize", "return_dict", "return_assistant_tokens_mask", "return_tensors",
    "padding", "truncation", "max_length", "add_generation_prompt", "continue_final_message",
}  # fmt: skip


class SFTCollator:
    """Turn chats or pretokenised records into right-padded batches for supervised fine-tuning.

    Calling it with a list of records gives `input_ids` int64 [B, T], `attention_mask` bool [B, T]
    and `labels` int64 [B, T]: a token's own id where it is to be learned, -100 elsewhere (labels
    are not shifted). Padding is masked by position, so a pad token that is also the stop token
    stays a label where the assistant wrote it.

    Args:
        tokenizer: a fast tokenizer of transformers; needed for chat records only.
        max_length: longest row in tokens; None sets no limit. Longer rows are a `DataError` that
            counts them, unless `truncate`.
        pad_token_id: padding id; by default the tokenizer's pad token, or else its stop token.
        train_on_prompt: learn every token instead of the assistant's only.
        truncate: cut long rows at `max_length` (with a `DataWarning` that counts the lost tokens)
            and drop those that have no label left.
        template_kwargs: further variables for the chat template.
        chat_template: a Jinja template to use instead of the tokenizer's own. Unless
            `train_on_prompt`, it must mark the assistant's text with `{% generation %}`.
        vocabulary_size: rows of the model's embedding. Token ids and labels must be smaller;
            without it nobody looks until the model meets them.
        stop_token_ids: tokens that may end an assistant turn; by default the tokenizer's special
            tokens. Every assistant turn must end in one, and it is always a label.

    Raises `TemplateError` for a template without markers, and for a chat whose assistant turns it
    does not mark; `DataError` for records that cannot be trained on.
    """

    def __init__(
        self,
        tokenizer: Any = None,
        max_length: int | None = None,
        pad_token_id: int | None = None,
        train_on_prompt: bool = False,
        truncate: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        stop_token_ids: Collection[int] | None = None,
        vocabulary_size: int | None = None,
    ) -> None:
        if max_length is not None and max_length < 2:
            raise DataError(f"[SFTCollator] max_length must be at least 2, got {max_length}")
        if truncate and max_length is None:
            raise DataError("[SFTCollator] truncate=True needs a max_length to cut at")
        if tokenizer is None and (chat_template or template_kwargs or stop_token_ids):
            raise DataError(
                "[SFTCollator] chat_template, template_kwargs and stop_token_ids need a tokenizer"
            )
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.train_on_prompt = train_on_prompt
        self.truncate = truncate
        self.vocabulary_size = vocabulary_size
        self.pad_token_id = self._padding(pad_token_id)
        self.template_kwargs = dict(template_kwargs or {})
        reserved = sorted(_RESERVED.intersection(self.template_kwargs))
        if reserved:
            raise DataError(
                f"[SFTCollator] template_kwargs may not hold {', '.join(reserved)}: the collator "
                "sets them itself"
            )
        self.chat_template = chat_template
        self._template: str | None = None
        if chat_template is not None:
            self._template = resolve_chat_template(tokenizer, chat_template, train_on_prompt)
        self._stops: frozenset[int] = frozenset(stop_token_ids or ())
        if tokenizer is not None and stop_token_ids is None:
            self._stops = stop_tokens(tokenizer)

    def _padding(self, pad_token_id: int | None) -> int:
        choices = [pad_token_id]
        if self.tokenizer is not None:
            choices += [self.tokenizer.pad_token_id, self.tokenizer.eos_token_id]
        size = self.vocabulary_size
        if size is not None and pad_token_id is None:  # a tokenizer may know more than the model
            choices = [choice for choice in choices if choice is not None and choice < size]
        found = next((choice for choice in choices if choice is not None), None)
        if found is None:
            raise DataError(
                "[SFTCollator] no padding id: pass pad_token_id= (any id of the vocabulary; "
                "padding is masked by position)"
            )
        if found < 0:
            raise DataError(f"[SFTCollator] pad_token_id must not be negative, got {found}")
        if size is not None and found >= size:
            raise DataError(
                f"[SFTCollator] pad_token_id must lie in the model's vocabulary, 0..{size - 1}: "
                f"got {found}"
            )
        return found

    @property
    def template(self) -> str:
        """The chat template in use; a `TemplateError` when it cannot serve."""
        if self._template is None:
            if self.tokenizer is None:
                raise DataError("[SFTCollator] chat records need a tokenizer: pass tokenizer=")
            self._template = resolve_chat_template(self.tokenizer, None, self.train_on_prompt)
        return self._template

    def encode(
        self, record: Mapping[str, Any] | EncodedRow, where: str = "the record"
    ) -> EncodedRow:
        """Token ids and labels of one record, at its full length.

        `where` opens the text of errors. The length limit is not applied here: it is counted over
        all rows of a batch or a data set.
        """
        row = record if isinstance(record, EncodedRow) else self._encode(record, where)
        if self.vocabulary_size is not None:
            check_vocabulary(row, self.vocabulary_size, self.tokenizer, where)
        return row

    def _encode(self, record: Mapping[str, Any], where: str) -> EncodedRow:
        if not isinstance(record, Mapping):
            raise DataError(f"{where}: wanted a mapping, got {type(record).__name__}")
        if "input_ids" in record:
            return encode_tokens(record, self.train_on_prompt, where)
        template = self.template
        if not self.train_on_prompt and not getattr(self.tokenizer, "is_fast", False):
            raise TemplateError(
                "[SFTCollator] assistant spans need a fast tokenizer (backed by `tokenizers`), "
                f"got {type(self.tokenizer).__name__}"
            )
        return encode_chat(
            self.tokenizer,
            record,
            template,
            self.template_kwargs,
            self.train_on_prompt,
            self._stops,
            where,
        )

    def preview(self, record: Mapping[str, Any] | EncodedRow) -> str:
        """One record decoded, with its masked and its kept parts on lines of their own."""
        return self.describe(self.encode(record))

    def describe(self, row: EncodedRow) -> str:
        """An encoded row decoded, with its masked and its kept parts on lines of their own."""
        return describe_row(self.tokenizer, row.input_ids, row.labels)

    def __call__(
        self, records: Sequence[Mapping[str, Any] | EncodedRow]
    ) -> dict[str, torch.Tensor]:
        if not len(records):
            raise DataError("[SFTCollator] got an empty batch")
        rows = [self.encode(record, _place(index)) for index, record in enumerate(records)]
        _, rows, report = fit_rows(rows, _place, self.max_length, self.truncate, self.describe)
        if report.losses:
            warnings.warn(report.losses, DataWarning, stacklevel=2)
        return pad_rows(rows, self.pad_token_id)


def _place(index: int) -> str:
    return f"record {index + 1} of the batch"


def pad_rows(rows: Sequence[EncodedRow], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Right-padded `input_ids` int64, `attention_mask` bool and `labels` int64, each [B, T]."""
    shape = (len(rows), max(len(row) for row in rows))
    input_ids = torch.full(shape, pad_token_id, dtype=torch.int64)
    labels = torch.full(shape, IGNORE_INDEX, dtype=torch.int64)
    attention_mask = torch.zeros(shape, dtype=torch.bool)
    for index, row in enumerate(rows):
        input_ids[index, : len(row)] = torch.frombuffer(row.input_ids, dtype=torch.int32)
        labels[index, : len(row)] = torch.frombuffer(row.labels, dtype=torch.int32)
        attention_mask[index, : len(row)] = True
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}

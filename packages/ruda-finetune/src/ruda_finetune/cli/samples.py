"""Held-out records as questions, the model's answers, and how many are exact."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ruda_finetune.data.records import validate_messages
from ruda_finetune.errors import DataError

if TYPE_CHECKING:
    from ruda_finetune.generation import GenerationProgress


@dataclass
class Question:
    """A chat up to the last assistant turn, and that turn's text."""

    messages: list[dict[str, Any]]
    expected: str

    @property
    def prompt(self) -> str:
        return str(self.messages[-1].get("content", "")) if self.messages else ""


def questions(
    records: Sequence[Mapping[str, Any]], where: Callable[[int], str], limit: int | None
) -> list[Question]:
    """One question a record, from its last assistant turn."""
    found = []
    for index, record in enumerate(records[:limit]):
        messages = record.get("messages")
        if isinstance(messages, list) and "input_ids" in record:  # beside tokens nobody has looked
            validate_messages(messages, where(index))
        if (
            not isinstance(messages, list)
            or not messages
            or messages[-1].get("role") != "assistant"
            or len(messages) < 2
        ):
            raise DataError(
                f"{where(index)}: wanted messages that end in an assistant turn after a prompt, to "
                "compare the model's answer with"
            )
        found.append(Question(list(messages[:-1]), str(messages[-1]["content"])))
    return found


@dataclass
class Answers:
    """Texts in the questions' order and the seconds that took."""

    texts: list[str]
    seconds: float

    def exact(self, asked: Sequence[Question]) -> int:
        return sum(text.strip() == q.expected.strip() for text, q in zip(self.texts, asked))


def answer_all(
    loaded: Any,
    asked: Sequence[Question],
    template: str | None,
    max_new_tokens: int,
    batch_size: int,
    progress: Callable[[GenerationProgress], None] | None = None,
) -> Answers:
    """Greedy answers to all questions, in left-padded batches."""
    from ruda_finetune.generation import generate

    started = time.perf_counter()
    texts = generate(
        loaded.model,
        loaded.tokenizer,
        [question.messages for question in asked],
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        chat_template=template,
        progress=progress,
    )
    return Answers(texts, time.perf_counter() - started)

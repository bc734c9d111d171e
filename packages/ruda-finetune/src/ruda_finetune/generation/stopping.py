"""Ends of generation that transformers is told about: stop texts, and a call after every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import StoppingCriteria

# A token stands for at least one byte, except in the middle of a character: a stop text of n bytes
# lies within the last n tokens, plus those that complete its first character.
_PARTIAL_CHARACTER = 4


class StopTexts(StoppingCriteria):
    """Ends a row once one of the texts appears in what was generated.

    `lengths`: new tokens of each row up to the one that completed a text (None: it never did).
    """

    def __init__(self, tokenizer: Any, texts: Sequence[str], prompt_length: int, rows: int) -> None:
        self.lengths: list[int | None] = [None] * rows
        self._tokenizer = tokenizer
        self._texts = tuple(texts)
        self._prompt_length = prompt_length
        self._window = max(len(text.encode()) for text in texts) + _PARTIAL_CHARACTER

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        length = input_ids.shape[1]
        begin = max(self._prompt_length, length - self._window)
        for row, tail in enumerate(input_ids[:, begin:].tolist()):
            if self.lengths[row] is None:
                text = self._tokenizer.decode(tail, skip_special_tokens=False)
                if any(stop in text for stop in self._texts):
                    self.lengths[row] = length - self._prompt_length
        done = [length is not None for length in self.lengths]
        return torch.tensor(done, dtype=torch.bool, device=input_ids.device)


class AfterEachToken(StoppingCriteria):
    """Calls a function after every step; never ends anything."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self._call()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

"""`ruda-finetune eval`: loss and exact answers on records."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from rich.console import Console

from ruda_finetune.cli.console import answering, duration
from ruda_finetune.cli.output import reserved, rewrite
from ruda_finetune.cli.samples import Answers, Question, answer_all, questions
from ruda_finetune.cli.session import (
    check_positions,
    key_values,
    marked_template,
    open_model,
    show_warnings,
    vocabulary_size,
)
from ruda_finetune.data import SFTCollator, SFTDataset, evaluation_batches, read_records
from ruda_finetune.errors import DataError
from ruda_finetune.lora import load_adapter
from ruda_finetune.training import CausalLMFinetuner, mean_loss


def evaluate(
    model: Path,
    data: Path,
    adapter: Path | None,
    template: str,
    limit: int | None,
    batch_size: int,
    max_new_tokens: int,
    quantize: Literal["nf4", "none"],
    dtype: str,
    device: str,
    cache: bool,
    output: Path | None,
) -> None:
    """Print the loss over the assistant's tokens and the share of exact answers."""
    console = Console(highlight=False)
    show_warnings(console)
    records = read_records(data)
    if limit is not None:
        records = records[:limit]
    asked = questions(records, records.where, None)
    with nullcontext() if output is None else reserved(output, "eval") as file:
        loaded = open_model(
            model, quantize, dtype, device, cache=cache,
            inspect=lambda found: check_positions(found, "max-new-tokens", max_new_tokens),
        )  # fmt: skip
        text = marked_template(template, loaded.tokenizer)
        collator = SFTCollator(
            loaded.tokenizer, chat_template=text, vocabulary_size=vocabulary_size(loaded.model)
        )
        dataset = SFTDataset(records, collator)
        if adapter is not None:
            load_adapter(loaded.model, adapter)
        finetuner = CausalLMFinetuner.from_model(loaded.model, activation_checkpointing=False)
        batches = evaluation_batches(dataset, dataset.collator, min(batch_size, 8))
        found = mean_loss(finetuner, batches, loaded.source.device)
        with answering(console, "answering", len(asked)) as progress:
            answers = answer_all(loaded, asked, text, max_new_tokens, batch_size, progress)
        rows = {
            "model": str(model),
            "adapter": str(adapter) if adapter else "none",
            "records": str(len(asked)),
            "loss": f"{found.loss:.4f} nats per token over {found.supervised_tokens:,} tokens",
            "exact": f"{answers.exact(asked)} of {len(asked)}",
            "answering": duration(answers.seconds),
        }
        console.print(key_values("", rows))
        if file is not None:
            write_answers(file, asked, answers)


def write_answers(file: io.FileIO, asked: Sequence[Question], answers: Answers) -> None:
    """JSON lines into a reserved file; where it cannot take them, on standard output."""
    lines = ""
    for question, answer in zip(asked, answers.texts):
        row = {
            "messages": question.messages,
            "expected": question.expected,
            "answer": answer,
            "exact": answer.strip() == question.expected.strip(),
        }
        lines += json.dumps(row) + "\n"
    try:
        rewrite(file, lines)
    except OSError as error:
        print(lines, end="")
        raise DataError(
            f"[eval] --output {file.name} cannot be written: {error.strerror or error}; the "
            "answers are on standard output"
        ) from error

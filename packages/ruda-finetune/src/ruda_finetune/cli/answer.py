"""`ruda-finetune generate`: answers to prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ruda_finetune.cli.console import answering
from ruda_finetune.cli.session import (
    chat_template,
    check_positions,
    open_model,
    show_warnings,
)
from ruda_finetune.data import read_records
from ruda_finetune.data.records import validate_messages
from ruda_finetune.errors import DataError
from ruda_finetune.generation import generate
from ruda_finetune.generation.batched import check_sampling
from ruda_finetune.lora import load_adapter


def answer(
    model: Path,
    prompts: list[str],
    input: Path | None,
    adapter: Path | None,
    system: str | None,
    template: str,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    batch_size: int,
    quantize: Literal["nf4", "none"],
    dtype: str,
    device: str,
    cache: bool,
) -> None:
    """Print one answer a prompt, in order; notes and progress go to standard error."""
    notes = Console(stderr=True, highlight=False)
    show_warnings(notes)
    chats = [chat(prompt, system) for prompt in prompts]
    if input is not None:
        chats += read_prompts(input, system)
    if not chats:
        raise DataError("[generate] nothing to answer: give --prompt TEXT or --input FILE")
    check_sampling(max_new_tokens, batch_size, temperature, top_p, top_k=0)
    loaded = open_model(
        model, quantize, dtype, device, cache=cache,
        inspect=lambda found: check_positions(found, "max-new-tokens", max_new_tokens),
    )  # fmt: skip
    if adapter is not None:
        load_adapter(loaded.model, adapter)
    with answering(notes, "answering", len(chats)) as progress:
        texts = generate(
            loaded.model,
            loaded.tokenizer,
            chats,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            chat_template=chat_template(template, loaded.tokenizer),
            progress=progress,
        )
    for text in texts:
        print(text)


def chat(prompt: str, system: str | None) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": prompt}]


def read_prompts(path: Path, system: str | None) -> list[list[dict[str, Any]]]:
    """Chats up to the last assistant turn from JSON records, or one prompt a line of text."""
    if path.suffix in (".json", ".jsonl"):
        file = read_records(path, validate=False)
        chats = []
        for index, record in enumerate(file):
            if "messages" not in record:
                raise DataError(f"{file.where(index)}: wanted messages")
            messages = record["messages"]
            roles = validate_messages(messages, file.where(index))
            chats.append(list(messages[:-1] if roles[-1] == "assistant" else messages))
            if not chats[-1]:
                raise DataError(f"{file.where(index)}: wanted a prompt before the answer")
        return chats
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"[generate] cannot read {path}: {error}") from None
    return [chat(line, system) for line in text.splitlines() if line.strip()]

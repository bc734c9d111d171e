"""What the three commands share: loading a model for use, templates, and saying what was loaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from rich.console import Console
from rich.table import Table

from ruda_finetune.errors import FinetuneError, TemplateError

if TYPE_CHECKING:
    from ruda_finetune.loading import LoadedModel
    from ruda_finetune.models import FusionReport

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Loaded:
    """A loaded and fused model, and what was done to it."""

    source: LoadedModel
    fusion: FusionReport

    @property
    def model(self) -> Any:
        return self.source.model

    @property
    def tokenizer(self) -> Any:
        return self.source.tokenizer


def open_model(
    path: Path,
    quantize: Literal["nf4", "none"],
    dtype: str,
    device: str,
    target_modules: str | list[str] = "all-linear",
    block_size: int = 64,
    cache: bool = True,
    needs_tokenizer: bool = True,
    inspect: Callable[[Any], None] | None = None,
) -> Loaded:
    """Load, quantise and fuse the model at `path`; `inspect` as in `load_model`."""
    from ruda_finetune.errors import ModelFileError
    from ruda_finetune.loading import load_model
    from ruda_finetune.models import fuse_model

    if dtype != "auto" and dtype not in DTYPES:
        raise ModelFileError(f"[dtype] got {dtype!r}, wanted auto, {', '.join(DTYPES)}")
    source = load_model(
        path,
        quantize=quantize,
        target_modules=target_modules,
        device=device,
        dtype=None if dtype == "auto" else DTYPES[dtype],
        block_size=block_size,
        cache=cache,
        inspect=inspect,
    )
    if needs_tokenizer and source.tokenizer is None:
        raise ModelFileError(f"[load_model] {path} has no tokenizer: nothing can be encoded")
    return Loaded(source, fuse_model(source.model))


def check_rank(model: Any, target_modules: str | list[str], rank: int) -> None:
    """Raise `FinetuneError` for a rank that none of the targeted layers has room for.

    `model` may be on the meta device.
    """
    from ruda_finetune.targets import qualified_modules, resolve_targets

    modules: dict[str, Any] = qualified_modules(model)
    names = resolve_targets(model, target_modules, operator="inject_lora").names
    room = max(min(modules[name].in_features, modules[name].out_features) for name in names)
    if rank > room:
        raise FinetuneError(
            f"[rank] must be at most {room}, the largest of the targeted layers' smaller sides: "
            f"got {rank}"
        )


def check_positions(model: Any, option: str, tokens: int) -> None:
    """Raise `FinetuneError` for more tokens than a model has positions."""
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and tokens > longest:
        raise FinetuneError(f"[{option}] got {tokens}, the model has {longest} positions")


def vocabulary_size(model: Any) -> int:
    """The number of tokens that a model's embedding has rows for."""
    return int(model.get_input_embeddings().weight.shape[0])


def chat_template(choice: str, tokenizer: Any) -> str | None:
    """The template text that a --template option stands for; None is the model's own."""
    from ruda_finetune.data import CHATML_TRAINING_TEMPLATE, own_template_is_chatml

    if choice == "auto":
        return None
    if choice == "chatml":
        if getattr(tokenizer, "chat_template", None) and not own_template_is_chatml(tokenizer):
            warnings.warn(
                "the model's own chat template writes other text than the ChatML template: the "
                "model will be trained on a format it does not know yet",
                stacklevel=2,
            )
        return CHATML_TRAINING_TEMPLATE
    path = Path(choice)
    if not path.is_file():
        raise TemplateError(f"[template] {choice!r} is neither auto, chatml nor a file that exists")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"[template] cannot read {path}: {error}") from None


def marked_template(choice: str, tokenizer: Any, otherwise: str = "") -> str | None:
    """`chat_template` for learning from the assistant's text, which the template must mark.

    A model's own template without marks is an error here, in terms of the command's options
    (`otherwise` ends it); everything else the collator checks.
    """
    from ruda_finetune.data import generation_blocks, own_template_is_chatml

    text = chat_template(choice, tokenizer)
    own = getattr(tokenizer, "chat_template", None)
    if text is not None or not isinstance(own, str) or generation_blocks(own):
        return text
    if own_template_is_chatml(tokenizer):
        advice = "--template chatml, which writes the same text with the marks"
    else:
        advice = (
            "--template FILE with a copy of it that has the marks (or --template chatml, for a "
            "model that speaks ChatML)"
        )
    raise TemplateError(
        "[template] the model's own chat template does not mark the assistant's text with "
        f"{{% generation %}}, so the answers cannot be told from the prompts: add {advice}"
        f"{otherwise}"
    )


def dtype_reason(choice: str, dtype: torch.dtype, target: str) -> str:
    """Why the compute dtype is what it is."""
    name = str(dtype).removeprefix("torch.")
    if choice != "auto":
        return f"{name}, as asked for"
    if target == "host":
        return f"{name}: half precision saves no time in this build's host kernels"
    return f"{name}: the fast dtype of the {target} target"


def device_target(device: torch.device) -> tuple[str, str]:
    """(name, target) of the device a model is on."""
    if device.type != "ruda":
        return str(device), "PyTorch"
    import ruda_runtime

    found = ruda_runtime.devices()[device.index or 0]
    return found.name, found.target


def key_values(title: str, rows: dict[str, str]) -> Table:
    table = Table(
        title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0)
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def show_warnings(console: Console) -> None:
    """Print warnings as one line each instead of Python's two."""
    # what it says (no GPU target, the host is used) stands in the commands' own output
    warnings.filterwarnings("ignore", message="RUDA_TARGET=auto")

    def show(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
        console.print("warning: ", str(message), style="yellow", markup=False, sep="")

    warnings.showwarning = show  # type: ignore[assignment]

"""The settings of a training run, checked once before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ruda_finetune._files import replace_files
from ruda_finetune.errors import FinetuneError

# Bounds that no sensible run comes near; they keep slips of the keyboard from costing a load.
MOST = 10**9
LARGEST_RANK = 65536
LARGEST_BLOCK = 65536
LARGEST_SEED = 2**32 - 1


class SettingsError(FinetuneError):
    """A setting is wrong; the message names it."""


class TrainSettings(BaseModel):
    """Everything that decides what a run computes, and where it goes.

    The same file (`settings.json` in every run's folder) can start the run again elsewhere:
    `ruda-finetune train --config settings.json --output another-folder`.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    model: Path = Field(description="A .gguf file or a Hugging Face model directory.")
    data: Path = Field(description="Training records: .jsonl or .json with chat messages.")
    output: Path = Field(description="The run's folder.")
    test_data: Path | None = Field(None, description="Held-out records for before/after samples.")
    samples: int = Field(
        20, ge=0, le=MOST, description="Held-out records to answer before and after."
    )
    max_new_tokens: int = Field(128, ge=1, le=MOST, description="Longest answer in tokens.")
    template: str = Field(
        "auto",
        description="Chat template: auto (the model's own, which must mark the assistant's text), "
        "chatml, or a file with a Jinja template.",
    )

    steps: int | None = Field(None, ge=1, le=MOST, description="Optimiser steps (or give epochs).")
    epochs: float | None = Field(
        None, gt=0, le=MOST, description="Passes over the data (default 1)."
    )
    batch_size: int = Field(4, ge=1, le=MOST, description="Records in a forward pass.")
    accumulate: int = Field(1, ge=1, le=MOST, description="Forward passes in an optimiser step.")
    learning_rate: float = Field(2e-4, gt=0, le=10)
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup_steps: int = Field(0, ge=0, le=MOST)
    weight_decay: float = Field(0.0, ge=0, le=1000)
    max_grad_norm: float | None = Field(
        1.0, gt=0, le=1e30, description="Global clipping; none: off."
    )
    seed: int = Field(0, ge=0, le=LARGEST_SEED)

    rank: int = Field(16, ge=1, le=LARGEST_RANK)
    alpha: float = Field(16.0, gt=0, le=1e6)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: str = Field("all-linear", description="all-linear, or module names by comma.")

    quantize: Literal["nf4", "none"] = Field("nf4", description="Storage of the frozen weights.")
    block_size: int = Field(
        64, ge=2, le=LARGEST_BLOCK, description="Weights that share one NF4 scale; even."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Compute dtype; auto takes float32 on the host, bfloat16 on a GPU that has it.",
    )
    device: str = "ruda:0"
    cache: bool = Field(True, description="Keep packed weights in the cache's folder.")
    checkpointing: bool = Field(False, description="Recompute activations in backward.")

    max_length: int | None = Field(None, ge=2, le=MOST, description="Longest record in tokens.")
    truncate: bool = Field(False, description="Cut over-long records instead of stopping.")
    train_on_prompt: bool = False
    save_every: int = Field(50, ge=1, le=MOST, description="Steps between checkpoints.")

    @model_validator(mode="after")
    def _one_length(self) -> TrainSettings:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give either steps or epochs, not both")
        if self.block_size % 2:
            raise ValueError(f"block_size must be even, got {self.block_size}")
        if self.steps is not None:
            self.check_warmup(self.steps)
        return self

    def check_warmup(self, steps: int) -> None:
        """Raise ValueError when the warmup is longer than the run."""
        if self.warmup_steps > steps:
            raise ValueError(
                f"warmup_steps must be at most the run's {steps} steps, got {self.warmup_steps}"
            )

    def target_modules(self) -> str | list[str]:
        """`targets` as `inject_lora` wants it."""
        names = [name.strip() for name in self.targets.split(",") if name.strip()]
        return "all-linear" if names == ["all-linear"] else names

    def save(self, path: Path) -> None:
        """Write the settings as JSON, whole or not at all. Raises OSError."""
        # not pydantic's own JSON, which takes no path that is not UTF-8
        text = json.dumps(self.model_dump(mode="json"), indent=2) + "\n"
        replace_files(path.parent, {path.name: text.encode()})


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a JSON file, unchecked."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"[config] cannot read {path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise SettingsError(
            f"[config] {path} is no JSON: line {error.lineno}: {error.msg}"
        ) from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"[config] {path} is not UTF-8: {error}") from None
    if not isinstance(values, dict):
        raise SettingsError(f"[config] {path} must hold one JSON object")
    return values


def make_settings(config: Path | None, given: dict[str, Any]) -> TrainSettings:
    """Merge a settings file with the options given on the command line (which win)."""
    values = read_config(config) if config else {}
    given = {name: value for name, value in given.items() if value is not None}
    if "steps" in given:  # an option replaces its counterpart of the file
        values.pop("epochs", None)
    if "epochs" in given:
        values.pop("steps", None)
    values.update(given)
    missing = [name for name in ("model", "data", "output") if name not in values]
    if missing:
        options = ", ".join("--" + name for name in missing)
        raise SettingsError(f"[train] missing {options} (on the command line or in --config)")
    try:
        return TrainSettings(**values)
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            name = "--" + "-".join(str(part) for part in problem["loc"]).replace("_", "-")
            where = name if problem["loc"] else "settings"
            problem["msg"] = problem["msg"].removeprefix("Value error, ")
            problems.append(
                f"{where}: {problem['msg']} (got {problem['input']!r})"
                if problem["loc"]
                else problem["msg"]
            )
        raise SettingsError("[train] " + "; ".join(problems)) from None

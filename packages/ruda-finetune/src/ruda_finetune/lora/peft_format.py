"""Adapters as PEFT reads and writes them: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._files import replace_files
from ..errors import AdapterError, TargetModuleError
from ..targets import (
    ALL_LINEAR,
    COMPILE_PREFIX,
    is_linear,
    qualified_modules,
    resolve_targets,
    vocabulary_heads,
)
from .inject import inject_lora, lora_modules
from .state import adapter_state_dict, check_adapter_tensors, load_adapter_state_dict

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_SETTINGS_KEY = "lora_settings"  # safetensors metadata: the settings the tensors were saved with

# PEFT options that change what the adapter computes and that are not implemented here. The value
# says which settings leave the plain LoRA computation.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "alora_invocation_tokens": (None,),
    "alpha_pattern": (None, {}),
    "arrow_config": (None,),
    "bias": ("none",),
    "exclude_modules": (None, []),
    "fan_in_fan_out": (None, False),
    "kasa_config": (None,),
    "layer_replication": (None,),
    "layers_pattern": (None, []),
    "layers_to_transform": (None, []),
    "lora_bias": (None, False),
    "megatron_config": (None,),
    "modules_to_save": (None, []),
    "monteclora_config": (None,),
    "rank_pattern": (None, {}),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "use_bdlora": (None, False),
    "use_dora": (None, False),
    "use_qalora": (None, False),
    "velora_config": (None,),
}


def _settings(model: nn.Module, operator: str) -> dict[str, Any]:
    layers = lora_modules(model)
    if not layers:
        raise AdapterError(f"[{operator}] the model has no adapters: call inject_lora first")
    found = {
        (layer.rank, layer.alpha, layer.use_rslora, layer.dropout.p if layer.dropout else 0.0)
        for layer in layers.values()
    }
    if len(found) > 1:
        raise AdapterError(
            f"[{operator}] the adapters have different settings, which this format writer does not "
            f"support: (rank, alpha, use_rslora, dropout) {sorted(found)}"
        )
    rank, alpha, use_rslora, dropout = found.pop()
    return {
        "r": rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "use_rslora": use_rslora,
        "lora_dropout": dropout,
    }


def _target_list(model: nn.Module) -> list[str]:
    """Name endings that select exactly the adapted layers; full names where no ending does."""
    adapted = set(lora_modules(model))
    names = qualified_modules(model)
    same = {id(names[name]) for name in adapted}
    targets = set()
    for name in adapted:
        ending = name.rsplit(".", 1)[-1]
        hit = [m for n, m in names.items() if n == ending or n.endswith("." + ending)]
        targets.add(ending if all(id(module) in same for module in hit) else name)
    return sorted(targets)


def save_adapter(
    model: nn.Module,
    directory: str | Path,
    base_model_name_or_path: str | None = None,
    *,
    task_type: str | None = "CAUSAL_LM",
    base_model_revision: str | None = None,
) -> Path:
    """Write a model's adapters as PEFT does, so that `peft.PeftModel.from_pretrained` loads them.

    model: the Hugging Face model that `inject_lora` was called on, as its module names become the
        tensors' names; a wrapper such as `CausalLMFinetuner` is refused.
    directory: made if needed; gets `adapter_config.json` and `adapter_model.safetensors`, other
        files in it are left alone. Both are written and synchronised under temporary names first
        and then renamed, so that a full disk or a crash leaves the previous adapter.
    base_model_name_or_path: goes into the config, for tools that find the base by it.

    Tensors keep their dtype. Raises AdapterError for a model without adapters or with adapters of
    different settings, OSError when writing fails.
    """
    from safetensors.torch import save

    directory = Path(directory)
    settings = _settings(model, "save_adapter")
    _check_names(model)
    config = {
        "peft_type": "LORA",
        "task_type": task_type,
        "base_model_name_or_path": base_model_name_or_path,
        "revision": base_model_revision,
        "inference_mode": True,
        "target_modules": _target_list(model),
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "init_lora_weights": True,
        "rank_pattern": {},
        "alpha_pattern": {},
        "use_dora": False,
        **settings,
    }
    tensors = {
        _PREFIX + key: value.to("cpu").contiguous()
        for key, value in adapter_state_dict(model).items()
    }
    metadata = {"format": "pt", _SETTINGS_KEY: _settings_text(settings)}
    # ASCII, as the base's path need not be UTF-8
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    replace_files(
        directory,
        {WEIGHTS_FILE: save(tensors, metadata=metadata), CONFIG_FILE: text.encode()},
    )
    return directory


def _check_names(model: nn.Module) -> None:
    """Refuse a wrapper around a Hugging Face model: its module names are not the model's."""
    library = sys.modules.get("transformers")
    inner = getattr(model, "_orig_mod", model)
    if library is None or isinstance(inner, library.PreTrainedModel):
        return
    for name, module in inner.named_modules():
        if isinstance(module, library.PreTrainedModel):
            raise AdapterError(
                f"[save_adapter] {type(inner).__name__} wraps a {type(module).__name__} under "
                f"{name!r}, and the tensors would be named after the wrapper: pass the Hugging "
                "Face model that inject_lora was called on"
            )


def _settings_text(settings: Mapping[str, Any]) -> str:
    """The settings that change what the saved tensors mean, as canonical text."""
    return json.dumps(
        {
            "r": settings["r"],
            "lora_alpha": float(settings["lora_alpha"]),
            "use_rslora": bool(settings.get("use_rslora", False)),
        },
        sort_keys=True,
    )


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG_FILE
    if not path.is_file():
        present = sorted(p.name for p in directory.iterdir()) if directory.is_dir() else []
        seen = f"; it holds {', '.join(present[:8])}" if present else "; the directory is empty"
        raise AdapterError(
            f"[load_adapter] no {CONFIG_FILE} in {directory}" + (seen if directory.is_dir() else "")
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise AdapterError(f"[load_adapter] {path} is not valid JSON: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else type(config).__name__
        raise AdapterError(f"[load_adapter] {path}: peft_type must be 'LORA', got {kind!r}")
    for key, plain in _PLAIN.items():
        if key in config and config[key] not in plain:
            raise AdapterError(
                f"[load_adapter] {path}: option {key}={config[key]!r} is not supported"
            )
    for key in ("r", "lora_alpha", "target_modules"):
        if not config.get(key):
            raise AdapterError(f"[load_adapter] {path}: {key!r} is missing or empty")
    return config


def _read_tensors(directory: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = directory / WEIGHTS_FILE
    if not path.is_file():
        present = ", ".join(sorted(p.name for p in directory.iterdir())[:8])
        raise AdapterError(f"[load_adapter] no {WEIGHTS_FILE} in {directory}; it holds {present}")
    try:
        data = path.read_bytes()  # the library opens no path that is not UTF-8
        tensors = dict(sorted(load(data).items()))
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        metadata = header.get("__metadata__") or {}
    except OSError as error:
        raise AdapterError(f"[load_adapter] {path} cannot be read: {error.strerror}") from error
    except SafetensorError as error:
        raise AdapterError(f"[load_adapter] {path} is damaged: {error}") from error
    wrong = [key for key in tensors if not key.startswith(_PREFIX)]
    if wrong:
        compiled = f", torch.compile's {COMPILE_PREFIX!r} is in it" * (COMPILE_PREFIX in wrong[0])
        raise AdapterError(
            f"[load_adapter] {path}: key {wrong[0]!r} is not PEFT's (it lacks the prefix "
            f"{_PREFIX!r}{compiled}); {len(wrong)} of {len(tensors)} keys are foreign"
        )
    return {key[len(_PREFIX) :]: value for key, value in tensors.items()}, metadata


def _config_targets(model: nn.Module, config: Mapping[str, Any], path: Path) -> list[str]:
    """The layers that the config's target_modules means, as PEFT reads it."""
    targets = config["target_modules"]
    modules = qualified_modules(model)
    if isinstance(targets, str) and targets.lower() != ALL_LINEAR:
        heads = vocabulary_heads(model)
        names = [
            name
            for name, module in modules.items()
            if is_linear(module) and id(module) not in heads and re.fullmatch(targets, name)
        ]
        if not names:
            raise AdapterError(
                f"[load_adapter] {path}: target_modules {targets!r} matches no linear layer"
            )
        return names
    try:
        wanted = ALL_LINEAR if isinstance(targets, str) else targets
        return list(resolve_targets(model, wanted, operator="load_adapter").names)
    except TargetModuleError as error:
        raise AdapterError(f"{path}: the adapter does not belong to this model: {error}") from error


def load_adapter(
    model: nn.Module,
    directory: str | Path,
    adapter_dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Load an adapter that PEFT or `save_adapter` wrote; returns its adapter_config.json.

    A model without adapters gets them injected (everything else is frozen, as by `inject_lora`); a
    model that has adapters must have them on the same layers with the same rank, alpha and scaling.

    Everything is checked before the model is touched: the config's options (DoRA, per-module ranks,
    saved modules and the like are refused by name), the target layers, and that the file has
    exactly the tensors of those layers in the config's shapes. AdapterError names what is wrong.
    """
    directory = Path(directory)
    config = _read_config(directory)
    state, metadata = _read_tensors(directory)
    path = directory / CONFIG_FILE
    saved = metadata.get(_SETTINGS_KEY)
    if saved is not None and saved != _settings_text(config):
        raise AdapterError(
            f"[load_adapter] {path} says {_settings_text(config)}, but the tensors beside it were "
            f"saved with {saved}: the two files are not of one save"
        )
    present = lora_modules(model)
    if present:
        _check_same(model, config, path)
        load_adapter_state_dict(model, state)
        return config
    modules = qualified_modules(model)
    names = _config_targets(model, config, path)
    rank = config["r"]
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        layer = modules[name]
        shapes[f"{name}.lora_A.weight"] = (rank, int(layer.in_features))  # type: ignore[arg-type]
        shapes[f"{name}.lora_B.weight"] = (int(layer.out_features), rank)  # type: ignore[arg-type]
    check_adapter_tensors(state, shapes, "load_adapter")
    inject_lora(
        model,
        names,
        rank,
        config["lora_alpha"],
        adapter_dtype,
        config.get("lora_dropout") or 0.0,
        bool(config.get("use_rslora", False)),
    )
    load_adapter_state_dict(model, state)
    return config


def _check_same(model: nn.Module, config: Mapping[str, Any], path: Path) -> None:
    settings = _settings(model, "load_adapter")
    for key in ("r", "lora_alpha", "use_rslora"):
        theirs = config.get(key, False)
        if theirs != settings[key]:
            raise AdapterError(
                f"[load_adapter] {path}: {key} is {theirs!r}, but the model's adapters have "
                f"{settings[key]!r}"
            )

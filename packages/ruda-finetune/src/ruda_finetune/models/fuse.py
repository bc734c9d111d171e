"""Replacing a model's modules by fused ones, and the report of what was done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from ..targets import replace_module
from .attention import ATTENTION_NAME, register_attention
from .modules import FusedAttention, FusedMLP, FusedRMSNorm


@dataclass(frozen=True)
class Family:
    """Class names of a transformers architecture and what its modules need."""

    prefix: str
    norm_offset: float = 0.0
    window: Callable[[nn.Module], int | None] = field(default=lambda module: None)


def _layer_window(module: nn.Module) -> int | None:
    return getattr(module, "sliding_window", None)


def _config_window(module: nn.Module) -> int | None:
    return getattr(module.config, "sliding_window", None)


# transformers model_type -> family
FAMILIES: dict[str, Family] = {
    "llama": Family("Llama"),
    "qwen2": Family("Qwen2", window=_layer_window),
    "qwen3": Family("Qwen3", window=_layer_window),
    "mistral": Family("Mistral", window=_config_window),
    "gemma": Family("Gemma", norm_offset=1.0),
}

_SILU = ("silu", "swish")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class FusionReport:
    """What `fuse_model` did.

    model_types: the architectures found, as transformers names them.
    fused: kind ("attention", "mlp", "norm") -> modules that are fused now.
    unfused: (class name, how many, why) of modules that were left as they are.
    attention: the attention implementation the model runs with.
    """

    model_types: tuple[str, ...]
    fused: dict[str, int]
    unfused: tuple[tuple[str, int, str], ...]
    attention: str

    @property
    def is_fused(self) -> bool:
        """Whether anything is fused."""
        return any(self.fused.values())

    def lines(self) -> list[str]:
        """The report for people, a line each."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.fused.items() if count)
        name = "/".join(self.model_types) or "no transformers model"
        head = f"{name}: fused {kinds}" if kinds else f"{name}: runs unfused"
        lines = [f"{head}; attention implementation {self.attention}"]
        lines += [f"unfused: {count} {cls} ({why})" for cls, count, why in self.unfused]
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _family_of(module: nn.Module) -> tuple[Family, str] | None:
    """The family whose transformers class `module` is exactly, and its class name past the prefix.

    Exactly: a subclass may compute something else.
    """
    cls = type(module)
    for model_type, family in FAMILIES.items():
        home = f"transformers.models.{model_type}.modeling_{model_type}"
        if cls.__module__ == home and cls.__name__.startswith(family.prefix):
            return family, cls.__name__[len(family.prefix) :]
    return None


def _activation(module: nn.Module) -> str:
    return str(getattr(module.config, "hidden_act", "unknown"))


def _replacement(module: nn.Module) -> nn.Module | str | None:
    """The fused module, the reason for leaving it unfused, or None if it is nothing to fuse."""
    found = _family_of(module)
    if found is None:
        return None
    family, kind = found
    if any(getattr(module, hooks) for hooks in _HOOKS):
        return "it has hooks, which a replacement would lose"
    if kind == "RMSNorm":
        return FusedRMSNorm(module, family.norm_offset)
    if kind == "MLP":
        activation = _activation(module)
        if activation not in _SILU:
            return f"its gate is {activation}, and only a silu gate has a fused operator"
        return FusedMLP(module)
    if kind == "Attention":
        return FusedAttention(module, family.window(module))
    return None


def _looks_fusable(module: nn.Module) -> bool:
    name = type(module).__name__
    return name.endswith(("Attention", "MLP", "RMSNorm")) and not name.startswith("Fused")


def fuse_model(model: nn.Module) -> FusionReport:
    """Replace the attention, MLP and norm modules of a Hugging Face model by fused ones, in place.

    Families: llama, qwen2, qwen3, mistral, gemma (the first; Gemma's MLP keeps its own module, as
    its gate is gelu). State-dict keys, parameters and their order stay the same, and nothing of the
    library is patched. The model's attention implementation becomes "ruda".

    Any other model is left exactly as it is, and the report says so. A second call changes nothing.
    May come before or after quantisation, adapters and `.to(device)`.
    """
    import transformers

    replaced: dict[int, nn.Module] = {}
    reasons: dict[tuple[str, str], int] = {}
    parents = list(model.modules())
    for module in list(parents):
        new = _replacement(module)
        if isinstance(new, nn.Module):
            replace_module(model, module, new, parents)
            parents.append(new)  # what it holds of the old one may be replaced as well
            replaced[id(module)] = module  # kept alive, so that no id is used twice
        elif isinstance(new, str):
            key = (type(module).__name__, new)
            reasons[key] = reasons.get(key, 0) + 1
        elif _looks_fusable(module):
            key = (type(module).__name__, "no fused form for this class")
            reasons[key] = reasons.get(key, 0) + 1
    fused = {
        kind: sum(isinstance(module, cls) for module in model.modules())
        for kind, cls in (("attention", FusedAttention), ("mlp", FusedMLP), ("norm", FusedRMSNorm))
    }
    library_models = [m for m in model.modules() if isinstance(m, transformers.PreTrainedModel)]
    if fused["attention"]:
        register_attention()
        for part in library_models:
            if part.config._attn_implementation != ATTENTION_NAME:
                part.set_attn_implementation(ATTENTION_NAME)
    types = tuple(dict.fromkeys(str(m.config.model_type) for m in library_models))
    attention = next((str(m.config._attn_implementation) for m in library_models), "unknown")
    return FusionReport(
        types, fused, tuple((cls, count, why) for (cls, why), count in reasons.items()), attention
    )

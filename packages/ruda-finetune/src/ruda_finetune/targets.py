"""Which linear layers a list of target names means, for quantisation and LoRA alike."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from .errors import TargetModuleError

ALL_LINEAR = "all-linear"
COMPILE_PREFIX = "_orig_mod."  # torch.compile's wrapper shows up in qualified names
FEW = 0.1  # a list of suffixes that selects less of the linear layers than this gets a warning


@dataclass(frozen=True)
class TargetReport:
    """What target patterns selected.

    names: qualified names of the selected layers, in model order, each shared layer once.
    matched: pattern -> number of linear layers it selected.
    total: linear layers in the model that are not the vocabulary head.
    """

    names: tuple[str, ...]
    matched: dict[str, int]
    total: int

    def lines(self) -> list[str]:
        """One `pattern: matched/total` line for each pattern."""
        return [f"{pattern}: {count}/{self.total}" for pattern, count in self.matched.items()]

    def __str__(self) -> str:
        return f"{len(self.names)} of {self.total} linear layers (" + ", ".join(self.lines()) + ")"


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer that LoRA can be added to (dense or NF4)."""
    from .quantization import NF4Linear

    return isinstance(module, (nn.Linear, NF4Linear))


def clean_name(name: str) -> str:
    """A qualified name without the `_orig_mod.` parts that torch.compile puts in."""
    return name.replace(COMPILE_PREFIX, "")


def qualified_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Every submodule by qualified name; shared ones under each name, adapters' insides left out.

    The model itself is not among them: nothing holds it that could hold a replacement.
    """
    from .lora import LoRALinear

    names: dict[str, nn.Module] = {}
    inside: list[str] = []
    for name, module in model.named_modules(remove_duplicate=False):
        if any(name.startswith(prefix) for prefix in inside):
            continue
        if isinstance(module, LoRALinear):
            inside.append(name + ".")
        if module is not model:
            names[clean_name(name)] = module
    return names


def replace_module(
    model: nn.Module,
    old: nn.Module,
    new: nn.Module,
    parents: Sequence[nn.Module] | None = None,
) -> int:
    """Put `new` wherever `old` is registered as a submodule; returns the number of places.

    parents: the model's modules, from a caller that replaces many and has walked the model once.
    """
    places = 0
    for parent in list(model.modules()) if parents is None else parents:
        if parent is new:
            continue
        if not parent._modules:
            continue
        for child_name, child in list(parent._modules.items()):
            if child is old:
                parent._modules[child_name] = new
                places += 1
    return places


def vocabulary_heads(model: nn.Module) -> set[int]:
    """Identities of the layers that map hidden states to the vocabulary.

    They are what any submodule names as its output embeddings, layers whose weight is an
    embedding's, and layers called `lm_head`.
    """
    heads: set[int] = set()
    embeddings: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            embeddings.add(id(module.weight))
        find = getattr(module, "get_output_embeddings", None)
        if callable(find):
            try:
                head = find()
            except (AttributeError, NotImplementedError):  # a backbone without a head
                head = None
            if head is not None:
                heads.update(id(part) for part in head.modules())
    for name, module in model.named_modules(remove_duplicate=False):
        tied = isinstance(module, nn.Linear) and id(module.weight) in embeddings
        if tied or "lm_head" in name.split("."):
            heads.add(id(module))
    return heads


def near_names(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Known qualified names or name endings that look like `name`, best first."""
    candidates: dict[str, None] = {}
    for full in known:
        parts = full.split(".")
        for start in range(len(parts)):
            candidates.setdefault(".".join(parts[start:]))
    wanted_depth = name.count(".")
    # endings as deep as the wrong name are the likely corrections
    same_depth = [text for text in candidates if text.count(".") == wanted_depth]
    found = difflib.get_close_matches(name, same_depth, n=limit, cutoff=0.5)
    if len(found) < limit:
        more = difflib.get_close_matches(name, list(candidates), n=limit, cutoff=0.5)
        found += [text for text in more if text not in found]
    return found[:limit]


def _describe(module: nn.Module) -> str:
    kind = type(module).__name__
    if kind == "Conv1D":
        return "a Conv1D (a transposed linear layer as in GPT-2, which is not supported)"
    return f"of type {kind}, no linear layer"


def _patterns(target_modules: str | Sequence[str], operator: str) -> list[str]:
    if isinstance(target_modules, str):
        if target_modules == ALL_LINEAR:
            return [ALL_LINEAR]
        raise TargetModuleError(
            f"[{operator}] target_modules must be {ALL_LINEAR!r} or a list of names: got the "
            f"string {target_modules!r}; write [{target_modules!r}]"
        )
    patterns = list(target_modules)
    wrong = [item for item in patterns if not isinstance(item, str) or not item]
    if wrong:
        raise TargetModuleError(
            f"[{operator}] target_modules must hold non-empty names: got {wrong[0]!r}"
        )
    if not patterns:
        raise TargetModuleError(
            f"[{operator}] target_modules is empty: name at least one layer, or use {ALL_LINEAR!r}"
        )
    return list(dict.fromkeys(patterns))


def _select(
    pattern: str, modules: dict[str, nn.Module], heads: set[int], operator: str
) -> Iterator[str]:
    """The qualified names that one pattern selects."""
    if pattern == ALL_LINEAR:
        names = [n for n, m in modules.items() if is_linear(m) and id(m) not in heads]
        if not names:
            conv = sum(type(m).__name__ == "Conv1D" for m in modules.values())
            hint = f" ({conv} Conv1D layers were seen, which are not supported)" if conv else ""
            raise TargetModuleError(f"[{operator}] the model has no linear layer{hint}")
        yield from names
        return
    wanted = clean_name(pattern)
    names = [wanted] if wanted in modules else [n for n in modules if n.endswith("." + wanted)]
    if not names:
        near = near_names(wanted, (n for n, m in modules.items() if is_linear(m)))
        hint = f"; near names: {', '.join(near)}" if near else ""
        raise TargetModuleError(f"[{operator}] no module is called {pattern!r}{hint}")
    for name in names:
        if not is_linear(modules[name]):
            raise TargetModuleError(
                f"[{operator}] target {pattern!r} selects {name!r}, which is "
                f"{_describe(modules[name])}"
            )
        yield name


def resolve_targets(
    model: nn.Module,
    target_modules: str | Sequence[str] = ALL_LINEAR,
    *,
    operator: str = "resolve_targets",
) -> TargetReport:
    """Find the linear layers that `target_modules` means.

    target_modules: `"all-linear"` (every linear layer except the vocabulary head, as in PEFT), or a
    list whose entries are qualified names (`model.layers.0.self_attn.q_proj`) or their endings at a
    dot (`q_proj`, `self_attn.q_proj`). A name that exists exactly is only that layer.

    Raises TargetModuleError for an empty list, a name that matches nothing (near names are listed)
    and a name of something that is no linear layer. Warns when a list of endings selects less than
    a tenth of the model's linear layers.
    """
    patterns = _patterns(target_modules, operator)
    modules = qualified_modules(model)
    heads = vocabulary_heads(model)
    first_name: dict[int, str] = {}
    for name, module in modules.items():
        first_name.setdefault(id(module), name)
    matched: dict[str, int] = {}
    selected: set[str] = set()
    by_ending = True
    for pattern in patterns:
        names = {first_name[id(modules[n])] for n in _select(pattern, modules, heads, operator)}
        matched[pattern] = len(names)
        selected |= names
        by_ending = by_ending and pattern != ALL_LINEAR and clean_name(pattern) not in modules
    total = len({id(m) for m in modules.values() if is_linear(m) and id(m) not in heads})
    ordered = tuple(name for name in first_name.values() if name in selected)
    report = TargetReport(ordered, matched, total)
    if by_ending and len(ordered) < FEW * total:
        warnings.warn(f"[{operator}] the targets select only {report}", stacklevel=3)
    return report


def module_device(module: nn.Module) -> torch.device:
    """The device of a linear layer's weight, dense or packed."""
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        return tensor.device
    return torch.device("cpu")

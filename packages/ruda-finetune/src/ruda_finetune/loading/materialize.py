"""Turning a model on the meta device into one with weights, tensor by tensor.

The file and the model are compared whole first; then every tensor is read once, in the file's
order, and goes to its place on the device: as NF4 for the targeted layers, else in its dtype. At no
time is more than one tensor held besides the result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from ..errors import FinetuneError, ModelFileError, QuantizationError, TargetModuleError
from ..targets import TargetReport, qualified_modules, resolve_targets
from .buffers import compute_buffers
from .cache import Packed
from .report import LoadReport, count_elements
from .shards import shown
from .sources import WeightSource, fill, is_finite

# Old checkpoints hold these; every model computes them.
_COMPUTED_ANYWAY = (r"rotary_emb\.inv_freq",)


@dataclass(eq=False)
class Slot:
    """One tensor of the model: everywhere it is registered, under every name it has."""

    tensor: torch.Tensor
    names: list[str] = field(default_factory=list)
    places: list[tuple[nn.Module, str]] = field(default_factory=list)  # (owner, attribute)
    persistent: bool = True

    @property
    def is_parameter(self) -> bool:
        return isinstance(self.tensor, nn.Parameter)


def slots_of(model: nn.Module) -> list[Slot]:
    """The model's parameters and buffers, each once, with all their names."""
    slots: dict[int, Slot] = {}
    seen: set[int] = set()
    for prefix, module in model.named_modules(remove_duplicate=False):
        kinds = ((module._parameters, True), (module._buffers, False))
        for attribute, tensor, parameter in (
            (key, value, flag) for table, flag in kinds for key, value in table.items()
        ):
            if tensor is None:
                continue
            slot = slots.setdefault(id(tensor), Slot(tensor))
            slot.names.append(f"{prefix}.{attribute}" if prefix else attribute)
            if not parameter and attribute in module._non_persistent_buffers_set:
                slot.persistent = False
            if id(module) not in seen:
                slot.places.append((module, attribute))
        seen.add(id(module))
    return list(slots.values())


@dataclass(frozen=True)
class Matching:
    """Which tensor of the file goes to which slot, and what is left on both sides."""

    slots: dict[str, Slot]  # name in the file -> slot, in the file's order
    ties: tuple[tuple[str, ...], ...]
    duplicates: dict[str, str]  # name in the file -> the name whose values it must repeat
    computed: dict[str, Slot]  # buffers to compute, by their first name
    skipped: dict[str, str]


def match(model: nn.Module, source: WeightSource, operator: str) -> Matching:
    """Compare a model with a file. Raises `ModelFileError` listing every difference."""
    slots = slots_of(model)
    by_name = {name: slot for slot in slots for name in slot.names}
    ignore_missing = _patterns(model, "_keys_to_ignore_on_load_missing")
    ignore_unexpected = (*_patterns(model, "_keys_to_ignore_on_load_unexpected"), *_COMPUTED_ANYWAY)
    problems: list[str] = []
    chosen: dict[int, str] = {}
    duplicates: dict[str, str] = {}
    skipped: dict[str, str] = {}
    matched: dict[str, Slot] = {}
    unexpected: list[str] = []
    for name, entry in source.entries.items():
        slot = by_name.get(name)
        if slot is None or not slot.persistent:
            if _ignored(name, ignore_unexpected):
                skipped[name] = "the model computes it"
            else:
                unexpected.append(name)
            continue
        wanted = tuple(slot.tensor.shape)
        if entry.shape != wanted:
            problems.append(
                f"{name} has shape {list(entry.shape)} in the file, {list(wanted)} in the model"
            )
        elif slot.tensor.is_floating_point() != entry.floating:
            problems.append(
                f"{name} is stored as {entry.stored}, the model's is {slot.tensor.dtype}"
            )
        first = chosen.setdefault(id(slot), name)
        if first == name:
            matched[name] = slot
        else:
            duplicates[name] = first
    missing: list[str] = []
    computed: dict[str, Slot] = {}
    for slot in slots:
        if id(slot) in chosen:
            continue
        if slot.persistent and not (
            not slot.is_parameter and any(_ignored(name, ignore_missing) for name in slot.names)
        ):
            missing.append(" = ".join(slot.names))
        elif slot.tensor.is_meta:
            computed[slot.names[0]] = slot
    if missing:
        problems.append(f"{len(missing)} tensors are missing in the file: {shown(missing)}")
    if unexpected:
        problems.append(
            f"{len(unexpected)} tensors of the file have no place in the model: {shown(unexpected)}"
        )
    if problems:
        raise ModelFileError(
            f"[{operator}] {source.path} does not fit {type(model).__name__}: "
            + "; ".join(problems[:12])
            + (f"; … ({len(problems) - 12} more)" if len(problems) > 12 else "")
        )
    ties = tuple(
        (chosen[id(slot)], *(n for n in slot.names if n != chosen[id(slot)]))
        for slot in slots
        if id(slot) in chosen and len(slot.places) > 1
    )
    return Matching(matched, ties, duplicates, computed, skipped)


def materialize(
    model: nn.Module,
    source: WeightSource,
    *,
    operator: str,
    target_modules: str | Sequence[str] | None,
    quantize: bool = True,
    device: torch.device,
    dtype: torch.dtype,
    parameter_dtypes: Mapping[str, torch.dtype] | None = None,
    buffer_dtypes: Mapping[str, torch.dtype] | None = None,
    block_size: int = 64,
    tile_rows: int = 128,
    packed: Packed | None = None,
) -> LoadReport:
    """Load `source` into `model`, whose parameters are on the meta device, in place.

    The layers that `target_modules` selects become `NF4Linear` if `quantize`. Other floating
    parameters and persistent buffers get `dtype`, except those in `parameter_dtypes` or
    `buffer_dtypes` and what the model's `_keep_in_fp32_modules` (and `_strict`) name.

    packed: NF4 weights of an earlier load by layer, used instead of reading and quantising if they
        are exactly this model's; emptied meanwhile.

    Raises before anything changes for whatever can be seen without reading values; a tensor with
    NaN or infinite values is found when its turn comes.
    """
    parameter_dtypes, buffer_dtypes = dict(parameter_dtypes or {}), dict(buffer_dtypes or {})
    matching = match(model, source, operator)
    real = [s.names[0] for s in matching.slots.values() if s.is_parameter and not s.tensor.is_meta]
    if real:
        raise FinetuneError(
            f"[{operator}] the model's parameters must be on the meta device (construct it under "
            f"torch.device('meta')): {shown(real)} have values already"
        )
    report = None
    if target_modules is not None:
        report = resolve_targets(model, target_modules, operator=operator)
    layers = _nf4_layers(model, report, matching, operator) if report and quantize else {}
    _check_dtypes(model, matching, layers, parameter_dtypes, buffer_dtypes, operator)

    computed = compute_buffers(model, matching.computed, device, buffer_dtypes, operator)
    for slot in matching.computed.values():
        (first, attribute), *others = slot.places
        for module, other in others:
            module._buffers[other] = first._buffers[attribute]
    keep = _keep_in_float32(model) if dtype in (torch.float16, torch.bfloat16) else ()
    parents = _parents(model)
    replaced: dict[nn.Module, nn.Module] = {}
    if packed is not None and not _fits(packed, matching, layers, block_size):
        packed = None
    for name, slot in matching.slots.items():
        if name in layers:
            layer = slot.places[0][0]
            assert isinstance(layer, nn.Linear)
            if packed is not None:
                codes, scales = packed.pop(layers[name])
            else:
                codes, scales = _quantize(source, name, block_size, operator)
            new = _nf4_layer(layer, codes, scales, device, block_size, tile_rows)
            for parent, child in parents[id(layer)]:
                parent._modules[child] = new
            replaced[layer] = new
            continue
        wanted = _dtype_of(slot, dtype, keep, parameter_dtypes, buffer_dtypes)
        value = _read_dense(source, name, slot, device, wanted, operator)
        for module, attribute in slot.places:
            owner = replaced.get(module, module)
            table = owner._parameters if slot.is_parameter else owner._buffers
            table[attribute] = value  # type: ignore[assignment]
    for name, first in matching.duplicates.items():
        _check_duplicate(source, name, first, operator)
    _move_real_buffers(model, device)
    elements, nbytes = count_elements(model)
    return LoadReport(
        targets=report,
        quantized=tuple(layers.values()),
        ties=matching.ties,
        skipped=matching.skipped,
        computed=computed,
        elements=elements,
        stored=dict(Counter(entry.stored for entry in source.entries.values())),
        nbytes=nbytes,
        cached=packed is not None,
    )


def _nf4_layers(
    model: nn.Module, report: TargetReport, matching: Matching, operator: str
) -> dict[str, str]:
    """`{name of the weight in the file: name of the layer}` for the layers to quantise."""
    modules = qualified_modules(model)
    by_tensor = {id(slot.tensor): (name, slot) for name, slot in matching.slots.items()}
    layers: dict[str, str] = {}
    for name in report.names:
        layer = modules[name]
        if type(layer) is not nn.Linear:
            raise TargetModuleError(
                f"[{operator}] {name!r} is a {type(layer).__name__}; only torch.nn.Linear itself "
                "is converted to NF4"
            )
        stored, slot = by_tensor[id(layer.weight)]
        if len(slot.places) > 1:
            tied = [other for other in slot.names if other != f"{name}.weight"]
            raise TargetModuleError(
                f"[{operator}] the weight of {name!r} is tied to {', '.join(tied)}: quantising it "
                "would part them; leave it out of target_modules"
            )
        layers[stored] = name
    return layers


def _parents(model: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """Identity of a module -> every place it is registered at, as (parent, name)."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for parent in model.modules():
        for child, module in parent._modules.items():
            if module is not None:
                places.setdefault(id(module), []).append((parent, child))
    return places


def _fits(packed: Packed, matching: Matching, layers: Mapping[str, str], block_size: int) -> bool:
    """Whether packed weights are those of exactly these layers."""
    from ..quantization.pack import packed_sizes

    if set(packed) != set(layers.values()):
        return False
    for stored, name in layers.items():
        out_features, in_features = matching.slots[stored].tensor.shape
        codes, scales = packed[name]
        sizes = packed_sizes(out_features, in_features, block_size)
        dtypes = (codes.dtype, scales.dtype)
        if (codes.numel(), scales.numel()) != sizes or dtypes != (torch.uint8, torch.float32):
            return False
    return True


def _quantize(
    source: WeightSource, name: str, block_size: int, operator: str
) -> tuple[torch.Tensor, torch.Tensor]:
    from ..quantization import pack_nf4

    try:
        return pack_nf4(source.read(name), block_size)
    except QuantizationError as error:
        raise ModelFileError(f"[{operator}] {source.path}: tensor {name!r}: {error}") from error


def _nf4_layer(
    layer: nn.Linear,
    codes: torch.Tensor,
    scales: torch.Tensor,
    device: torch.device,
    block_size: int,
    tile_rows: int,
) -> nn.Module:
    from ..quantization import NF4Linear

    return NF4Linear(
        layer.in_features,
        layer.out_features,
        codes.to(device),
        scales.to(device),
        block_size,
        tile_rows,
        layer.bias,  # still on the meta device if its turn has not come
    ).train(layer.training)


def _read_dense(
    source: WeightSource,
    name: str,
    slot: Slot,
    device: torch.device,
    dtype: torch.dtype,
    operator: str,
) -> torch.Tensor:
    value = torch.empty(slot.tensor.shape, dtype=dtype, device=device)
    fill(value, _finite(source, name, operator))
    if not slot.is_parameter:
        return value
    return nn.Parameter(value, requires_grad=slot.tensor.requires_grad)


def _finite(source: WeightSource, name: str, operator: str) -> Iterator[torch.Tensor]:
    for piece in source.pieces(name):
        if not is_finite(piece):
            raise ModelFileError(
                f"[{operator}] {source.path}: tensor {name!r} has values that are NaN or infinite"
            )
        yield piece


def _check_duplicate(source: WeightSource, name: str, first: str, operator: str) -> None:
    """Names that are one tensor in the model must be equal in the file."""
    for left, right in zip(_copies(source, name), _copies(source, first)):
        common = torch.promote_types(left.dtype, right.dtype)
        if not torch.equal(left.to(common), right.to(common)):
            raise ModelFileError(
                f"[{operator}] {source.path}: {name!r} and {first!r} are tied in the model but "
                "differ in the file; set tie_word_embeddings to false in the config if they are "
                "two weights"
            )


def _copies(source: WeightSource, name: str) -> Iterator[torch.Tensor]:
    return (piece.clone() for piece in source.pieces(name))


def _dtype_of(
    slot: Slot,
    dtype: torch.dtype,
    keep: Sequence[re.Pattern[str]],
    parameter_dtypes: Mapping[str, torch.dtype],
    buffer_dtypes: Mapping[str, torch.dtype],
) -> torch.dtype:
    table = parameter_dtypes if slot.is_parameter else buffer_dtypes
    for name in slot.names:
        if name in table:
            return table[name]
    if not slot.tensor.is_floating_point():
        return slot.tensor.dtype
    if any(pattern.search(name) for pattern in keep for name in slot.names):
        return torch.float32
    return dtype


def _check_dtypes(
    model: nn.Module,
    matching: Matching,
    layers: Mapping[str, str],
    parameter_dtypes: Mapping[str, torch.dtype],
    buffer_dtypes: Mapping[str, torch.dtype],
    operator: str,
) -> None:
    parameters = {n: s for s in slots_of(model) if s.is_parameter for n in s.names}
    buffers = {n for s in slots_of(model) if not s.is_parameter for n in s.names}
    for what, given, known in (
        ("parameter", parameter_dtypes, parameters.keys()),
        ("buffer", buffer_dtypes, buffers),
    ):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise FinetuneError(
                f"[{operator}] {what}_dtypes names what is no {what} of the model: {shown(unknown)}"
            )
    packed = [n for name in layers for n in matching.slots[name].names if n in parameter_dtypes]
    if packed:
        raise FinetuneError(
            f"[{operator}] parameter_dtypes names weights that become NF4: {shown(packed)}"
        )
    for name, given in parameter_dtypes.items():
        if parameters[name].tensor.is_floating_point() != given.is_floating_point:
            raise FinetuneError(f"[{operator}] parameter_dtypes[{name!r}] cannot be {given}")


def _patterns(model: nn.Module, attribute: str) -> tuple[str, ...]:
    return tuple(getattr(model, attribute, None) or ())


def _ignored(name: str, patterns: Sequence[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _keep_in_float32(model: nn.Module) -> list[re.Pattern[str]]:
    """Patterns of the names that a model asks to keep in float32, whole parts of a name."""
    names: set[str] = set()
    for module in model.modules():
        names.update(getattr(module, "_keep_in_fp32_modules", None) or ())
        names.update(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
    return [re.compile(rf"(?:^|\.)(?:{name})(?:\.|$)") for name in sorted(names)]


def _move_real_buffers(model: nn.Module, device: torch.device) -> None:
    """Buffers that had values from the start go to the device with the rest."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device != device:
                module._buffers[name] = buffer.to(device)

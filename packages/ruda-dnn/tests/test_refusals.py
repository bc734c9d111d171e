"""What the entries refuse before they touch memory: views of another target, and on the cuda target
sizes that 32 bits or a grid do not hold."""

from __future__ import annotations

from typing import Any

import pytest

from .native_views import CUDA, HOST, Fake, call, place_of_result, this_target

HALF = "float16"


def f(*shape: int, dtype: str = "float32") -> Fake:
    return Fake(dtype, shape)


def normalizations(rows: int = 2, width: int = 8, parts: int = 0) -> dict[str, tuple[Any, ...]]:
    x, w, stat = f(rows, width), f(width), f(rows)
    return {
        "rms_norm.forward": (x, w, x, stat, 1e-5),
        "rms_norm.backward": (x, w, x, stat, x, w, parts),
        "layer_norm.forward": (x, w, w, x, stat, stat, 1e-5),
        "layer_norm.backward": (x, w, x, stat, stat, x, w, w, parts),
    }


def softmaxes(shape: tuple[int, ...] = (2, 8), axis: int = 1) -> dict[str, tuple[Any, ...]]:
    x = f(*shape)
    return {"softmax.forward": (x, x, axis, 0), "softmax.backward": (x, x, x, axis, 1)}


def activations(count: int = 8) -> dict[str, tuple[Any, ...]]:
    x = f(count)
    return {"silu_mul.forward": (x, x, x), "silu_mul.backward": (x, x, x, x, x)}


def rotations(batch: int = 1, tokens: int = 3, heads: int = 2) -> dict[str, tuple[Any, ...]]:
    x, table = f(batch, tokens, heads, 4), f(1, tokens, 4)
    return {"rotary.forward": (x, table, table, x), "rotary.backward": (x, table, table, x)}


def losses(rows: int = 3, width: int = 4, classes: int = 5) -> dict[str, tuple[Any, ...]]:
    hidden, head, bias = f(rows, width), f(classes, width), f(classes)
    target, loss, count = f(rows, dtype="int64"), f(), f(dtype="int64")
    return {
        "linear_cross_entropy.forward":
            (hidden, head, bias, target, loss, count, hidden, head, bias, 0, -100)
    }  # fmt: skip


def optimisers(count: int = 8) -> dict[str, tuple[Any, ...]]:
    one, two = [f(count), f(3)], place_of_result()
    return {
        "adamw.step": (one, one, one, one, one, 2, 1, 0.1, 0.9, 0.9, 1e-8, 0.1, 1.0),
        "gradient.unscale": (one, 2, 0.5, two),
        "gradient.norm": (one, 2, 0.5, two, two),
    }


def attentions(
    batch: int = 1, queries: int = 3, keys: int = 4, heads: int = 2, groups: int = 1,
    width: int = 8,
) -> dict[str, tuple[Any, ...]]:  # fmt: skip
    q, k = f(batch, queries, heads, width), f(batch, keys, groups, width)
    mask, lse = f(batch, 1, 1, keys, dtype="bool"), f(batch, heads, queries)
    inputs, options = (q, k, k, mask, None, None, q, lse), (0.5, -1, 0, 1)
    return {
        "attention.forward": (*inputs, *options),
        "attention.backward": (*inputs, q, q, k, k, *options),
    }


def packed() -> dict[str, tuple[Any, ...]]:
    q, k, ends, lse = f(5, 2, 8), f(6, 1, 8), f(3, dtype="int32"), f(2, 5)
    inputs, options = (q, k, k, None, ends, ends, q, lse), (0.5, -1, 0, 1)
    return {
        "attention.forward": (*inputs, *options),
        "attention.backward": (*inputs, q, q, k, k, *options),
    }


def views_of(fields: tuple[Any, ...]) -> list[tuple[int, int | None]]:
    """Places of views: of a field, or of an item of a list."""
    places: list[tuple[int, int | None]] = []
    for i, field in enumerate(fields):
        if isinstance(field, Fake):
            places.append((i, None))
        elif isinstance(field, list):
            places += [(i, item) for item in range(len(field))]
    return places


def moved(fields: tuple[Any, ...], target: int, place: tuple[int, int | None] | None) -> list[Any]:
    """The fields with all views on a target, or the one at a place."""

    def move(field: Any, i: int) -> Any:
        if isinstance(field, Fake):
            return field.on(target) if place in (None, (i, None)) else field
        if isinstance(field, list):
            return [view.on(target) if place in (None, (i, item)) else view
                    for item, view in enumerate(field)]  # fmt: skip
        return field

    return [move(field, i) for i, field in enumerate(fields)]


FAMILIES = [normalizations, softmaxes, activations, rotations, losses, optimisers, attentions,
            packed]  # fmt: skip
MIXED = [
    pytest.param(name, fields, place, id=f"{family.__name__}-{name}-{place[0]}-{place[1] or 0}")
    for family in FAMILIES
    for name, fields in family().items()
    for place in views_of(fields)
]


@pytest.mark.parametrize(("name", "fields", "place"), MIXED)
def test_a_view_of_another_target_is_refused(
    name: str, fields: tuple[Any, ...], place: tuple[int, int | None]
) -> None:
    here = this_target()
    mixed = moved(tuple(moved(fields, here, None)), HOST + CUDA - here, place)
    status, text = call(name, *mixed)
    assert status == "unsupported", text
    other, own = ("host", "cuda") if here == CUDA else ("cuda", "host")
    assert f"({other}), wanted one of this process's target {own}" in text


BIG = 1 << 31
LIMITS = [
    (normalizations(rows=BIG, width=1), "rows: got 2147483648, wanted at most 2147483647"),
    (normalizations(rows=1, width=BIG - 8192), "the last axis: got 2147475456, wanted at most"),
    (softmaxes((BIG, 4)), "rows: got 2147483648"),
    (softmaxes((1, BIG)), "the axis: got 2147483648"),
    (softmaxes((2, 3, BIG)), "elements behind the axis: got 2147483648"),
    (softmaxes((65536, 3, 2)), "wanted at most 65535 slices before it"),
    (activations(BIG << 10), "blocks of 1024 elements: got 2147483648"),
    (rotations(batch=1 << 16, tokens=1 << 15), "tokens: got 2147483648"),
    (rotations(heads=1 << 20), "tiles of heads: got 65536, wanted at most 65535"),
    (losses(rows=BIG), "rows: got 2147483648"),
    (losses(classes=BIG), "classes: got 2147483648"),
    (losses(width=1 << 26), "blocks of 1024 columns: got 65536, wanted at most 65535"),
    (optimisers(BIG << 14), "chunks"),
    (attentions(width=257), "got widths 257 and 257, wanted at most 256 on the cuda target"),
    (attentions(queries=1 << 29), "queries of a sequence: got 536870912"),
    (attentions(keys=1 << 29), "keys of a sequence: got 536870912"),
    (attentions(queries=1 << 28, heads=8), "queries times heads of a group: got 2147483648"),
    (attentions(queries=0, heads=BIG, groups=BIG), "heads: got 2147483648"),
    (attentions(batch=1 << 22, queries=1 << 14, keys=1 << 14, heads=8, groups=8, width=64),
     "blocks of all sequences and groups: got"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fields", "text"),
    [pytest.param(name, fields, text, id=f"{name}-{text.split(':')[0]}")
     for entries, text in LIMITS for name, fields in entries.items()],
)  # fmt: skip
def test_sizes_beyond_a_grid_or_32_bits_are_refused(
    name: str, fields: tuple[Any, ...], text: str
) -> None:
    if this_target() != CUDA:
        pytest.skip("limits of the cuda target")
    status, message = call(name, *fields)
    assert status == "unsupported", message
    assert text in message and message.startswith("[")


def test_columns_of_parameter_gradients_are_a_grid() -> None:
    if this_target() != CUDA:
        pytest.skip("limits of the cuda target")
    width = 65535 * 128 + 1
    x, w, stat = f(1, width), f(width), f(1)
    for name, fields in (
        ("rms_norm.backward", (x, w, x, stat, None, w, 0)),
        ("layer_norm.backward", (x, w, x, stat, stat, None, None, w, 0)),
    ):
        status, message = call(name, *fields)
        assert status == "unsupported", message
        assert "blocks of 128 columns: got 65536, wanted at most 65535" in message

"""What the entries launch on the cuda target beside what each launch.py says, for
test_device_launches.py: a process of its own, on the driver double in record-only mode.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import ruda_dnn
from ruda_dnn.activation import launch as activation
from ruda_dnn.attention import launch as attention
from ruda_dnn.loss import launch as loss
from ruda_dnn.normalization import launch as normalization
from ruda_dnn.optim import launch as optim
from ruda_dnn.rotary import launch as rotary
from ruda_dnn.softmax import launch as softmax
from ruda_runtime import Tensor, empty
from ruda_runtime.launch import Launch
from ruda_runtime.testing.launches import differences, scratch, shifted, upload, view

DTYPES = ("float32", "float16", "bfloat16")


def normalizations() -> Iterator[list[Launch]]:
    for dtype in DTYPES:
        for make, width in [
            *((empty, width) for width in (16, 1024, 1040, 4096, 8192, 16384, 1023)),
            (shifted, 1024),
        ]:
            for kind in (*dict.fromkeys((dtype, "float32")), None):
                x, y, grad, dx = (make((3, width), dtype) for _ in range(4))
                w = None if kind is None else empty((width,), kind)
                bias = empty((width,), kind or dtype)
                mean, rstd = empty((3,), "float32"), empty((3,), "float32")
                vx, vw, vy, vg, vb, vm, vr = map(view, (x, w, y, grad, bias, mean, rstd))
                assert vx and vy and vg and vm and vr
                for statistics in ((mean, rstd), (None, None)):
                    _native_dnn.rms_norm_forward(x, w, y, statistics[1], 1e-5)
                    yield normalization.rms_norm_forward(
                        vx, vw, vy, view(statistics[1]), 1e-5, scratch
                    )
                    _native_dnn.layer_norm_forward(x, w, bias, y, *statistics, 1e-5)
                    yield normalization.layer_norm_forward(
                        vx, vw, vb, vy, *map(view, statistics), 1e-5, scratch
                    )
                for wants in itertools.product((False, True), repeat=3):
                    one, two, three = (
                        t if wanted else None for t, wanted in zip((dx, w, bias), wants)
                    )
                    _native_dnn.rms_norm_backward(x, w, grad, rstd, one, two, 2)
                    yield normalization.rms_norm_backward(
                        vx, vw, vg, vr, view(one), view(two), 2, scratch
                    )
                    _native_dnn.layer_norm_backward(x, w, grad, mean, rstd, one, two, three, 0)
                    yield normalization.layer_norm_backward(
                        vx, vw, vg, vm, vr, *map(view, (one, two, three)), 0, scratch
                    )


def activations() -> Iterator[list[Launch]]:
    for dtype, count, make in itertools.product(DTYPES, (1024, 1000), (empty, shifted)):
        gate, up, grad, a, b = (make((count,), dtype) for _ in range(5))
        _native_dnn.silu_mul_forward(gate, up, a)
        yield activation.silu_mul_forward(*map(view, (gate, up, a)))
        for one, two in ((a, b), (a, None), (None, b), (None, None)):
            _native_dnn.silu_mul_backward(gate, up, grad, one, two)
            yield activation.silu_mul_backward(*map(view, (gate, up, grad, one, two)))


def rotations() -> Iterator[list[Launch]]:
    for dtype, (heads, features, rotated) in itertools.product(
        DTYPES, ((9, 64, 64), (3, 128, 128), (2, 256, 128), (2, 13, 10), (1, 4098, 4098))
    ):
        for table in dict.fromkeys((dtype, "float32")):
            x, y = (empty((2, 3, heads, features), dtype) for _ in range(2))
            cos, sin = (empty((1, 3, rotated), table) for _ in range(2))
            for transposed in (False, True):
                call = _native_dnn.rotary_backward if transposed else _native_dnn.rotary_forward
                call(x, cos, sin, y)
                yield rotary.rotary(*map(view, (x, cos, sin, y)), transposed)


def softmaxes() -> Iterator[list[Launch]]:
    shapes = [((2, n), 1) for n in (16, 1024, 1025, 4096, 8192, 8208, 63)]
    for dtype, logarithm in itertools.product(DTYPES, (False, True)):
        for shape, axis in [*shapes, ((5, 64), 0), ((5, 63), 0), ((2, 5, 64), 1), ((0, 4), 1)]:
            x, y, dx = (empty(shape, dtype) for _ in range(3))
            _native_dnn.softmax_forward(x, y, axis, logarithm)
            yield softmax.softmax_forward(*map(view, (x, y)), axis, logarithm)
            _native_dnn.softmax_backward(x, y, dx, axis, logarithm)
            yield softmax.softmax_backward(*map(view, (x, y, dx)), axis, logarithm)


def optimisers() -> Iterator[list[Launch]]:
    options = {"step": 2, "learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8,
               "weight_decay": 0.1, "gradient_scale": 1.0}  # fmt: skip
    one = scratch((1,), "int32")
    for make, counts in ((empty, (64,)), (empty, (64, 0, 7)), (shifted, (64, 40_000))):
        for dtype in DTYPES:
            for kind in dict.fromkeys((dtype, "float32")):
                parameters = [make((n,), dtype) for n in counts]
                gradients = [make((n,), kind) for n in counts]
                states = [[make((n,), "float32") for n in counts] for _ in range(3)]
                masters = states[0] if dtype != "float32" else [None] * len(counts)
                lists = [parameters, gradients, masters, states[1], states[2]]
                _native_dnn.adamw_step(*lists, *options.values())
                yield optim.adamw_step(*([view(t) for t in each] for each in lists),
                                       **options, upload=upload)  # fmt: skip
            several = [*(make((n,), dtype) for n in counts), empty((32,), "float32")]
            views = [v for t in several if (v := view(t))]
            for scale in (1.0, 0.5):
                _native_dnn.unscale_gradients(several, scale)
                yield optim.unscale(views, scale, one, upload, scratch)
                _native_dnn.gradient_norm(several, scale)
                yield optim.gradient_norm(views, scale, scratch((1,), "float64"), one, upload,
                                          scratch)  # fmt: skip


def sequence_ends(*lengths: int) -> Tensor:
    return Tensor.from_numpy(np.cumsum([0, *lengths]).astype(np.int32))


def attentions() -> Iterator[list[Launch]]:
    """Dense and packed, decoding in splits, every mask, statistics and set of gradients."""
    dense = [  # batch, queries, keys, heads, groups, width, value width
        (2, 5, 9, 4, 2, 16, 16), (1, 1, 1500, 8, 2, 64, 64), (1, 2, 9000, 1, 1, 40, 8),
        (1, 33, 70, 6, 3, 128, 128), (1, 70, 40, 2, 1, 200, 256), (2, 3, 0, 2, 2, 8, 8),
        (2, 0, 3, 2, 2, 8, 8), (0, 3, 3, 2, 2, 8, 8), (1, 100, 100, 9, 3, 64, 24),
    ]  # fmt: skip
    bands = [(-1, -1, False), (7, 0, True), (1 << 40, 3, True)]
    for dtype, (b, t, s, h, g, d, e) in itertools.product(DTYPES, dense):
        q, k, v = (empty(shape, dtype) for shape in ((b, t, h, d), (b, s, g, d), (b, s, g, e)))
        out, grad = (empty((b, t, h, e), dtype) for _ in range(2))
        masks = [None, empty((b, 1, t, s), "bool"), empty((1, h, 1, s), dtype)]
        for mask, band in zip((*masks, None), (bands[0], *bands)):
            for lse in (empty((b, h, t), "float32"), None):
                yield from one_attention((q, k, v, mask, None, None, out, lse, grad), band, None)
    # As slices of one projection, heads first, and one element behind an aligned address.
    for dtype in DTYPES:
        wide = empty((2, 20, 4, 192), dtype)
        q, k, v = (wide.slice(3, at, at + 64) for at in (0, 64, 128))
        turned = empty((2, 4, 20, 64), dtype).permute(0, 2, 1, 3)
        odd = shifted((2, 20, 4, 64), dtype)
        lse, heads_last = empty((2, 4, 20), "float32"), empty((2, 20, 4), "float32")
        for three, stats in (((q, k, v), lse), ((turned,) * 3, heads_last.permute(0, 2, 1)),
                             ((odd,) * 3, lse)):  # fmt: skip
            more = (None, None, None, empty((2, 20, 4, 64), dtype), stats, three[0])
            yield from one_attention((*three, *more), bands[0], None)
    for dtype, (queries, keys) in itertools.product(
        DTYPES, [((5, 17, 0), (5, 40, 3)), ((1, 1), (600, 70)), ((), ()), ((0, 0), (3, 2))]
    ):
        cu = sequence_ends(*queries), sequence_ends(*keys)
        total, (t, s) = sum(queries), (max(each, default=0) for each in (queries, keys))
        q, k, v = (empty((rows, heads, 64), dtype)
                   for rows, heads in ((total, 4), (sum(keys), 2), (sum(keys), 2)))  # fmt: skip
        out, grad = (empty((total, 4, 64), dtype) for _ in range(2))
        for lse in (empty((4, total), "float32"), None):
            yield from one_attention((q, k, v, None, *cu, out, lse, grad), bands[1], (t, s))


def one_attention(
    tensors: tuple[Tensor | None, ...], band: tuple[int, int, bool], longest: tuple[int, int] | None
) -> Iterator[list[Launch]]:
    *forward, grad = tensors
    views: Any = [view(each) for each in forward]
    _native_dnn.attention_forward(*forward, 0.25, *band)
    yield attention.forward(*views, 0.25, attention.Band(*band), scratch, longest=longest)
    if forward[-1] is None:
        return
    dtype = views[0].dtype
    made = [empty(each.shape, dtype) for each in views[:3]]
    for wants in itertools.product((True, False), repeat=3):
        gradients = [each if wanted else None for each, wanted in zip(made, wants)]
        _native_dnn.attention_backward(*forward, grad, *gradients, 0.25, *band)
        if any(wants):
            yield attention.backward(*views, view(grad), *map(view, gradients), 0.25,
                                     attention.Band(*band), scratch, longest=longest)  # fmt: skip
        else:
            yield []


def losses() -> Iterator[list[Launch]]:
    """Interpreted: the entry reads the number of valid rows back."""
    sizes = [(20, 48, 96), (5, 47, 99), (2, 1100, 5)]
    pairs = [*zip(DTYPES, DTYPES), ("bfloat16", "float32")]
    for (rows, width, classes), (dtype, head_dtype) in itertools.product(sizes, pairs):
        hidden, head = empty((rows, width), dtype), empty((classes, width), head_dtype)
        bias = empty((classes,), head_dtype)
        shapes = ((rows, width), (classes, width), (classes,))
        results = [empty(shape, "float32") for shape in shapes]
        total, count = empty((), "float32"), empty((), "int64")
        for with_bias, chunk, valid, wants in (
            (False, 0, rows, (False, False, False)), (True, 6, rows, (True, True, True)),
            (False, 1, rows // 2, (True, True, False)), (True, 0, 0, (True, True, True)),
            (True, 0, 2, (False, False, True)),
        ):  # fmt: skip
            labels = np.where(np.arange(rows) < valid, 1, -100)
            target = Tensor.from_numpy(labels, copy=True)
            given = (hidden, head, bias if with_bias else None, target, total, count)
            gradients = [each if wanted else None for each, wanted in zip(results, wants)]
            _native_dnn.linear_cross_entropy(*given, *gradients, chunk, -100)
            views: Any = [view(each) for each in given]
            index, stats = scratch((rows,), "int64"), scratch((2,), "int64")
            yield [
                *loss.find_targets(views[3], classes, -100, index, stats),
                *loss.linear_cross_entropy(*views[:4], index, stats, *views[4:],
                                           *map(view, gradients), chunk, scratch, valid=valid),
            ]  # fmt: skip


FAMILIES = {
    "attention": attentions,
    "loss": losses,
    "normalization": normalizations,
    "activation": activations,
    "rotary": rotations,
    "softmax": softmaxes,
    "optim": optimisers,
}
_native_dnn = ruda_dnn._native


if __name__ == "__main__":
    found = differences(FAMILIES[sys.argv[1]]())
    print(f"{len(found)} differences", *found[:6], sep="\n")
    sys.exit(1 if found else 0)

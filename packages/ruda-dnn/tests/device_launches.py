"""What the entries launch on the cuda target beside what each launch.py says, for
test_device_launches.py: a process of its own, on the driver double in record-only mode, where every
specialisation is "compiled" to an empty kernel and noted.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import ruda_dnn
from ruda_dnn.activation import launch as activation
from ruda_dnn.normalization import launch as normalization
from ruda_dnn.optim import launch as optim
from ruda_dnn.rotary import launch as rotary
from ruda_dnn.softmax import launch as softmax
from ruda_runtime import Tensor, _native, empty
from ruda_runtime.kernel import defined_kernels, discover, resolve
from ruda_runtime.kernel.artifact import Artifact
from ruda_runtime.launch import Launch, Specialisation, View, contiguous_view, specialisations

DTYPES = ("float32", "float16", "bfloat16")
used: list[Specialisation] = []


def note(name: str, facts: list[tuple[Any, ...]], warps: int, stages: int) -> Any:
    """A plan of an empty kernel."""
    (kernel,) = (each for each in defined_kernels() if each.name == name)
    wanted = resolve.specialise(kernel, facts, warps, stages)
    used.append(wanted)
    passed = sum(kind != "constexpr" for _, kind in wanted.signature)
    parameters = ", ".join(f".param .u64 p{i}" for i in range(passed))
    text = f"// {len(used)}\n.version 8.0\n.target sm_90\n.address_size 64\n"
    text += f".visible .entry empty({parameters})\n"
    empty_kernel = Artifact(
        image=(text + "{\n ret;\n}\n").encode(), kind="ptx", entry="empty", architecture=90,
        num_warps=warps, shared_bytes=0, scratch_pointers=0, scratch_bytes=0, profile_bytes=0,
        compiler="none",
    )  # fmt: skip
    return resolve._loadable(kernel, wanted, empty_kernel)


def view(tensor: Tensor | None) -> View | None:
    if tensor is None:
        return None
    return View(tensor.data_ptr, tensor.dtype_name, tuple(tensor.shape), tuple(tensor.strides))


def scratch(shape: tuple[int, ...], dtype: str) -> View:
    return contiguous_view(0, dtype, shape)


def upload(table: Sequence[int]) -> View:
    return scratch((len(table),), "int64")


def shifted(shape: tuple[int, ...], dtype: str) -> Tensor:
    """One element behind an aligned address."""
    count = 1
    for size in shape:
        count *= size
    return empty((count + 1,), dtype).slice(0, 1, None).view(*shape)


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


FAMILIES = {
    "normalization": normalizations,
    "activation": activations,
    "rotary": rotations,
    "softmax": softmaxes,
    "optim": optimisers,
}
_native_dnn = ruda_dnn._native


def differences(family: str) -> Iterable[str]:
    wanted = specialisations(itertools.chain.from_iterable(FAMILIES[family]()))
    assert wanted, "the family launched nothing"
    ours, theirs = ({repr(each) for each in some} for some in (used, wanted))  # 1 is not True
    yield from (f"launch.py only: {each}" for each in theirs - ours)
    yield from (f"C++ only: {each}" for each in ours - theirs)


if __name__ == "__main__":
    discover()
    _native.set_plan_resolver(note)
    found = list(differences(sys.argv[1]))
    print(f"{len(used)} specialisations, {len(found)} differences")
    print("\n".join(found[:6]))
    sys.exit(1 if found else 0)

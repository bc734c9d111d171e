"""Device functions of the tests; found by their module's name, see conftest.py."""

import triton
import triton.language as tl

from ruda_runtime.kernel.language import dot


@triton.jit
def scale_add(x, y, out, count, alpha, BLOCK: tl.constexpr, SIGN: tl.constexpr):
    """out = SIGN * alpha * x + y, without y where it is absent."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    value = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) * alpha * SIGN
    if y is not None:
        value += tl.load(y + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + places, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def strided_copy(x, out, count, stride, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    inside = places < count
    value = tl.load(x + places.to(tl.int64) * stride, mask=inside, other=0.0)
    tl.store(out + places, value, mask=inside)


@triton.jit
def product(a, b, out, BLOCK: tl.constexpr):
    """out = a @ b, [BLOCK, BLOCK] each."""
    rows = tl.arange(0, BLOCK)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    place = rows * BLOCK + columns
    result = dot(tl.load(a + place), tl.load(b + place))
    result = dot(tl.load(a + place), tl.load(b + place), result) - result
    tl.store(out + place, result)


@triton.jit
def out_of_bounds(x, count):
    tl.store(x + count, 1.0)

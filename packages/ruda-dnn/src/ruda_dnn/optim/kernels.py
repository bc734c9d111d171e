"""AdamW and gradient statistics over many tensors in one launch. See README.md.

A table of int64 in device memory says where the tensors are: a row begins with the tensor's first
chunk and its number of elements, addresses follow. Rows are in the order of their first chunks.
ALIGNED promises that all addresses and numbers are multiples of 16.
"""

import triton
import triton.language as tl


@triton.jit
def _row_of(table, chunk, tensors, WIDTH: tl.constexpr):
    """The row of the last tensor that begins at or before this chunk."""
    low = 0
    high = tensors
    while high - low > 1:
        middle = (low + high) // 2
        after = tl.load(table + middle * WIDTH) > chunk
        low = tl.where(after, low, middle)
        high = tl.where(after, middle, high)
    return table + low * WIDTH


@triton.jit
def _pointer(address, KIND: tl.constexpr, ALIGNED: tl.constexpr):
    if KIND == "float32":
        result = address.to(tl.pointer_type(tl.float32))
    elif KIND == "float16":
        result = address.to(tl.pointer_type(tl.float16))
    else:
        result = address.to(tl.pointer_type(tl.bfloat16))
    if ALIGNED:
        result = tl.multiple_of(result, 16)
    return result


@triton.jit
def _count(row, ALIGNED: tl.constexpr):
    count = tl.load(row + 1)
    if ALIGNED:
        count = tl.multiple_of(count, 16)
    return count


@triton.jit
def _gradient_chunk(
    table, tensors, KIND: tl.constexpr, ALIGNED: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """The gradient of this program's chunk, its number of elements, and where the chunk begins."""
    chunk = tl.program_id(0)
    row = _row_of(table, chunk, tensors, 3)
    gradient = _pointer(tl.load(row + 2), KIND, ALIGNED)
    return gradient, _count(row, ALIGNED), (chunk - tl.load(row)) * CHUNK


@triton.jit
def adamw(
    table,  # [tensors, 7]: first chunk, count, parameter, gradient, master, first, second moment
    tensors,
    decay,  # 1 - learning_rate * weight_decay
    beta1,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    step_size,  # learning_rate / (1 - beta1^step)
    correction,  # sqrt(1 - beta2^step)
    epsilon,
    gradient_scale,
    PARAMETER: tl.constexpr,
    GRADIENT: tl.constexpr,
    MASTER: tl.constexpr,  # False: the parameter is float32 and its own master
    ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    chunk = tl.program_id(0)
    row = _row_of(table, chunk, tensors, 7)
    places = (chunk - tl.load(row)) * CHUNK + tl.arange(0, CHUNK)
    inside = places < _count(row, ALIGNED)
    parameter = _pointer(tl.load(row + 2), PARAMETER, ALIGNED)
    gradient = _pointer(tl.load(row + 3), GRADIENT, ALIGNED)
    firsts = _pointer(tl.load(row + 5), "float32", ALIGNED)
    seconds = _pointer(tl.load(row + 6), "float32", ALIGNED)
    if MASTER:
        master = _pointer(tl.load(row + 4), "float32", ALIGNED)
        value = tl.load(master + places, mask=inside, other=0.0)
    else:
        value = tl.load(parameter + places, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32) * gradient_scale
    first = tl.load(firsts + places, mask=inside, other=0.0)
    second = tl.load(seconds + places, mask=inside, other=0.0)
    value = value * decay
    # The two forms of a lerp: exact at both ends (beta1 = 0 keeps the gradient itself).
    near = first + one_minus_beta1 * (grad - first)
    far = grad - beta1 * (grad - first)
    first = tl.where(one_minus_beta1 < 0.5, near, far)
    second = second * beta2 + (one_minus_beta2 * grad) * grad
    denominator = tl.div_rn(tl.sqrt_rn(second), correction) + epsilon
    value = value - tl.div_rn(step_size * first, denominator)
    tl.store(firsts + places, first, mask=inside)
    tl.store(seconds + places, second, mask=inside)
    if MASTER:
        tl.store(master + places, value, mask=inside)
    tl.store(parameter + places, value.to(parameter.dtype.element_ty), mask=inside)


@triton.jit
def unscale(
    table,  # [tensors, 3]: first chunk, count, gradient
    tensors,
    scale,
    flags,  # int32 [chunks]: 1 where every stored value is finite
    KIND: tl.constexpr,
    WRITE: tl.constexpr,  # False: a scale of 1, memory is only looked at
    ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    gradient, count, begin = _gradient_chunk(table, tensors, KIND, ALIGNED, CHUNK)
    bad = tl.zeros([BLOCK], tl.int32)
    for start in range(0, CHUNK, BLOCK):
        places = begin + start + tl.arange(0, BLOCK)
        inside = places < count
        value = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
        if WRITE:
            stored = (value * scale).to(gradient.dtype.element_ty)
            tl.store(gradient + places, stored, mask=inside)
            value = stored.to(tl.float32)
        bad += tl.where(tl.abs(value) < float("inf"), 0, 1)
    tl.store(flags + tl.program_id(0), tl.where(tl.sum(bad) == 0, 1, 0))


@triton.jit
def square_sums(
    table,  # [tensors, 3]: first chunk, count, gradient
    tensors,
    scale,
    sums,  # float64 [chunks]
    KIND: tl.constexpr,
    ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sums of (value * scale)^2, the product in float32, the sum in float64."""
    gradient, count, begin = _gradient_chunk(table, tensors, KIND, ALIGNED, CHUNK)
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, CHUNK, BLOCK):
        places = begin + start + tl.arange(0, BLOCK)
        value = tl.load(gradient + places, mask=places < count, other=0.0).to(tl.float32) * scale
        wide = value.to(tl.float64)
        total += wide * wide
    tl.store(sums + tl.program_id(0), tl.sum(total))


@triton.jit
def all_flags(flags, chunks, finite, BLOCK: tl.constexpr):
    """finite[0] = 1 where every flag is 1; one program."""
    bad = tl.zeros([BLOCK], tl.int32)
    for start in range(0, chunks, BLOCK):
        places = start + tl.arange(0, BLOCK)
        flag = tl.load(flags + places, mask=places < chunks, other=1)
        bad += tl.where(flag == 1, 0, 1)
    tl.store(finite, tl.where(tl.sum(bad) == 0, 1, 0))


@triton.jit
def norm_of_sums(sums, chunks, norm, finite, BLOCK: tl.constexpr):
    """norm[0] = the root of the sum, in a fixed order; finite[0] = whether it is finite."""
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, chunks, BLOCK):
        places = start + tl.arange(0, BLOCK)
        total += tl.load(sums + places, mask=places < chunks, other=0.0)
    whole = tl.sum(total)
    tl.store(norm, tl.sqrt(whole))
    tl.store(finite, tl.where(whole < float("inf"), 1, 0))

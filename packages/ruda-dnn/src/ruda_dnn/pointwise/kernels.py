"""Pointwise operators of up to three tensors on the device. See README.md for their arithmetic.

An operand is a tensor, or a number by value where its pointer is None: 64 bits, those of an int64
or, in floating arithmetic, of a float64.
"""

import triton
import triton.language as tl

from ruda_dnn.pointwise.elementary import divide, trunc
from ruda_dnn.pointwise.operators import binary, more_operands, unary


@triton.jit
def _converted(value, TYPE: tl.constexpr):
    """The value in the dtype TYPE, as torch converts it; a bool is its byte."""
    if value.dtype.is_floating():
        whole = value.to(tl.int64)
    else:
        whole = value
    result = value
    if TYPE == "float32":
        result = value.to(tl.float32)
    if TYPE == "float64":
        result = value.to(tl.float64)
    if TYPE == "float16" and not value.dtype.is_fp16():
        result = value.to(tl.float32).to(tl.float16)
    if TYPE == "bfloat16" and not value.dtype.is_bf16():
        result = value.to(tl.float32).to(tl.bfloat16)
    if TYPE == "int8":
        result = whole.to(tl.int8)
    if TYPE == "int16":
        result = whole.to(tl.int16)
    if TYPE == "int32":
        result = whole.to(tl.int32)
    if TYPE == "int64":
        result = whole.to(tl.int64)
    if TYPE == "uint8":
        result = whole.to(tl.uint8)
    if TYPE == "bool":
        result = (value != 0).to(tl.uint8)
    return result


@triton.jit
def _rounded(value, TYPE: tl.constexpr):
    """The value in the dtype TYPE, as the type that arithmetic on it has."""
    narrow = _converted(value, TYPE)
    result = narrow
    if TYPE == "float16" or TYPE == "bfloat16":
        result = narrow.to(tl.float32)
    if not narrow.dtype.is_floating():
        result = narrow.to(tl.int64)
    return result


@triton.jit
def _number(places, bits, TYPE: tl.constexpr):
    """One number for every place: Triton's interpreter compares lone numbers wrongly."""
    result = bits
    if TYPE == "float64":
        result = bits.to(tl.float64, bitcast=True)
    if TYPE == "float32" or TYPE == "float16" or TYPE == "bfloat16":
        result = bits.to(tl.float64, bitcast=True).to(tl.float32)
    return tl.broadcast_to(result, places.shape)


@triton.jit
def _operand(pointer, places, inside, bits, TYPE: tl.constexpr):
    if pointer is None:
        result = _number(places, bits, TYPE)
    else:
        result = _rounded(tl.load(pointer + places, mask=inside, other=0), TYPE)
    return result


@triton.jit
def _apply(OP: tl.constexpr, OPERANDS: tl.constexpr, TYPE: tl.constexpr, a, b, c, d, e):
    if OPERANDS == 1:
        result = unary(OP, a)
    elif OP == "div_trunc" and a.dtype.is_floating():
        result = trunc(_rounded(divide(a, b), TYPE))  # torch truncates the rounded quotient
    elif OPERANDS == 2:
        result = binary(OP, a, b)
    else:
        result = more_operands(OP, a, b, c, d, e)
    return result


@triton.jit
def _store(out, places, inside, value, TYPE: tl.constexpr, OUT: tl.constexpr):
    """Rounded to the operator's dtype, then to that of the result, as torch does."""
    result = value
    if TYPE != OUT:
        result = _rounded(value, TYPE)
    tl.store(out + places, _converted(result, OUT), mask=inside)


@triton.jit
def flat(
    out,  # [count], of dtype OUT
    a,  # [count] or None
    b,  # [count] or None
    c,  # [count] or None
    a_bits,
    b_bits,
    c_bits,
    d_bits,
    e_bits,
    count,
    OP: tl.constexpr,
    OPERANDS: tl.constexpr,
    TYPE: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Tensors that are dense in the same order."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    x = _operand(a, places, inside, a_bits, TYPE)
    y = _operand(b, places, inside, b_bits, TYPE)
    if OP == "arange":
        result = x + places.to(x.dtype) * y
    else:
        z = _operand(c, places, inside, c_bits, TYPE)
        v, w = _number(places, d_bits, TYPE), _number(places, e_bits, TYPE)
        result = _apply(OP, OPERANDS, TYPE, x, y, z, v, w)
    _store(out, places, inside, result, TYPE, OUT)


@triton.jit
def strided(
    out,  # of dtype OUT
    a,  # or None
    b,  # or None
    c,  # or None
    a_bits,
    b_bits,
    c_bits,
    d_bits,
    e_bits,
    count,  # of elements: the product of the sizes, innermost first
    size0,
    size1,
    size2,
    size3,
    size4,
    out0,  # strides in elements
    out1,
    out2,
    out3,
    out4,
    out5,
    a0,
    a1,
    a2,
    a3,
    a4,
    a5,
    b0,
    b1,
    b2,
    b3,
    b4,
    b5,
    c0,
    c1,
    c2,
    c3,
    c4,
    c5,
    OP: tl.constexpr,
    OPERANDS: tl.constexpr,
    TYPE: tl.constexpr,
    OUT: tl.constexpr,
    RANK: tl.constexpr,  # 2, 4 or 6
    WIDE: tl.constexpr,  # count needs 64 bits
    BLOCK: tl.constexpr,
):
    """Tensors with any strides. Indices are split in 32 bits where they fit: division is slow."""
    INDEX: tl.constexpr = tl.int64 if WIDE else tl.int32
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < count
    left = tl.where(inside, element, 0).to(INDEX)
    step = (left % size0.to(INDEX)).to(tl.int64)
    left = left // size0.to(INDEX)
    at_out, at_a, at_b, at_c = step * out0, step * a0, step * b0, step * c0
    if RANK > 2:
        step = (left % size1.to(INDEX)).to(tl.int64)
        left = left // size1.to(INDEX)
        at_out, at_a = at_out + step * out1, at_a + step * a1
        at_b, at_c = at_b + step * b1, at_c + step * c1
        step = (left % size2.to(INDEX)).to(tl.int64)
        left = left // size2.to(INDEX)
        at_out, at_a = at_out + step * out2, at_a + step * a2
        at_b, at_c = at_b + step * b2, at_c + step * c2
    if RANK > 4:
        step = (left % size3.to(INDEX)).to(tl.int64)
        left = left // size3.to(INDEX)
        at_out, at_a = at_out + step * out3, at_a + step * a3
        at_b, at_c = at_b + step * b3, at_c + step * c3
        step = (left % size4.to(INDEX)).to(tl.int64)
        left = left // size4.to(INDEX)
        at_out, at_a = at_out + step * out4, at_a + step * a4
        at_b, at_c = at_b + step * b4, at_c + step * c4
    step = left.to(tl.int64)
    at_out, at_a = at_out + step * out5, at_a + step * a5
    at_b, at_c = at_b + step * b5, at_c + step * c5
    x = _operand(a, at_a, inside, a_bits, TYPE)
    y = _operand(b, at_b, inside, b_bits, TYPE)
    z = _operand(c, at_c, inside, c_bits, TYPE)
    v, w = _number(element, d_bits, TYPE), _number(element, e_bits, TYPE)
    result = _apply(OP, OPERANDS, TYPE, x, y, z, v, w)
    _store(out, at_out, inside, result, TYPE, OUT)

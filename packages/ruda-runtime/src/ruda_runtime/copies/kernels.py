"""The device kernel of `copies`."""

import triton
import triton.language as tl


@triton.jit
def gather(
    source, target, count, size_1, size_2, size_3, size_4, size_5,
    stride_0, stride_1, stride_2, stride_3, stride_4, stride_5,
    RANK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """target = source in row-major order; of six dimensions the last RANK may be more than 1.

    The size of the outermost dimension is not needed. Indices have 32 bits, whose division is
    several times as fast as that of 64; offsets have 64.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    index = place
    offset = (index % size_5).to(tl.int64) * stride_5
    index = index // size_5
    offset += (index % size_4).to(tl.int64) * stride_4
    index = index // size_4
    if RANK == 3:
        offset += index.to(tl.int64) * stride_3
    else:
        offset += (index % size_3).to(tl.int64) * stride_3
        index = index // size_3
        offset += (index % size_2).to(tl.int64) * stride_2
        index = index // size_2
        offset += (index % size_1).to(tl.int64) * stride_1
        index = index // size_1
        offset += index.to(tl.int64) * stride_0
    value = tl.load(source + offset, mask=inside, other=0)
    tl.store(target + place, value, mask=inside)

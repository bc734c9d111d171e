"""Packing a dense weight to NF4 and reading it back."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..errors import QuantizationError

_PACKABLE = (torch.float32, torch.float16, torch.bfloat16)


def nf4_codebook(device: torch.device | str = "cpu") -> torch.Tensor:
    """The 16 NF4 values, float32 [16], ascending from -1 to 1."""
    from ruda_blas import nf4

    return torch.tensor(nf4.CODEBOOK.tolist(), dtype=torch.float32, device=device)


def check_block_size(block_size: int, operator: str) -> None:
    """A block size is a positive even integer, so that no byte belongs to two blocks."""
    wrong_type = isinstance(block_size, bool) or not isinstance(block_size, int)
    if wrong_type or block_size <= 0 or block_size % 2:
        raise QuantizationError(
            f"[{operator}] block_size must be a positive even integer: got {block_size!r}"
        )


def packed_sizes(out_features: int, in_features: int, block_size: int) -> tuple[int, int]:
    """Bytes of packed codes and number of scales of a weight [out_features, in_features]."""
    count = out_features * in_features
    return -(-count // 2), -(-count // block_size)


def pack_nf4(
    weight: torch.Tensor, block_size: int = 64, chunk_blocks: int = 1024
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a weight to NF4: `(packed, scales)`.

    weight: [out, in], float32, float16 or bfloat16, on the CPU, not empty, finite. Any strides: the
        result is that of the contiguous copy.
    block_size: values that share one scale; positive and even. Blocks run over the flat row-major
        weight; the last one may be shorter, and the number of values may be odd.
    chunk_blocks: blocks quantised at a time, which bounds the working memory.

    packed: uint8 [ceil(out*in/2)], two codes a byte, the first value in the high nibble.
    scales: float32 [ceil(out*in/block_size)], the largest magnitude of each block.

    Raises QuantizationError for any other weight.
    """
    if not isinstance(weight, torch.Tensor):
        raise TypeError(f"[pack_nf4] weight must be a torch.Tensor: got {type(weight).__name__}")
    if weight.device.type != "cpu":
        raise QuantizationError(
            f"[pack_nf4] weight must be on the CPU: got {weight.device}; move it with .cpu()"
        )
    if weight.dtype not in _PACKABLE:
        wanted = ", ".join(str(dtype) for dtype in _PACKABLE)
        raise QuantizationError(
            f"[pack_nf4] weight has dtype {weight.dtype}, wanted one of {wanted}"
        )
    if weight.dim() != 2 or weight.numel() == 0:
        raise QuantizationError(
            f"[pack_nf4] weight must be a non-empty matrix [out, in]: got {list(weight.shape)}"
        )
    check_block_size(block_size, "pack_nf4")
    if not isinstance(chunk_blocks, int) or chunk_blocks <= 0:
        raise QuantizationError(
            f"[pack_nf4] chunk_blocks must be a positive integer: got {chunk_blocks!r}"
        )
    values = weight.detach().reshape(-1)  # a copy only where the strides ask for one
    step = chunk_blocks * block_size
    chunks = [values[start : start + step] for start in range(0, values.numel(), step)]
    bad = sum(chunk.numel() - int(torch.isfinite(chunk).sum()) for chunk in chunks)
    if bad:
        raise QuantizationError(
            f"[pack_nf4] weight has {bad} values that are NaN or infinite, of {values.numel()}"
        )
    from ruda_blas import nf4
    from ruda_runtime import from_dlpack

    out_features, in_features = weight.shape
    codes, scales = packed_sizes(out_features, in_features, block_size)
    result = torch.empty(codes, dtype=torch.uint8), torch.empty(scales, dtype=torch.float32)
    # a chunk is a whole number of blocks, and a block a whole number of bytes
    for index, chunk in enumerate(chunks):
        parts = nf4.quantize(from_dlpack(chunk[None]), block_size)
        for target, part, size in zip(result, parts, (step // 2, chunk_blocks)):
            found = torch.from_numpy(part.numpy())
            target[index * size : index * size + found.numel()] = found
    return result


def unpack_nf4(
    packed: torch.Tensor,
    scales: torch.Tensor,
    codebook: torch.Tensor,
    out_features: int,
    in_features: int,
    block_size: int,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The dense weight [out_features, in_features] in `dtype`, computed in float32.

    Plain torch operators, on the device of `packed`.
    """
    count = out_features * in_features
    # one row of two values for each byte: [256, 2]
    pairs = torch.stack((codebook.repeat_interleave(16), codebook.repeat(16)), dim=1)
    values = F.embedding(packed.to(torch.int32), pairs).reshape(-1)[:count]
    whole = count // block_size * block_size
    body = values[:whole].view(-1, block_size) * scales[: whole // block_size, None]
    if whole < count:
        body = torch.cat((body.view(-1), values[whole:] * scales[-1]))
    return body.view(out_features, in_features).to(dtype)

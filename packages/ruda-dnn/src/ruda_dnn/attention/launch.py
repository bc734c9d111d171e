"""Grids and variants of the attention kernels.

Everything that the entries accept is covered, up to a width of 256 of q, k and v (more raises
NotImplementedError) and lengths below 2^29. Tiles and splits follow from shapes and dtypes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ruda_runtime.launch import (
    Allocate,
    Definition,
    Launch,
    Specialisation,
    View,
    ceil_div,
    contiguous_view,
    next_power_of_two,
    specialisations,
)

_KERNELS = "ruda_dnn.attention.kernels"
_ANY = "*fp32|fp16|bf16"
_INPUTS = {"q": _ANY, "k": _ANY, "v": _ANY, "mask": "*?", "cu_q": "*i32?", "cu_k": "*i32?"}
_SIZES = {"width": "i32%16", "value_width": "i32%16"}
_BAND = {"scale": "fp32", "left": "i32", "right": "i32", "bottom_right": "i32", "blocks": "i32"}
_TILE = dict.fromkeys(("MASK", "BM", "BN", "BD", "BV"), "constexpr")
_MASK = {"mask_batch": "i64", "mask_head": "i64", "mask_row": "i64", "mask_key": "i64=1"}


def _strides(*names: str) -> dict[str, str]:
    return {f"{name}_{axis}": "i64%16" for name in names for axis in ("batch", "row", "head")}


_LSE = {"lse_batch": "i64", "lse_row": "i64", "lse_head": "i64"}

FORWARD = Definition(
    "attention.forward",
    f"{_KERNELS}:forward",
    {**_INPUTS, "out": _ANY, "lse": "*fp32?", "partial": "*fp32?", "stats": "*fp32?",
     "heads": "i32", "groups": "i32", "q_length": "i32", "k_length": "i32", "all_rows": "i64",
     **_SIZES, **_BAND, **_strides("q", "k", "v", "out"), **_LSE, **_MASK, **_TILE},
)  # fmt: skip
MERGE = Definition(
    "attention.merge",
    f"{_KERNELS}:merge",
    {"partial": "*fp32", "stats": "*fp32", "out": _ANY, "lse": "*fp32?", "heads": "i32",
     "q_length": "i64", "all_rows": "i64", "value_width": "i32%16", "splits": "i32",
     **_strides("out"), **_LSE, "BV": "constexpr"},
)  # fmt: skip
DELTA = Definition(
    "attention.grad_dot_out",
    f"{_KERNELS}:grad_dot_out",
    {"grad": _ANY, "out": _ANY, "delta": "*fp32", "heads": "i32", "q_length": "i64",
     "all_rows": "i64", "value_width": "i32%16", **_strides("grad", "out"), "ROWS": "constexpr",
     "BV": "constexpr"},
)  # fmt: skip
BACKWARD_KEYS = Definition(
    "attention.backward_keys",
    f"{_KERNELS}:backward_keys",
    {**_INPUTS, "lse": "*fp32", "grad": _ANY, "delta": "*fp32", "dk": f"{_ANY}?", "dv": f"{_ANY}?",
     "heads": "i32", "groups": "i32", "q_length": "i32", "k_length": "i32", **_SIZES, **_BAND,
     **_strides("q", "k", "v"), **_LSE, **_strides("grad", "dk", "dv"), **_MASK, **_TILE},
)  # fmt: skip
BACKWARD_QUERIES = Definition(
    "attention.backward_queries",
    f"{_KERNELS}:backward_queries",
    {**_INPUTS, "lse": "*fp32", "grad": _ANY, "delta": "*fp32", "dq": _ANY, "heads": "i32",
     "groups": "i32", "q_length": "i32", "k_length": "i32", **_SIZES, **_BAND,
     **_strides("q", "k", "v"), **_LSE, **_strides("grad", "dq"), **_MASK, **_TILE},
)  # fmt: skip

NO_END = 1 << 29
"""A window without an end."""
WIDEST = 256


@dataclass(frozen=True)
class Tile:
    """Rows and keys of a block, and what computes it."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def forward_tile(widest: int, half: bool, rows: int) -> Tile:
    """``widest`` is the larger of the widths, ``rows`` those of a sequence and group."""
    if not half:
        side = 32 if widest <= 128 else 16
        return Tile(16 if rows <= 16 else side, side, 4, 1)
    if widest <= 128:
        return Tile(16 if rows <= 16 else 64, 64, 4, 2)
    return Tile(16 if rows <= 16 else 64, 32, 4, 1)


def backward_tile(widest: int, half: bool) -> Tile:
    if not half:
        return Tile(32, 32, 4, 1) if widest <= 64 else Tile(16, 16, 4, 1)
    if widest <= 64:
        return Tile(64, 64, 4, 1)
    # The shared memory of sm_75, 64 KiB, does not hold 64 keys of 128 features.
    return Tile(32, 32, 4, 1) if widest <= 128 else Tile(16, 16, 4, 1)


CANDIDATES = {
    "forward": (Tile(128, 64, 8, 2), Tile(128, 64, 4, 2), Tile(128, 128, 8, 2),
                Tile(64, 32, 4, 3), Tile(64, 128, 4, 2)),
    "backward": (Tile(64, 64, 8, 2), Tile(32, 64, 4, 1), Tile(32, 64, 4, 2), Tile(64, 128, 8, 1),
                 Tile(128, 64, 8, 1)),
}  # fmt: skip
"""Other tiles worth a try for half types; some need more shared memory than small GPUs have."""


def choose_splits(pairs: int, blocks: int, keys: int) -> int:
    """Splits of the keys where a few rows leave a GPU idle: each at least 256 keys."""
    if blocks > 1:
        return 1
    return max(1, min(ceil_div(128, pairs), keys // 256, 32))


@dataclass(frozen=True)
class Band:
    """Which keys a query sees: as in the arguments of the entry."""

    left: int = -1
    right: int = -1
    bottom_right: bool = True

    def values(self, scale: float) -> dict[str, Any]:
        return {
            "scale": scale,
            "left": NO_END if self.left < 0 else min(self.left, NO_END),
            "right": NO_END if self.right < 0 else min(self.right, NO_END),
            "bottom_right": int(self.bottom_right),
        }


class _Problem:
    """Sizes of dense [B, T, H, D] or packed [total, H, D] tensors."""

    def __init__(
        self, q: View, k: View, v: View, cu_q: View | None, longest: tuple[int, int] | None
    ) -> None:
        self.packed = cu_q is not None
        self.width, self.value_width = q.shape[-1], v.shape[-1]
        self.widest = max(self.width, self.value_width)
        if self.widest > WIDEST:
            raise NotImplementedError(
                f"[attention] q, v: got widths {self.width} and {self.value_width}, wanted at most "
                f"{WIDEST} on cuda"
            )
        self.heads, self.groups = q.shape[-2], k.shape[-2]
        self.half = q.dtype != "float32"
        if cu_q is None:
            self.sequences, self.queries, self.keys = q.shape[0], q.shape[1], k.shape[1]
            self.all_rows = q.shape[0] * q.shape[1] * self.heads
            self.merged_length = self.queries
        else:
            assert longest is not None
            self.sequences = cu_q.shape[0] - 1
            self.queries, self.keys = longest
            self.all_rows = q.shape[0] * self.heads
            self.merged_length = max(q.shape[0], 1)
        self.pairs = self.sequences * self.groups
        self.rows = self.queries * (self.heads // self.groups)

    def sizes(self) -> dict[str, Any]:
        return {
            "heads": self.heads,
            "groups": self.groups,
            "q_length": self.queries,
            "k_length": self.keys,
            "width": self.width,
            "value_width": self.value_width,
        }

    def blocks(self) -> dict[str, int]:
        return {
            "BD": max(16, next_power_of_two(self.width)),
            "BV": max(16, next_power_of_two(self.value_width)),
        }

    def strides(self, **views: View | None) -> dict[str, int]:
        """Strides along batch, row and head; a packed tensor has no batch."""
        result: dict[str, int] = {}
        for name, view in views.items():
            steps = (0, 0, 0) if view is None else view.strides[:-1]
            steps = (0, *steps) if len(steps) == 2 else steps
            for axis, step in zip(("batch", "row", "head"), steps):
                result[f"{name}_{axis}"] = step
        return result

    def lse_strides(self, lse: View | None) -> dict[str, int]:
        if lse is None:
            return {"lse_batch": 0, "lse_row": 0, "lse_head": 0}
        *batch, head, row = lse.strides
        return {"lse_batch": batch[0] if batch else 0, "lse_row": row, "lse_head": head}


def _mask(mask: View | None) -> dict[str, Any]:
    if mask is None:
        return {"mask": None, "MASK": 0, "mask_batch": 0, "mask_head": 0, "mask_row": 0,
                "mask_key": 1}  # fmt: skip
    lead = [0 if size == 1 else stride for size, stride in zip(mask.shape[:3], mask.strides)]
    return {"mask": mask, "MASK": 1 if mask.dtype == "bool" else 2, "mask_batch": lead[0],
            "mask_head": lead[1], "mask_row": lead[2],
            "mask_key": 1 if mask.shape[3] == 1 else mask.strides[3]}  # fmt: skip


def forward(
    q: View, k: View, v: View, mask: View | None, cu_q: View | None, cu_k: View | None, out: View,
    lse: View | None, scale: float, band: Band, scratch: Allocate, *,
    longest: tuple[int, int] | None = None, tile: Tile | None = None, splits: int | None = None,
) -> list[Launch]:  # fmt: skip
    """The launches of "attention.forward". Packed sequences need ``longest``: the largest numbers
    of queries and keys of a sequence (any upper bounds do)."""
    p = _Problem(q, k, v, cu_q, longest)
    if p.all_rows == 0:
        return []
    tile = tile or forward_tile(p.widest, p.half, p.rows)
    blocks = ceil_div(p.rows, tile.rows)
    splits = splits or choose_splits(p.pairs, blocks, p.keys)
    partial = stats = None
    if splits > 1:
        partial = scratch((splits, p.all_rows, p.value_width), "float32")
        stats = scratch((splits, p.all_rows, 2), "float32")
    outputs = {**p.strides(out=out), **p.lse_strides(lse)}
    launches = [
        FORWARD((blocks * p.pairs, splits), q=q, k=k, v=v, cu_q=cu_q, cu_k=cu_k, out=out, lse=lse,
                partial=partial, stats=stats, all_rows=p.all_rows, blocks=blocks,
                BM=tile.rows, BN=tile.keys, num_warps=tile.num_warps, num_stages=tile.num_stages,
                **p.sizes(), **band.values(scale), **p.strides(q=q, k=k, v=v), **outputs,
                **_mask(mask), **p.blocks())
    ]  # fmt: skip
    if partial is not None:
        launches.append(
            MERGE((p.all_rows,), partial=partial, stats=stats, out=out, lse=lse, heads=p.heads,
                  q_length=p.merged_length, all_rows=p.all_rows, value_width=p.value_width,
                  splits=splits, BV=p.blocks()["BV"], num_warps=1, **outputs)
        )  # fmt: skip
    return launches


def backward(
    q: View, k: View, v: View, mask: View | None, cu_q: View | None, cu_k: View | None, out: View,
    lse: View, grad: View, dq: View | None, dk: View | None, dv: View | None, scale: float,
    band: Band, scratch: Allocate, *, longest: tuple[int, int] | None = None,
    tile: Tile | None = None,
) -> list[Launch]:  # fmt: skip
    """The launches of "attention.backward"."""
    p = _Problem(q, k, v, cu_q, longest)
    tile = tile or backward_tile(p.widest, p.half)
    delta = scratch((max(p.all_rows, 1),), "float32")
    common: dict[str, Any] = {
        "q": q,
        "k": k,
        "v": v,
        "cu_q": cu_q,
        "cu_k": cu_k,
        "lse": lse,
        "grad": grad,
        "delta": delta,
        "BM": tile.rows,
        "BN": tile.keys,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        **p.sizes(),
        **band.values(scale),
        **p.strides(q=q, k=k, v=v, grad=grad),
        **p.lse_strides(lse),
        **_mask(mask),
        **p.blocks(),
    }
    launches = []
    if p.all_rows > 0 and not (dq is None and dk is None):
        launches.append(
            DELTA((ceil_div(p.all_rows, 16),), grad=grad, out=out, delta=delta, heads=p.heads,
                  q_length=p.merged_length, all_rows=p.all_rows, value_width=p.value_width,
                  ROWS=16, BV=p.blocks()["BV"], **p.strides(grad=grad, out=out))
        )  # fmt: skip
    if p.keys * p.pairs > 0 and not (dk is None and dv is None):
        blocks = ceil_div(p.keys, tile.keys)
        launches.append(BACKWARD_KEYS((blocks * p.pairs,), dk=dk, dv=dv, blocks=blocks,
                                      **p.strides(dk=dk, dv=dv), **common))  # fmt: skip
    if p.all_rows > 0 and dq is not None:
        blocks = ceil_div(p.rows, tile.rows)
        launches.append(BACKWARD_QUERIES((blocks * p.pairs,), dq=dq, blocks=blocks,
                                         **p.strides(dq=dq), **common))  # fmt: skip
    return launches


def bundle() -> list[Specialisation]:
    """What a bundle must contain: heads of 64 and 128 features (and what is padded to them),
    without a mask, with a bool mask, with an addend, packed; long and decoding."""

    def dense(dtype: str, *shape: int) -> View:
        return contiguous_view(0, dtype, shape)

    def scratch(shape: tuple[int, ...], dtype: str) -> View:
        return contiguous_view(0, dtype, shape)

    launches: list[Launch] = []
    band = Band(-1, 0)
    for dtype in ("float32", "float16", "bfloat16"):
        for width in (64, 128):
            for kind in ("none", "bool", "addend", "packed"):
                for length in (1, 256):
                    keys = 4096 if length == 1 else length
                    q = dense(dtype, 1, length, 4, width)
                    k = dense(dtype, 1, keys, 2, width)
                    lse = dense("float32", 1, 4, length)
                    cu = longest = mask = None
                    if kind == "packed":
                        q, k = (view._replace(shape=view.shape[1:], strides=view.strides[1:])
                                for view in (q, k))  # fmt: skip
                        lse, cu, longest = (
                            dense("float32", 4, length),
                            dense("int32", 2),
                            (length, keys),
                        )
                    elif kind != "none":
                        mask = dense("bool" if kind == "bool" else dtype, 1, 1, length, keys)
                    inputs = (q, k, k, mask, cu, cu, q, lse)
                    launches += forward(*inputs, 1.0, band, scratch, longest=longest)
                    if length > 1:
                        launches += backward(*inputs, q, q, k, k, 1.0, band, scratch,
                                             longest=longest)  # fmt: skip
    return specialisations(launches)

"""Grids and variants of the indexing kernels. ruda-torch launches them by these names.

What is only moved is moved as bits: kernels see an integer or half of the same width.
"""

from __future__ import annotations

from ruda_runtime.launch import (
    Allocate,
    Definition,
    Launch,
    Specialisation,
    View,
    ceil_div,
    contiguous_view,
    specialisations,
)

_KERNELS = "ruda_dnn.indexing.kernels"
_BITS = "*u8|fp16|i32|i64"
_INDEX = "*i32|i64"
_ROWS = {"rows": "i64", "items": "i64", "inner": "i64%16=1"}
_RANGE = {"lowest": "i64", "size": "i64"}
_TILE = {"ROWS": "constexpr", "INNER": "constexpr"}
_BLOCK = {"BLOCK": "constexpr"}
_ELEMENTS = {"count": "i64", "items": "i64", "inner": "i64=1"}

TAKE = Definition(
    "indexing.take",
    f"{_KERNELS}:take",
    {"source": _BITS, "index": _INDEX, "out": _BITS, "flag": "*i32?", **_ROWS, **_RANGE, **_TILE},
)
PUT = Definition(
    "indexing.put",
    f"{_KERNELS}:put",
    {"target": _BITS, "index": _INDEX, "source": _BITS, "flag": "*i32?", **_ROWS, **_RANGE,
     "row_step": "i64", "column_step": "i64=1", **_TILE},
)  # fmt: skip
CHAIN = Definition(
    "indexing.chain",
    f"{_KERNELS}:chain",
    {"index": _INDEX, "following": "*i32", "heads": "*i32", "flag": "*i32?", "items": "i64",
     **_RANGE, "skipped": "i64", "ROWS": "constexpr", **_BLOCK},
)  # fmt: skip
ACCUMULATE = Definition(
    "indexing.accumulate",
    f"{_KERNELS}:accumulate",
    {"target": "*", "index": _INDEX, "following": "*i32", "heads": "*i32", "source": "*", **_ROWS,
     "size": "i64", "scale": "fp64", **_TILE},
)  # fmt: skip
GATHER = Definition(
    "indexing.gather",
    f"{_KERNELS}:gather",
    {"source": _BITS, "index": _INDEX, "out": _BITS, "flag": "*i32?", **_ELEMENTS, **_RANGE,
     **_BLOCK},
)  # fmt: skip
SCATTER = Definition(
    "indexing.scatter",
    f"{_KERNELS}:scatter",
    {"target": _BITS, "index": _INDEX, "source": _BITS, "flag": "*i32?", **_ELEMENTS, **_RANGE,
     "step": "i64", **_BLOCK},
)  # fmt: skip
SCATTER_ADD = Definition(
    "indexing.scatter_add",
    f"{_KERNELS}:scatter_add",
    {"target": "*fp32|fp64|i32|i64", "index": _INDEX, "source": "*fp32|fp64|i32|i64",
     "flag": "*i32?", "lanes": "i64", "items": "i64", "inner": "i64=1", **_RANGE,
     "LANES": "constexpr"},
)  # fmt: skip
FLATTEN = Definition(
    "indexing.flatten",
    f"{_KERNELS}:flatten",
    {"index": _INDEX, "out": "*i64", "flag": "*i32?", "count": "i64", **_RANGE, "step": "i64",
     "FIRST": "constexpr", **_BLOCK},
)  # fmt: skip
COUNT_BLOCKS = Definition(
    "indexing.count_blocks",
    f"{_KERNELS}:count_blocks",
    {"source": "*", "counts": "*i64", "count": "i64", **_BLOCK},
)
POSITIONS = Definition(
    "indexing.positions",
    f"{_KERNELS}:positions",
    {"source": "*", "ends": "*i64", "out": "*i64", "count": "i64", **_BLOCK},
)
COORDINATE = Definition(
    "indexing.coordinate",
    f"{_KERNELS}:coordinate",
    {"places": "*i64", "out": "*i64", "count": "i64", "step": "i64", "size": "i64",
     "divisor": "i64", **_BLOCK},
)  # fmt: skip
TRIANGLE = Definition(
    "indexing.triangle",
    f"{_KERNELS}:triangle",
    {"source": _BITS, "out": _BITS, "count": "i64", "rows": "i64", "columns": "i64",
     "diagonal": "i64", "UPPER": "constexpr", **_BLOCK},
)  # fmt: skip
SORT = Definition(
    "indexing.sort",
    "ruda_dnn.indexing.sort_kernels:sort",
    {"source": "*", "values": "*", "indices": "*i64", "count": "i64", "chunk": "i64",
     "chunks": "i32", "keep": "i64", "programs": "i32", "LARGEST": "constexpr",
     "ROWS": "constexpr", **_BLOCK},
)  # fmt: skip
MERGE = Definition(
    "indexing.merge",
    "ruda_dnn.indexing.sort_kernels:merge",
    {"sorted_values": "*", "places": "*i64", "values": "*", "indices": "*i64", "count": "i64",
     "chunk": "i64", "chunks": "i32", "length": "i64", "keep": "i64", "programs": "i32",
     "steps": "i32", "LARGEST": "constexpr", "ROWS": "constexpr"},
)  # fmt: skip

BLOCK = 1024
LANES = 128
CHAIN_TILE = (32, 128)
SORT_TILE = (32, 128)
WHOLE_SORT = 4096
"""Longest row that is sorted as a whole: the work grows with the square of its length."""
SORT_CHUNK = 2048
MERGE_ROWS = 256
MOST_SORTED = 1 << 20
"""Longest row that is sorted: each of its values is looked up in each of its chunks."""
_BIT_TYPES = {1: "uint8", 2: "float16", 4: "int32", 8: "int64"}
_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}


def bits(view: View) -> View:
    """The same memory as a type that is only moved."""
    return view._replace(dtype=_BIT_TYPES[_BYTES.get(view.dtype, 1)])


def tile(inner: int) -> tuple[int, int]:
    """Rows, and elements of a row."""
    for columns in (1, 16, 256):
        if inner <= columns:
            return 1024 // columns, columns
    return 2, 512


def _rows(index: View, shape: tuple[int, int, int]) -> dict[str, int]:
    outer, _, inner = shape
    return {"rows": outer * index.size, "items": index.size, "inner": inner}


def _grid(rows: int, inner: int) -> tuple[int, int]:
    height, width = tile(inner)
    return ceil_div(rows, height), ceil_div(inner, width)


def _tile(inner: int) -> dict[str, int]:
    return dict(zip(("ROWS", "INNER"), tile(inner), strict=True))


def _lowest(size: int, wrap: bool) -> dict[str, int]:
    return {"lowest": -size if wrap else 0, "size": size}


def take(
    source: View, index: View, out: View, shape: tuple[int, int, int], *, wrap: bool = False,
    flag: View | None = None,
) -> list[Launch]:  # fmt: skip
    """out[o, i] = source[o, index[i]], of a source of shape [outer, size, inner]."""
    rows = _rows(index, shape)
    return [TAKE(_grid(rows["rows"], shape[2]), source=bits(source), index=index, out=bits(out),
                 flag=flag, **rows, **_lowest(shape[1], wrap), **_tile(shape[2]))]  # fmt: skip


def put(
    target: View, index: View, source: View, shape: tuple[int, int, int], *, wrap: bool = False,
    flag: View | None = None,
) -> list[Launch]:  # fmt: skip
    """target[o, index[i]] = source[o, i], or the one value of source."""
    rows = _rows(index, shape)
    one = source.size == 1
    return [PUT(_grid(rows["rows"], shape[2]), target=bits(target), index=index,
                source=bits(source), flag=flag, **rows, **_lowest(shape[1], wrap),
                row_step=0 if one else shape[2], column_step=0 if one else 1,
                **_tile(shape[2]))]  # fmt: skip


def accumulate(
    target: View, index: View, source: View, shape: tuple[int, int, int], *, wrap: bool = False,
    scale: float = 1.0, skipped: int = -1, flag: View | None = None, scratch: Allocate,
) -> list[Launch]:  # fmt: skip
    """target[o, index[i]] += scale * source[o, i], in the order of i."""
    rows = _rows(index, shape)
    following, heads = scratch((index.size,), "int32"), scratch((index.size,), "int32")
    height, block = CHAIN_TILE
    return [
        CHAIN((ceil_div(index.size, height),), index=index, following=following, heads=heads,
              flag=flag, items=index.size, **_lowest(shape[1], wrap),
              skipped=skipped, ROWS=height, BLOCK=block),
        ACCUMULATE(_grid(rows["rows"], shape[2]), target=target, index=index, following=following,
                   heads=heads, source=source, **rows, size=shape[1], scale=scale,
                   **_tile(shape[2])),
    ]  # fmt: skip


def _elements(count: int, items: int, inner: int) -> dict[str, int]:
    return {"count": count, "items": items, "inner": inner, "BLOCK": BLOCK}


def gather(
    source: View, index: View, out: View, shape: tuple[int, int, int], flag: View | None = None
) -> list[Launch]:
    """out[o, i, n] = source[o, index[o, i, n], n]."""
    items = index.size // (shape[0] * shape[2])
    return [GATHER((ceil_div(index.size, BLOCK),), source=bits(source), index=index,
                   out=bits(out), flag=flag, **_lowest(shape[1], False),
                   **_elements(index.size, items, shape[2]))]  # fmt: skip


def scatter(
    target: View, index: View, source: View, shape: tuple[int, int, int], flag: View | None = None
) -> list[Launch]:
    """target[o, index[o, i, n], n] = source[o, i, n], or the one value of source."""
    items = index.size // (shape[0] * shape[2])
    return [SCATTER((ceil_div(index.size, BLOCK),), target=bits(target), index=index,
                    source=bits(source), flag=flag, **_lowest(shape[1], False),
                    step=0 if source.size == 1 else 1,
                    **_elements(index.size, items, shape[2]))]  # fmt: skip


def scatter_add(
    target: View, index: View, source: View, shape: tuple[int, int, int], flag: View | None = None
) -> list[Launch]:
    """target[o, index[o, i, n], n] += source[o, i, n], in the order of i."""
    lanes = shape[0] * shape[2]
    return [SCATTER_ADD((ceil_div(lanes, LANES),), target=target, index=index, source=source,
                        flag=flag, lanes=lanes, items=index.size // lanes, inner=shape[2],
                        **_lowest(shape[1], False), LANES=LANES)]  # fmt: skip


def flatten(
    index: View, out: View, size: int, step: int, *, first: bool, flag: View | None = None
) -> list[Launch]:
    """out[i] += step * index[i], for one dimension after the other."""
    return [FLATTEN((ceil_div(index.size, BLOCK),), index=index, out=out, flag=flag,
                    count=index.size, **_lowest(size, True), step=step, FIRST=first,
                    BLOCK=BLOCK)]  # fmt: skip


def count_blocks(source: View, counts: View) -> list[Launch]:
    """Values that are not 0 in every block; their running sums are the `ends` of `positions`."""
    return [COUNT_BLOCKS((ceil_div(source.size, BLOCK),), source=source, counts=counts,
                         count=source.size, BLOCK=BLOCK)]  # fmt: skip


def positions(source: View, ends: View, out: View) -> list[Launch]:
    """Where the values that are not 0 are."""
    return [POSITIONS((ceil_div(source.size, BLOCK),), source=source, ends=ends, out=out,
                      count=source.size, BLOCK=BLOCK)]  # fmt: skip


def coordinate(places: View, out: View, step: int, size: int, divisor: int) -> list[Launch]:
    """out[i * step] = places[i] / divisor % size."""
    return [COORDINATE((ceil_div(places.size, BLOCK),), places=places, out=out, count=places.size,
                       step=step, size=size, divisor=divisor, BLOCK=BLOCK)]  # fmt: skip


def triangle(source: View, out: View, diagonal: int, upper: bool) -> list[Launch]:
    """Zeros on the other side of a diagonal."""
    rows, columns = source.shape[-2:]
    return [TRIANGLE((ceil_div(source.size, BLOCK),), source=bits(source), out=bits(out),
                     count=source.size, rows=rows, columns=columns, diagonal=diagonal,
                     UPPER=upper, BLOCK=BLOCK)]  # fmt: skip


def sort(
    source: View, values: View, indices: View, keep: int, largest: bool, scratch: Allocate
) -> list[Launch]:
    """The first `keep` values of every row in order, and where they were."""
    count = source.shape[-1]
    if count > MOST_SORTED:
        raise NotImplementedError(
            f"[sort] got rows of {count} values, wanted at most {MOST_SORTED} on cuda"
        )
    rows = source.size // count
    chunk = count if count <= WHOLE_SORT else SORT_CHUNK
    chunks, length = ceil_div(count, chunk), min(keep, chunk)
    height, block = SORT_TILE
    programs = ceil_div(chunk, height)
    some, places = values, indices
    if chunks > 1:
        some = scratch((rows, chunks, length), source.dtype)
        places = scratch((rows, chunks, length), "int64")
    launches = [
        SORT((rows * chunks * programs,), source=source, values=some, indices=places, count=count,
             chunk=chunk, chunks=chunks, keep=length, programs=programs, LARGEST=largest,
             ROWS=height, BLOCK=block)
    ]  # fmt: skip
    if chunks > 1:
        programs = ceil_div(chunks * length, MERGE_ROWS)
        launches.append(
            MERGE((rows * programs,), sorted_values=some, places=places, values=values,
                  indices=indices, count=count, chunk=chunk, chunks=chunks, length=length,
                  keep=keep, programs=programs, steps=length.bit_length(), LARGEST=largest,
                  ROWS=MERGE_ROWS)
        )  # fmt: skip
    return launches


def bundle() -> list[Specialisation]:
    """What a bundle must contain: what training and generation of language models use."""

    def some(dtype: str, *shape: int) -> View:
        return contiguous_view(0, dtype, shape or (64,))

    scratch = contiguous_view
    longs, flags = some("int64"), some("int32")
    launches: list[Launch] = []
    for flag in (None, flags):
        for dtype in ("float32", "float16", "int64", "uint8"):
            for inner in (1, 16, 64, 256, 4096):
                shape = (1, 64, inner)
                launches += take(some(dtype), longs, some(dtype), shape, flag=flag)
                if inner in (1, 4096):
                    launches += put(some(dtype), longs, some(dtype), shape, flag=flag)
            launches += put(some(dtype), longs, some(dtype, 1), (1, 64, 1), flag=flag)
            for inner in (1, 64):
                shape = (1, 64, inner)
                launches += gather(some(dtype), longs, some(dtype), shape, flag)
                launches += scatter(some(dtype), longs, some(dtype), shape, flag)
        for inner in (1, 64):
            launches += scatter_add(some("float32"), longs, some("float32"), (1, 64, inner), flag)
        for first in (True, False):
            launches += flatten(longs, longs, 64, 1, first=first, flag=flag)
        for dtype in ("float32", "float16", "bfloat16"):
            for inner in (64, 4096):
                launches += accumulate(
                    some(dtype), longs, some(dtype), (1, 64, inner), flag=flag,
                    scratch=lambda shape, kind: scratch(0, kind, shape),
                )  # fmt: skip
    for dtype in ("bool", "int64"):
        launches += count_blocks(some(dtype), longs) + positions(some(dtype), longs, longs)
    launches += coordinate(longs, longs, 1, 64, 1)
    for dtype in ("float32", "float16", "bfloat16"):
        for largest in (True, False):
            launches += sort(
                some(dtype, 4, 8192), some(dtype), longs, 50, largest,
                lambda shape, kind: scratch(0, kind, shape),
            )  # fmt: skip
    for dtype in ("float32", "float16", "uint8"):
        for upper in (True, False):
            launches += triangle(some(dtype, 8, 8), some(dtype, 8, 8), 1, upper)
    return specialisations(launches)

"""Products as data: what is multiplied, and how it lies in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ruda_runtime.conformance import LAYOUTS, arrange, numpy_dtype

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Case:
    """Shapes, layouts (see `ruda_runtime.conformance.arrange`) and the epilogue of one product."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    a_layout: str = "rows"
    b_layout: str = "rows"
    out_layout: str = "rows"
    alpha: float = 1.0
    beta: float = 0.0
    bias: bool = False

    @property
    def name(self) -> str:
        shapes = "x".join(map(str, self.a)) + "@" + "x".join(map(str, self.b))
        layouts = f"{self.a_layout}-{self.b_layout}-{self.out_layout}"
        extra = f"-a{self.alpha}b{self.beta}" if (self.alpha, self.beta) != (1.0, 0.0) else ""
        return f"{shapes}-{layouts}{extra}{'-bias' if self.bias else ''}"


CASES = [
    # Shapes: one element, vectors, odd sizes, edges of tiles and slices, long reductions.
    Case((1, 1), (1, 1)),
    Case((1, 7), (7, 1)),
    Case((3, 1), (1, 5)),
    Case((2, 3), (3, 4)),
    Case((17, 33), (33, 65)),
    Case((255, 64), (64, 257)),
    Case((130, 515), (515, 67)),
    Case((5, 4097), (4097, 3)),
    Case((1, 576), (576, 1536), b_layout="cols"),
    Case((4, 1537), (1537, 70), b_layout="cols"),
    Case((5, 1537), (1537, 70), b_layout="cols"),
    Case((300, 576), (576, 192), b_layout="cols", bias=True),
    # Up to four rows or columns: edges of the kernels, parts of k and of the columns, batches.
    *(
        Case((rows, size), (size, size), b_layout=layout)
        for size, rows in ((5, 1), (7, 2), (17, 3), (63, 4), (64, 1), (65, 2))
        for layout in ("rows", "cols")
    ),
    *(
        Case((size, size), (size, n), a_layout=layout)
        for size, n in ((5, 1), (17, 3), (64, 4), (65, 2))
        for layout in ("rows", "cols")
    ),
    Case((1, 700), (700, 300), bias=True),
    Case((3, 515), (515, 1400), alpha=-0.5, beta=0.25, bias=True),
    Case((2, 9), (9, 5000), out_layout="strided"),
    Case((4, 301), (301, 130), a_layout="cols", out_layout="cols"),
    Case((2, 40), (40, 70), b_layout="sliced"),
    Case((3, 1, 100), (3, 100, 70)),
    Case((2, 3, 2, 40), (3, 40, 900)),
    # Panels: edges of tiles of 6 by 16 in every layout of both operands.
    *(
        Case((size, size), (size, size), a_layout=left, b_layout=right, bias=size == 17)
        for size in (5, 7, 17, 63, 64, 65)
        for left, right in (
            ("rows", "rows"),
            ("cols", "rows"),
            ("rows", "cols"),
            ("strided", "cols"),
        )
    ),
    Case((7, 65, 33), (7, 33, 17), b_layout="cols"),
    Case((2, 200, 129), (2, 129, 200), a_layout="cols"),
    # Every layout of every operand.
    *(Case((19, 21), (21, 23), a_layout=layout) for layout in LAYOUTS[1:]),
    *(Case((19, 21), (21, 23), b_layout=layout) for layout in LAYOUTS[1:]),
    *(Case((19, 21), (21, 23), out_layout=layout) for layout in LAYOUTS[1:-1]),
    *(Case((2, 37), (37, 70), b_layout="cols", a_layout=layout) for layout in LAYOUTS[1:]),
    Case((19, 21), (21, 23), "cols", "cols", "cols", bias=True),
    Case((70, 45), (45, 600), "strided", "reversed", "strided", 0.5, 2.0, True),
    # Epilogues.
    *(
        Case((19, 40), (40, 23), b_layout=layout, out_layout=out, alpha=alpha, beta=beta, bias=bias)
        for layout in ("rows", "cols")
        for out in ("rows", "cols")
        for alpha, beta, bias in ((2.0, 0.0, True), (1.0, 1.0, False), (-0.5, 0.25, True))
    ),
    Case((3, 40), (40, 23), b_layout="cols", alpha=-0.5, beta=0.25, bias=True),
    Case((9, 4), (4, 5), alpha=0.0, beta=1.0, bias=True),
    Case((9, 4), (4, 5), alpha=0.0),
    # Batches: plain, broadcast both ways, an inner dimension of 1, rows merged into one product.
    Case((3, 5, 7), (3, 7, 4)),
    Case((3, 5, 7), (7, 4), bias=True),
    Case((2, 3, 5, 7), (7, 4), a_layout="sliced"),
    Case((5, 7), (3, 7, 4)),
    Case((2, 1, 5, 7), (3, 7, 4)),
    Case((1, 3, 5, 7), (4, 1, 7, 2), b_layout="cols"),
    Case((6, 1, 33), (6, 33, 9), b_layout="cols"),
    Case((2, 3, 2, 1, 4, 3), (3, 1, 3, 3, 5), beta=1.0, out_layout="cols"),
    # Nothing to sum, nothing to write.
    Case((3, 0), (0, 4)),
    Case((3, 0), (0, 4), beta=2.0, bias=True),
    Case((3, 0), (0, 4), out_layout="strided", bias=True),
    Case((0, 3), (3, 4)),
    Case((3, 4), (4, 0)),
    Case((0, 3, 4), (4, 5)),
    Case((2, 0, 4), (2, 4, 5)),
]

# Large enough for panels of our own where those are chosen: edges of tiles and slices, layouts.
PANELS = [
    *(
        Case((rows, 1029), (1029, 1030), a_layout=left, b_layout=right)
        for rows, left, right in (
            (5, "rows", "rows"),
            (6, "cols", "rows"),
            (7, "rows", "cols"),
            (17, "cols", "cols"),
            (13, "strided", "reversed"),
        )
    ),
    Case((63, 1100), (1100, 960), "rows", "cols", "cols", 0.5, 2.0, True),
    Case((2, 9, 1024), (2, 1024, 1025), out_layout="sliced"),
    Case((1, 3, 9, 1024), (2, 1, 1024, 1024), b_layout="cols", bias=True),
    Case((301, 17), (17, 401), b_layout="cols"),
    Case((301, 17), (17, 401), "cols", "rows", "strided", -1.0, 0.5, True),
    Case((150, 32), (32, 1000), alpha=2.0, bias=True),
    Case((400, 1), (1, 300)),
]


def inputs(case: Case, dtype: str, seed: int = 0) -> dict[str, Any]:
    """The operands of a case, rounded to the dtype and laid out; `out` is filled where it is read
    and NaN where it is not."""
    generator = np.random.default_rng(seed)
    kind = numpy_dtype(dtype)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        return generator.standard_normal(shape).astype(kind)

    shape = (*np.broadcast_shapes(case.a[:-2], case.b[:-2]), case.a[-2], case.b[-1])
    old = draw(shape) if case.beta else np.full(shape, np.nan, kind)
    return {
        "a": arrange(draw(case.a), case.a_layout),
        "b": arrange(draw(case.b), case.b_layout),
        "out": arrange(old, case.out_layout),
        "bias": draw((case.b[-1],)) if case.bias else None,
    }

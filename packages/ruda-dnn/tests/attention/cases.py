"""attention's inputs as data: shapes, what the queries see, masks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ruda_dnn.attention import reference

from ..support import Array


@dataclass(frozen=True)
class Case:
    name: str
    q_length: int
    k_length: int
    batch: int = 1
    heads: int = 3
    groups: int = 3
    width: int = 16
    value_width: int = 0  # 0: width
    causal: bool = False
    window: tuple[int | None, int | None] = (None, None)
    align: str = "bottom_right"
    mask: str = ""  # "", "bool", "float", "padding", "hidden", "rows"
    mask_shape: tuple[int, int, int] = (0, 0, 0)  # 1 where the mask broadcasts: batch, heads, Tq
    scale: float | None = None
    spread: float = 1.0  # of q and k

    @property
    def values(self) -> int:
        return self.value_width or self.width

    def options(self) -> dict:
        return {
            "causal": self.causal,
            "window": self.window,
            "align": self.align,
            "scale": self.scale,
        }

    def seen(self) -> np.ndarray:
        left, right = self.window
        return reference.visible(
            self.q_length,
            self.k_length,
            left,
            0 if self.causal else right,
            self.align == "bottom_right",
        )

    def inputs(self, rng: np.random.Generator) -> list[Array]:
        """q, k, v and the gradient of the result."""
        b, h, g = self.batch, self.heads, self.groups
        return [
            self.spread * rng.standard_normal((b, self.q_length, h, self.width)),
            self.spread * rng.standard_normal((b, self.k_length, g, self.width)),
            rng.standard_normal((b, self.k_length, g, self.values)),
            rng.standard_normal((b, self.q_length, h, self.values)),
        ]

    def make_mask(self, rng: np.random.Generator) -> np.ndarray | None:
        """bool or float64, [B or 1, H or 1, Tq or 1, Tk]."""
        if not self.mask:
            return None
        full = (self.batch, self.heads, self.q_length)
        lead = tuple(1 if one else size for one, size in zip(self.mask_shape, full, strict=True))
        shape = (*lead, self.k_length)
        if self.mask == "float":
            return np.where(rng.random(shape) < 0.2, -np.inf, rng.standard_normal(shape))
        if self.mask == "zeros":
            return np.zeros(shape)
        if self.mask == "hidden":
            return np.zeros(shape, bool)
        if self.mask == "bool":
            return rng.random(shape) < 0.7
        mask = np.ones(shape, bool)
        if self.mask == "padding":  # left padding, longer in later sequences
            for row in range(shape[0]):
                mask[row, ..., : self.k_length * (row + 1) // 3] = False
        elif self.mask == "causal padding":
            mask &= np.tril(np.ones((self.q_length, self.k_length), bool))
            for row in range(shape[0]):
                mask[row, ..., : self.k_length * (row + 1) // 4] = False
        elif self.mask == "rows":  # some queries see nothing, in the middle and at the end
            mask[..., 1::3, :] = False
            mask[..., self.q_length // 2 :, :] = False
        return mask


LENGTHS = [1, 5, 17, 64, 65, 257]

CASES = [
    *(
        Case(f"{kind}_{length}", length, length, causal=kind == "causal", batch=2, groups=1)
        for length in LENGTHS
        for kind in ("full", "causal")
    ),
    *(
        Case(f"width_{width}", 33, 70, width=width, causal=True, heads=2, groups=1)
        for width in (1, 8, 16, 40, 64, 80, 128, 256)
    ),
    Case("value_width_smaller", 40, 50, width=24, value_width=7, causal=True),
    Case("value_width_larger", 40, 50, width=8, value_width=66, groups=1),
    Case("value_width_decode", 2, 150, width=12, value_width=37, groups=1),
    Case("one_group", 100, 100, heads=9, groups=1, causal=True),
    Case("three_groups", 200, 200, heads=9, groups=3, causal=True, width=64),
    Case("wide_group", 34, 40, heads=28, groups=2, causal=True),
    Case("top_left_fewer_queries", 20, 70, causal=True, align="top_left"),
    Case("top_left_more_queries", 70, 20, causal=True, align="top_left"),
    Case("bottom_right_fewer_queries", 20, 70, causal=True),
    Case("bottom_right_more_queries", 70, 20, causal=True),
    Case("bottom_right_2_5", 2, 5, causal=True),
    Case("bottom_right_5_2", 5, 2, causal=True),
    Case("window", 150, 150, causal=True, window=(10, None)),
    Case("window_of_one", 100, 100, causal=True, window=(0, None)),
    Case("window_wide", 150, 150, causal=True, window=(1000, None)),
    Case("window_both_sides", 130, 110, window=(7, 20)),
    Case("window_ahead", 130, 130, window=(None, 3), align="top_left"),
    Case("window_of_long_keys", 40, 260, window=(30, None), causal=True, groups=1),
    Case("window_decode", 1, 260, window=(99, None), causal=True, groups=1),
    Case("no_keys", 6, 0),
    Case("no_keys_one_query", 1, 0),
    Case("no_queries", 0, 6),
    Case("no_batch", 4, 4, batch=0),
    Case("long", 300, 1100, heads=2, groups=1, causal=True),
    Case("many_pairs", 20, 30, batch=7, heads=4, groups=2, causal=True),
    *(
        Case(f"mask_{kind}_{lead}", 37, 110, batch=2, mask=kind, mask_shape=shape, groups=1)
        for kind in ("bool", "float")
        for lead, shape in {
            "all": (0, 0, 0), "one": (1, 1, 1), "heads": (0, 1, 0), "keys": (0, 1, 1),
            "batch": (1, 0, 0),
        }.items()
    ),
    Case("mask_float_ones", 9, 21, batch=2, mask="zeros"),
    Case("mask_causal", 110, 110, batch=2, mask="bool", causal=True, mask_shape=(0, 1, 0)),
    Case("mask_padding", 120, 120, batch=2, mask="padding", mask_shape=(0, 1, 1), groups=1),
    Case("mask_causal_padding", 290, 290, batch=2, mask="causal padding", mask_shape=(0, 1, 0)),
    Case("mask_rows", 120, 100, batch=2, mask="rows", mask_shape=(0, 1, 0)),
    Case("mask_hidden", 20, 30, mask="hidden"),
    Case("mask_window", 110, 110, mask="float", window=(20, 5)),
    Case("decode", 1, 300, batch=2, heads=9, groups=3, causal=True, width=64),
    Case("decode_long", 1, 3000, heads=4, groups=1, causal=True),
    Case("decode_four", 4, 90, heads=4, groups=2, causal=True, width=20),
    Case("decode_mask", 3, 90, batch=2, mask="bool", groups=1),
    Case("decode_bias", 1, 90, batch=2, mask="float", mask_shape=(0, 1, 1), groups=1),
    Case("decode_hidden", 2, 90, mask="hidden"),
    Case("large_scores", 50, 60, spread=5.0, causal=True),
    Case("own_scale", 50, 60, scale=0.3),
    Case("negative_scale", 50, 60, scale=-0.5),
]  # fmt: skip


@dataclass(frozen=True)
class Packed:
    name: str
    q_lengths: tuple[int, ...]
    k_lengths: tuple[int, ...]
    heads: int = 4
    groups: int = 2
    width: int = 16
    causal: bool = True
    window: tuple[int | None, int | None] = (None, None)
    align: str = "bottom_right"


PACKED = [
    Packed("equal", (5, 17, 64), (5, 17, 64)),
    Packed("one", (100,), (100,)),
    Packed("empty_ones", (0, 9, 0, 0, 70, 0), (0, 9, 0, 0, 70, 0)),
    Packed("queries_without_keys", (4, 9, 6), (0, 9, 0)),
    Packed("keys_without_queries", (0, 9, 0), (4, 9, 150)),
    Packed("different", (3, 40, 7), (30, 20, 200)),
    Packed("top_left", (3, 40, 7), (30, 20, 200), align="top_left"),
    Packed("window", (130, 40), (130, 90), window=(12, None)),
    Packed("decoding", (1, 1, 1, 4), (30, 1, 600, 70)),
    Packed("not_causal", (20, 9), (11, 170), causal=False),
    Packed("none", (), ()),
]

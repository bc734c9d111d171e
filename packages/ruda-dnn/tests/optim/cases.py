"""AdamW's settings and parameter shapes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    name: str
    shapes: tuple[tuple[int, ...], ...]
    learning_rate: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    gradient_scale: float = 1.0
    steps: int = 10


CASES = [
    Case("one_element", ((1,),)),
    Case("several_tensors", ((3, 5), (64,), (2, 2, 9), (0, 4), ())),
    Case("across_chunks", ((50_001,), (16_384,), (7,)), steps=3),
    Case("no_decay", ((33,),), weight_decay=0.0),
    Case("beta_zero", ((33,),), betas=(0.0, 0.0), epsilon=1e-3),
    Case("small_beta1", ((33,),), betas=(0.3, 0.9)),
    Case("scaled_gradient", ((33,),), gradient_scale=1.0 / 1024),
    Case("large_epsilon", ((33,),), epsilon=1.0),
]

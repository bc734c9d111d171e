"""Every subset of an operator's optional arguments, with every subset of gradients asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, combinations
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ruda_torch

from .support import normal
from .test_nf4_linear import BLOCK, IN, OUT, quantized

ROWS = 5


class Operator(NamedTuple):
    """``run`` on ruda, ``peer`` in float64 on the CPU; both take the tensors by name."""

    run: Callable[..., Tensor]
    peer: Callable[..., Tensor]
    tensors: dict[str, Tensor]
    differentiable: frozenset[str]


def subsets(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    listed = list(names)
    return chain.from_iterable(combinations(listed, size) for size in range(len(listed) + 1))


def some(*shape: int, seed: int) -> Tensor:
    return normal(*shape, dtype=torch.float32, seed=seed)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, mask)


def nf4(frozen: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return frozen["packed"], frozen["scales"], frozen["codebook"]


def operators() -> dict[str, Operator]:
    width = 24
    vectors = {name: some(width, seed=seed) for seed, name in enumerate(("weight", "bias"), 2)}
    x = some(ROWS, width, seed=1)
    frozen, dense = quantized()
    dense = dense.double()
    sizes = (OUT, IN, BLOCK, 16)
    wide = {"x": some(ROWS, IN, seed=4), "bias": some(OUT, seed=5)}
    adapter = {"lora_a": some(4, IN, seed=6), "lora_b": some(OUT, 4, seed=7)}
    target = torch.tensor([1, 0, -100, 6, 3])
    heads = {n: some(1, 2, ROWS, 8, seed=s) for s, n in enumerate(("query", "key", "value"), 8)}
    return {
        "rms_norm": Operator(
            lambda x, weight=None: ruda_torch.rms_norm(x, weight, 1e-5),
            lambda x, weight=None: F.rms_norm(x, (width,), weight, 1e-5),
            {"x": x, "weight": vectors["weight"]},
            frozenset({"x", "weight"}),
        ),
        "layer_norm": Operator(
            lambda x, weight=None, bias=None: ruda_torch.layer_norm(x, weight, bias),
            lambda x, weight=None, bias=None: F.layer_norm(x, (width,), weight, bias),
            {"x": x, **vectors},
            frozenset({"x", "weight", "bias"}),
        ),
        "aten::layer_norm": Operator(
            lambda x, weight=None, bias=None: F.layer_norm(x, (width,), weight, bias),
            lambda x, weight=None, bias=None: F.layer_norm(x, (width,), weight, bias),
            {"x": x, **vectors},
            frozenset({"x", "weight", "bias"}),
        ),
        "nf4_linear": Operator(
            lambda x, bias=None: torch.ops.ruda.nf4_linear(x, *nf4(frozen), bias, *sizes),
            lambda x, bias=None: F.linear(x, dense, bias),
            wide,
            frozenset({"x"}),
        ),
        "nf4_lora_linear": Operator(
            lambda x, lora_a, lora_b, bias=None: torch.ops.ruda.nf4_lora_linear(
                x, *nf4(frozen), bias, lora_a, lora_b, 0.5, *sizes
            ),
            lambda x, lora_a, lora_b, bias=None: (
                F.linear(x, dense, bias) + 0.5 * x @ lora_a.T @ lora_b.T
            ),
            {**wide, **adapter},
            frozenset({"x", "lora_a", "lora_b"}),
        ),
        "linear_cross_entropy": Operator(
            lambda hidden, head, bias=None: ruda_torch.linear_cross_entropy(
                hidden, head, target.to(hidden.device), bias
            )[0],
            lambda hidden, head, bias=None: F.cross_entropy(
                F.linear(hidden, head, bias), target, reduction="sum"
            ),
            {"hidden": x, "head": some(7, width, seed=11), "bias": some(7, seed=12)},
            frozenset({"hidden", "head", "bias"}),
        ),
        "attention": Operator(
            ruda_torch.attention,
            attend,
            {**heads, "mask": some(ROWS, ROWS, seed=13)},
            frozenset(heads),
        ),
        "aten::scaled_dot_product_attention": Operator(
            attend,
            attend,
            {**heads, "mask": some(ROWS, ROWS, seed=13)},
            frozenset({*heads, "mask"}),
        ),
    }


OPERATORS = operators()


def optional_names(operator: Operator) -> set[str]:
    parameters = inspect.signature(operator.peer).parameters.values()
    return {one.name for one in parameters if one.default is not inspect.Parameter.empty}


def combinations_of(operator: Operator) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Names that are given, of these the ones that require gradients, of these the ones asked."""
    optional = optional_names(operator)
    for present in subsets(optional):
        names = [name for name in operator.tensors if name not in optional or name in present]
        for trained in subsets(name for name in names if name in operator.differentiable):
            for asked in subsets(trained):
                yield tuple(names), trained, asked


@pytest.mark.parametrize("name", OPERATORS)
def test_every_combination(name: str) -> None:
    operator = OPERATORS[name]
    for given, trained, asked in combinations_of(operator):
        ours, theirs = (
            {one: convert(operator.tensors[one]).requires_grad_(one in trained) for one in given}
            for convert in (lambda tensor: tensor.to("ruda"), Tensor.double)
        )
        out, wanted = operator.run(**ours), operator.peer(**theirs)
        message = f"{name}: given {given}, trained {trained}, asked {asked}"
        assert out.requires_grad == bool(trained), message
        torch.testing.assert_close(
            out.detach().cpu().double(), wanted.detach(), rtol=1e-4, atol=1e-4, msg=message
        )
        if not asked:
            continue
        factors = some(*out.shape, seed=20)
        found = torch.autograd.grad(out, [ours[one] for one in asked], factors.to("ruda"))
        right = torch.autograd.grad(wanted, [theirs[one] for one in asked], factors.double())
        for one, gradient, reference in zip(asked, found, right, strict=True):
            torch.testing.assert_close(
                gradient.cpu().double(), reference, rtol=1e-4, atol=1e-4, msg=f"{message}: d{one}"
            )

"""Products, softmax, losses and the native training operators, to compute on either target.
`compute()` gives a list of tensors on the CPU for every case: results, then gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import ruda_blas
import ruda_torch
from ruda_runtime import Tensor as RudaTensor
from ruda_torch import attention, linear_cross_entropy, rms_norm, silu_mul

D = "ruda"
FLOATING = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
OPS = torch.ops.ruda
Case = Callable[[torch.dtype], object]


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Numbers of a leaf on ruda."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(dtype).to(D).requires_grad_()


def with_gradients(run: Callable[..., Tensor], *leaves: Tensor) -> list[Tensor]:
    """The result, and the gradients of a fixed upper one."""
    result = run(*leaves)
    generator = torch.Generator().manual_seed(99)
    upper = torch.randn(result.shape, generator=generator).to(result.dtype).to(D)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    return [result, *torch.autograd.grad(result, wanted, upper)]


def leaves(*shapes: tuple[int, ...]) -> Callable[[Callable[..., Tensor]], Case]:
    """A case of leaves of these shapes."""

    def wrap(run: Callable[..., Tensor]) -> Case:
        return lambda dtype: with_gradients(
            run, *(normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes))
        )

    return wrap


def targets(classes: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    drawn = torch.randint(0, classes, shape, generator=generator)
    drawn.view(-1)[1] = -100
    return drawn.to(D)


def cross_entropy(reduction: str, weighted: bool = False) -> Case:
    def case(dtype: torch.dtype) -> object:
        weight = torch.linspace(0.5, 1.5, 11).to(dtype).to(D) if weighted else None
        return with_gradients(
            lambda x: F.cross_entropy(x, targets(11, 17), weight, reduction=reduction),
            normal(17, 11, dtype=dtype),
        )

    return case


def masked_attention(dtype: torch.dtype) -> object:
    mask = torch.ones(6, 9, dtype=torch.bool).tril(2)
    mask[3] = False
    return leaves((2, 4, 6, 8), (2, 4, 9, 8), (2, 4, 9, 8))(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(D))
    )(dtype)


def nf4(dtype: torch.dtype, adapter: bool) -> object:
    weight = torch.randn(24, 32, generator=torch.Generator().manual_seed(3))
    packed, scales = (
        torch.from_numpy(t.numpy().copy()).to(D)
        for t in ruda_blas.nf4.quantize(RudaTensor.from_numpy(weight.numpy()), block_size=16)
    )
    codebook = torch.tensor(ruda_blas.nf4.CODEBOOK, dtype=torch.float32).to(D)
    sizes = (24, 32, 16, 8)
    x = normal(5, 32, dtype=dtype, seed=1)
    if not adapter:
        bias = normal(24, dtype=dtype, seed=2).detach()
        return with_gradients(
            lambda x: OPS.nf4_linear(x, packed, scales, codebook, bias, *sizes), x
        )
    return with_gradients(
        lambda x, a, b: OPS.nf4_lora_linear(x, packed, scales, codebook, None, a, b, 0.5, *sizes),
        x, normal(4, 32, seed=3), normal(24, 4, seed=4),
    )  # fmt: skip


def optimiser(dtype: torch.dtype) -> object:
    parameters = [torch.nn.Parameter(normal(7, 5, dtype=dtype, seed=i).detach()) for i in (1, 2)]
    adam = ruda_torch.AdamW(parameters, lr=0.1, weight_decay=0.1)
    for step in range(3):
        for parameter in parameters:
            parameter.grad = normal(7, 5, dtype=dtype, seed=10 + step).detach()
        adam.step()
    return parameters


def gradient_reports(dtype: torch.dtype) -> object:
    gradients = [normal(40, dtype=dtype, seed=i).detach() for i in (1, 2)]
    norm, finite = OPS.gradient_norm(gradients, 0.5)
    all_finite = OPS.unscale_gradients_(gradients, 0.5)
    gradients[1][7] = float("inf")
    return [norm, finite, all_finite, *gradients, *OPS.gradient_norm(gradients, 1.0),
            OPS.unscale_gradients_(gradients, 1.0)]  # fmt: skip


def rotation(dtype: torch.dtype) -> object:
    angles = torch.outer(torch.arange(6.0), 0.5 ** torch.arange(4.0)).repeat(1, 2)[None]
    cos, sin = angles.cos().to(dtype).to(D), angles.sin().to(dtype).to(D)
    return leaves((2, 6, 3, 8))(lambda x: OPS.rotary(x, cos, sin))(dtype)


def fused_loss(dtype: torch.dtype) -> object:
    return leaves((12, 16), (40, 16))(
        lambda hidden, head: linear_cross_entropy(hidden, head, targets(40, 12))[0]
    )(dtype)


CASES: dict[str, Case] = {
    "mm": leaves((5, 7), (7, 6))(torch.mm),
    "mm_transposed": leaves((7, 5), (6, 7))(lambda a, b: a.t() @ b.t()),
    "mm_long": leaves((3, 300), (300, 70))(torch.mm),
    "mm_nothing": leaves((5, 0), (0, 6))(torch.mm),
    "mm_no_rows": leaves((0, 4), (4, 6))(torch.mm),
    "bmm": leaves((3, 5, 7), (3, 7, 6))(torch.bmm),
    "bmm_nothing": leaves((3, 5, 0), (3, 0, 6))(torch.bmm),
    "matmul_broadcast": leaves((2, 1, 5, 7), (3, 7, 6))(torch.matmul),
    "mv": leaves((5, 7), (7,))(torch.mv),
    "dot": leaves((9,), (9,))(torch.dot),
    "addmv": leaves((5,), (5, 7), (7,))(lambda s, a, v: torch.addmv(s, a, v, beta=0.5, alpha=2)),
    "linear": leaves((2, 5, 7), (6, 7), (6,))(F.linear),
    "addmm": leaves((5, 6), (5, 7), (7, 6))(
        lambda s, a, b: torch.addmm(s, a, b, beta=0.5, alpha=-2)
    ),
    "addmm_nothing": leaves((6,), (5, 0), (0, 6))(lambda s, a, b: torch.addmm(s, a, b, beta=3)),
    "baddbmm": leaves((5, 6), (3, 5, 7), (3, 7, 6))(
        lambda s, a, b: torch.baddbmm(s, a, b, alpha=0.5)
    ),
    "addbmm": leaves((5, 6), (3, 5, 7), (3, 7, 6))(
        lambda s, a, b: torch.addbmm(s, a, b, beta=2, alpha=0.5)
    ),
    "softmax": leaves((3, 4, 5))(lambda x: torch.softmax(x, -1)),
    "softmax_middle": leaves((3, 4, 5))(lambda x: torch.softmax(x, 1)),
    "softmax_number": leaves(())(lambda x: torch.softmax(x, 0)),
    "softmax_nothing": leaves((3, 0))(lambda x: torch.softmax(x, 0)),
    "softmax_float32": leaves((3, 4))(lambda x: torch.softmax(x, 1, dtype=torch.float32)),
    "log_softmax": leaves((3, 4, 5))(lambda x: torch.log_softmax(x, 2)),
    "cross_entropy_mean": cross_entropy("mean"),
    "cross_entropy_sum": cross_entropy("sum"),
    "cross_entropy_none": cross_entropy("none"),
    "cross_entropy_weights": cross_entropy("mean", weighted=True),
    "cross_entropy_images": leaves((2, 5, 3, 4))(lambda x: F.cross_entropy(x, targets(5, 2, 3, 4))),
    "cross_entropy_one": leaves((5,))(lambda x: F.cross_entropy(x, torch.tensor(3, device=D))),
    "aten_layer_norm": leaves((4, 3, 8), (3, 8), (3, 8))(
        lambda x, w, b: F.layer_norm(x, (3, 8), w, b)
    ),
    "aten_layer_norm_nothing": leaves((0, 8), (8,), (8,))(
        lambda x, w, b: F.layer_norm(x, (8,), w, b)
    ),
    "layer_norm": leaves((4, 24), (24,), (24,))(lambda x, w, b: OPS.layer_norm(x, w, b, 1e-5)),
    "rms_norm": leaves((4, 24), (24,))(lambda x, w: rms_norm(x, w, 1e-5)),
    "silu_mul": leaves((4, 24), (4, 24))(silu_mul),
    "rotary": rotation,
    "linear_cross_entropy": fused_loss,
    "attention": leaves((2, 4, 6, 8), (2, 2, 9, 8), (2, 2, 9, 8))(
        lambda q, k, v: attention(q, k, v, causal=True)
    ),
    "sdpa_causal": leaves((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8))(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    ),
    "sdpa_mask": masked_attention,
    "sdpa_wide_heads": leaves((1, 2, 3, 264), (1, 2, 4, 264), (1, 2, 4, 264))(
        F.scaled_dot_product_attention
    ),
    "nf4_linear": lambda dtype: nf4(dtype, adapter=False),
    "nf4_lora_linear": lambda dtype: nf4(dtype, adapter=True),
    "adamw": optimiser,
    "gradient_reports": gradient_reports,
}


def run(name: str, dtype: str) -> list[Tensor]:
    result = CASES[name](FLOATING[dtype])
    return [tensor.detach().cpu() for tensor in result]


def compute() -> dict[str, list[Tensor]]:
    return {f"{name}-{dtype}": run(name, dtype) for name in CASES for dtype in FLOATING}

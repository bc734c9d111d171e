"""Pointwise operators on the cuda target against the CPU's: promotion, layouts, forms, errors."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ruda_torch  # noqa: F401

TOLERANCE = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-12}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(5)


def same(actual: torch.Tensor, expected: torch.Tensor, factor: float = 1.0) -> None:
    assert actual.device.type == "ruda"
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    limit = TOLERANCE.get(actual.dtype, 0.0) * factor
    torch.testing.assert_close(actual.cpu(), expected, rtol=limit, atol=limit, equal_nan=True)


def compare(function: Callable[..., Any], *given: Any, factor: float = 1.0, **named: Any) -> None:
    """The function on CPU tensors and on ruda ones."""

    def moved(value: Any) -> Any:
        return value.to("ruda") if isinstance(value, torch.Tensor) else value

    expected = function(*given, **named)
    actual = function(*map(moved, given), **{name: moved(each) for name, each in named.items()})
    same(actual, expected, factor)


def special() -> torch.Tensor:
    return torch.cat(
        [torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, 2.5, -1.5, 300.0]),
         torch.randn(40) * 3]
    )  # fmt: skip


UNARY = [
    torch.abs, torch.bitwise_not, torch.ceil, torch.cos, torch.erf, torch.exp, torch.exp2,
    torch.expm1, torch.floor, torch.frac, torch.isfinite, torch.isinf, torch.isnan, torch.log,
    torch.log10, torch.log1p, torch.log2, torch.logical_not, torch.nan_to_num, torch.neg,
    torch.positive, torch.reciprocal, torch.relu, torch.round, torch.rsqrt, torch.sgn,
    torch.sigmoid, torch.sign, torch.sin, torch.sqrt, torch.square, torch.tan, torch.tanh,
    torch.trunc, F.elu, F.gelu, F.hardtanh, F.leaky_relu, F.logsigmoid, F.mish, F.relu6, F.selu,
    F.silu, F.softplus, F.hardsigmoid, F.hardswish, F.hardshrink, F.softshrink, torch.sinh,
    torch.cosh, torch.isposinf, torch.isneginf, torch.deg2rad, torch.rad2deg,
]  # fmt: skip


@pytest.mark.parametrize("function", UNARY, ids=lambda each: each.__name__)
def test_unary(function: Callable[..., torch.Tensor]) -> None:
    if function is F.gelu:  # the CPU's gives NaN for infinities
        compare(function, special().nan_to_num(posinf=5.0, neginf=-5.0))
    elif function is not torch.bitwise_not:
        compare(function, special())
    whole = torch.tensor([0, 1, 2, 7, -3])
    try:
        function(whole)
    except (RuntimeError, NotImplementedError):
        with pytest.raises((RuntimeError, NotImplementedError)):
            function(whole.to("ruda"))
    else:
        compare(function, whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_floating_dtypes(dtype: torch.dtype) -> None:
    x = special().to(dtype)
    for function in (torch.exp, torch.sigmoid, F.silu, torch.tanh, torch.round):
        compare(function, x)
    compare(F.gelu, x, approximate="tanh")


BINARY = [
    torch.add, torch.sub, torch.mul, torch.div, torch.remainder, torch.fmod, torch.floor_divide,
    torch.pow, torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.eq, torch.ne, torch.lt,
    torch.le, torch.gt, torch.ge, torch.logical_and, torch.logical_or, torch.logical_xor,
    torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor, torch.bitwise_left_shift,
    torch.bitwise_right_shift, torch.rsub, torch.copysign,
]  # fmt: skip


TENSORS_ONLY = {torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.logical_and,
                torch.logical_or, torch.logical_xor}  # fmt: skip


@pytest.mark.parametrize("function", BINARY, ids=lambda each: each.__name__)
def test_binary(function: Callable[..., torch.Tensor]) -> None:
    whole, factor = torch.tensor([[5, -7, 2], [9, -4, 3]]), torch.tensor([3, 2, 5])
    compare(function, whole, factor)  # broadcast
    if function not in TENSORS_ONLY:
        compare(function, whole, 3)
    if function.__name__.startswith("bitwise"):
        return
    x, y = torch.randn(6, 5), torch.randn(6, 5)
    if function is torch.pow:
        x = x.abs()
    compare(function, x, y)
    if function not in TENSORS_ONLY:
        compare(function, x, 1.75)
    compare(function, x, y.double())
    compare(function, x.half(), factor[0])  # of no dimensions, with a dtype of its own
    same(function(x.to("ruda"), torch.tensor(2.5)), function(x, torch.tensor(2.5)))
    if function is not torch.rsub:
        same(function(torch.tensor(2.5), y.abs().to("ruda")), function(torch.tensor(2.5), y.abs()))


@pytest.mark.parametrize("left", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("right", [torch.float16, torch.float64, torch.int32, torch.uint8], ids=str)
def test_promotion(left: torch.dtype, right: torch.dtype) -> None:
    x, y = (torch.randn(4, 6) * 3).to(left), (torch.rand(4, 6) * 3 + 1).to(right)
    for function in (torch.add, torch.div, torch.lt):
        compare(function, x, y)
    compare(torch.where, x > 1, x, y)


def test_reduced_floats_with_numbers() -> None:
    """Sums and products take the number in float32, comparisons in the tensor's dtype."""
    x = torch.tensor([0.1, 1.0, 3.0, 257.0])
    for dtype in (torch.float16, torch.bfloat16):
        for function in (torch.add, torch.mul, torch.div, torch.eq, torch.fmod):
            y = x.to(dtype)
            assert torch.equal(function(y.to("ruda"), 0.1).cpu(), function(y, 0.1))


def test_modes_factors_and_bounds() -> None:
    x, y, z = torch.randn(5, 4), torch.randn(5, 4), torch.rand(5, 4) + 0.5
    for mode in ("floor", "trunc"):
        compare(torch.div, x, y, rounding_mode=mode)
        compare(torch.div, torch.tensor([7, -7]), torch.tensor([2, 2]), rounding_mode=mode)
    compare(torch.add, x, y, alpha=-2.5)
    compare(torch.sub, x, y, alpha=3)
    compare(torch.add, torch.tensor([True, False]), torch.tensor([True, True]))
    compare(torch.addcmul, x, y, z, value=0.5)
    compare(torch.addcdiv, x, y, z, value=-2)
    compare(torch.lerp, x, y, 0.3)
    compare(torch.lerp, x, y, z)
    for low, high in ((-0.5, 0.5), (None, 0.1), (-0.1, None), (0.5, -0.5), (math.nan, 1.0)):
        compare(torch.clamp, x, low, high)
    compare(torch.clamp, x, -z, z)
    compare(torch.clamp, x, min=y)
    compare(torch.clamp, torch.arange(5), 1, 2.5)
    compare(torch.clamp_max, x, 0.2)
    for exponent in (0, 1, 2, 3, -1, 0.5, -0.5, -2, 2.5):
        compare(torch.pow, z, exponent)
    compare(torch.round, x, decimals=1)
    compare(torch.round, x * 100, decimals=-1)
    compare(torch.pow, torch.tensor([2, -3, 0]), 5)
    compare(torch.pow, 2, torch.tensor([0.5, 3.0]))
    compare(torch.pow, 2, torch.tensor([1, 5]))


def test_where_and_masks() -> None:
    x, y = torch.randn(3, 4), torch.randn(4)
    mask = x > 0
    for yes, no in ((x, y), (x, 0.0), (1, x), (2.0, -1.0), (x, torch.tensor(3.0))):
        compare(torch.where, mask, yes, no)
    compare(lambda m, a, b, out: torch.where(m, a, b, out=out), mask, x, x + 1, out=torch.empty(0))
    compare(torch.masked_fill, x, mask, -math.inf)
    compare(torch.masked_fill, x, mask[:, :1], torch.tensor(2.0))
    compare(torch.masked_fill, y, mask, 1.0)
    compare(lambda a, m: a.clone().masked_fill_(m, 7), x, mask)
    compare(lambda a, m: a.clone().t().masked_fill_(m, 7), x, mask.t())
    with pytest.raises(RuntimeError, match="boolean mask"):
        x.to("ruda").masked_fill_(mask.to("ruda").long(), 1)


GRADIENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "mish": F.mish,
    "softplus": F.softplus, "elu": F.elu, "leaky_relu": F.leaky_relu, "hardtanh": F.hardtanh,
    "log_sigmoid": F.logsigmoid, "where": lambda x: torch.where(x > 0, x * 2, x.exp()),
    "mse": lambda x: F.mse_loss(x, x.detach() + 1, reduction="none"),
    "pow": lambda x: x.abs() ** 1.5,
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x.detach() * 0.3, reduction="none", beta=0.5),
    "huber": lambda x: F.huber_loss(x, x.detach() * 0.3, reduction="none", delta=0.5),
    "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "hardshrink": F.hardshrink,
    "softshrink": F.softshrink, "glu": lambda x: F.glu(torch.cat([x, x * 2], 0), 0),
    "prelu": lambda x: F.prelu(x, x.detach()[0]) + F.prelu(x.detach(), x[0]),
    "probabilities": lambda x: F.binary_cross_entropy(
        x.sigmoid(), x.detach().cos() ** 2, x.detach() ** 2, reduction="none"
    ),
    "logits": lambda x: F.binary_cross_entropy_with_logits(
        x, x.detach().cos() ** 2, reduction="none"
    ),
    "logaddexp": lambda x: torch.logaddexp(x, 2 * x),
    "logit": lambda x: x.sigmoid().logit(eps=0.2),
    "xlogy": lambda x: torch.xlogy(x, x.exp() + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    x = torch.randn(4, 5)
    grad = torch.randn(4, 5)
    results = []
    for device in ("cpu", "ruda"):
        given = x.clone().to(device).requires_grad_()
        GRADIENTS[name](given).backward(grad.to(device))
        results.append(given.grad)
    same(results[1], results[0], factor=4)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses(reduction: str) -> None:
    x, y = torch.rand(4, 5), torch.rand(4, 5)
    for loss in (F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy, F.l1_loss):
        compare(lambda a, b, loss=loss: loss(a, b, reduction=reduction), x, y)
    results = []
    for device in ("cpu", "ruda"):
        given = x.clone().to(device).requires_grad_()
        loss = F.smooth_l1_loss(given, y.to(device), reduction=reduction)
        loss = loss + F.huber_loss(given, y.to(device), reduction=reduction)
        (loss + F.binary_cross_entropy(given, y.to(device), reduction=reduction)).backward()
        results.append(given.grad)
    same(results[1], results[0], factor=4)


def views() -> list[torch.Tensor]:
    return [
        torch.randn(5, 8), torch.randn(8, 5).t(), torch.randn(6, 16)[1:, ::2],
        torch.randn(8).expand(5, 8), torch.randn(5, 1).expand(5, 8), torch.randn(()).expand(5, 8),
        torch.randn(81)[1:41].view(5, 8),
    ]  # fmt: skip


def test_layouts() -> None:
    for x in views():
        for y in views():
            compare(torch.add, x, y)
    x = torch.randn(3, 4, 5, 6)
    turned = x.to("ruda").permute(2, 0, 3, 1)
    same(turned.contiguous(), x.permute(2, 0, 3, 1))
    same(turned * turned.half(), x.permute(2, 0, 3, 1) * x.permute(2, 0, 3, 1).half())
    many = torch.randn(2, 2, 2, 2, 2, 2, 2, 3)
    same(many.to("ruda").permute(7, 5, 3, 1, 6, 4, 2, 0).contiguous(),
         many.permute(7, 5, 3, 1, 6, 4, 2, 0))  # fmt: skip
    out = torch.zeros(8, 5, device="ruda").t()
    torch.add(views()[0].to("ruda"), 1, out=out)
    assert out.stride() == (1, 5)


DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int16,
          torch.int32, torch.int64, torch.uint8, torch.bool]  # fmt: skip


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_conversions(source: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2.75, 3, 100, 126]).to(source)
    for target in DTYPES:
        compare(lambda x, target=target: x.to(target), x)
    compare(lambda x: x.view(2, 3).t().contiguous(), x)
    compare(lambda x: x[::2].clone(), x)


def test_fills() -> None:
    values = {torch.float32: 0.1, torch.int64: 2**62 + 1, torch.bool: True, torch.uint8: 200,
              torch.bfloat16: -3.3, torch.float64: 1e300}  # fmt: skip
    for dtype, value in values.items():
        compare(lambda x, value=value: x.fill_(value), torch.zeros(5, dtype=dtype))
        compare(lambda x, value=value: x.t()[1:].fill_(value), torch.zeros(4, 3, dtype=dtype))
        compare(lambda x: x[:, 1].zero_(), torch.ones(4, 3, dtype=dtype))
    compare(lambda x, value: x.fill_(value), torch.zeros(5), torch.tensor(3.5))
    with pytest.raises(RuntimeError, match="overflow"):
        torch.zeros(5, dtype=torch.uint8, device="ruda").fill_(300)
    for arguments in ((7,), (2, 9, 3), (0.5, 3.0, 0.25), (5, 0, -2)):
        same(torch.arange(*arguments, device="ruda"), torch.arange(*arguments))
    down = {"start": 5, "end": -1, "step": -2, "dtype": torch.uint8}
    same(torch.arange(**down, device="ruda"), torch.arange(**down))
    same(torch.arange(5, device="ruda", dtype=torch.float16), torch.arange(5, dtype=torch.float16))


def test_dtypes_that_an_operator_has_not() -> None:
    """Refused before the launch, as ATen's own kernels do."""
    truth = torch.ones(3, dtype=torch.bool, device="ruda")
    for function in (torch.ceil, torch.floor, torch.round, torch.trunc):
        with pytest.raises(NotImplementedError, match=rf"\[{function.__name__}\].*dtype bool"):
            function(truth)
    for function in (torch.bitwise_and, torch.bitwise_left_shift):
        with pytest.raises(NotImplementedError, match="no kernel on ruda"):
            function(torch.ones(3, device="ruda"), truth)
    with pytest.raises(NotImplementedError, match=r"\[aten::convolution\].*dtype float32"):
        F.conv1d(torch.ones(1, 2, 4, device="ruda"), torch.ones(3, 2, 2, device="ruda"))
    assert truth.all()  # the device goes on


def test_in_place_and_out() -> None:
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    compare(lambda a, b: a.clone().add_(b).mul_(2).sub_(b.half()).div_(3).exp_(), x, y)
    compare(lambda a: a.clone().t().add_(1).clamp_(0, 1), x)
    compare(lambda a, b: a.clone().gt_(b), x, y)
    compare(lambda a: a.clone().eq_(1), torch.arange(4))
    compare(lambda a, b: torch.add(a, b, out=torch.empty_like(a, dtype=torch.float64)), x, y)
    compare(lambda a, b: torch.lt(a, b, out=torch.empty_like(a)), x, y)
    compare(lambda a: torch.exp(a, out=torch.empty(0, device=a.device)), x)
    compare(lambda a: a.clone().add_(a.new_ones(5, dtype=torch.float64)), x)
    whole = torch.arange(4, device="ruda")
    with pytest.raises(RuntimeError, match="can't be cast"):
        whole.add_(1.5)
    memory = torch.randn(6, device="ruda")
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.add(memory[:5], 1, out=memory[1:])


def test_empty_and_without_dimensions() -> None:
    compare(torch.add, torch.randn(0, 3), torch.randn(3))
    compare(torch.exp, torch.randn(4, 0))
    compare(torch.add, torch.tensor(2.0), torch.tensor(3))
    compare(torch.gt, torch.tensor(2.0), 1)
    assert (torch.tensor(2.5, device="ruda") * 2).item() == 5.0
    assert bool(torch.tensor(3, device="ruda") == 3)


def test_refusals() -> None:
    x = torch.randn(4, device="ruda")
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.randn(4)
    with pytest.raises(RuntimeError, match="same device"):
        torch.exp(torch.randn(4), out=x)
    z = torch.randn(4, dtype=torch.complex64).to("ruda")
    with pytest.raises(NotImplementedError, match="target cuda"):
        z + z
    with pytest.raises(NotImplementedError, match="target cuda"):
        torch.special.bessel_j0(x)


def test_complex_and_unknown_dtypes_are_copied() -> None:
    z = torch.randn(3, 4, dtype=torch.complex128)
    assert torch.equal(z.to("ruda").t().contiguous().cpu(), z.t())
    small = torch.randn(3, 4).to(torch.float8_e4m3fn)
    turned = small.to("ruda").t().contiguous().cpu()
    assert torch.equal(turned.view(torch.uint8), small.t().contiguous().view(torch.uint8))


def test_lists_of_tensors() -> None:
    lists = [[torch.randn(3, 2), torch.randn(5)] for _ in range(3)]
    on_ruda = [[each.to("ruda") for each in one] for one in lists]
    for function in (
        lambda a, b, c: torch._foreach_add(a, b, alpha=2),
        lambda a, b, c: torch._foreach_mul(a, 0.5),
        lambda a, b, c: torch._foreach_div(a, [2.0, 3.0]),
        lambda a, b, c: torch._foreach_addcdiv(a, b, torch._foreach_exp(c), [0.1, 0.2]),
        lambda a, b, c: torch._foreach_lerp(a, b, 0.25),
        lambda a, b, c: torch._foreach_maximum(torch._foreach_sqrt(torch._foreach_abs(a)), b),
        lambda a, b, c: torch._foreach_pow(torch._foreach_neg(a), 2),
    ):
        for actual, expected in zip(function(*on_ruda), function(*lists), strict=True):
            same(actual, expected)
    torch._foreach_zero_(on_ruda[0])
    assert all((each == 0).all() for each in on_ruda[0])


@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimiser_of_torch(foreach: bool) -> None:
    start, grads = torch.randn(4, 3), [torch.randn(4, 3) for _ in range(3)]
    results = []
    for device in ("cpu", "ruda"):
        weight = torch.nn.Parameter(start.clone().to(device))
        optimiser = torch.optim.AdamW([weight], lr=0.1, foreach=foreach)
        for grad in grads:
            weight.grad = grad.to(device)
            optimiser.step()
        results.append(weight.detach())
    same(results[1], results[0], factor=4)


def test_launches_are_those_of_launch_py(request: pytest.FixtureRequest) -> None:
    """Dtypes, constants, promised alignment and grids, on the double."""
    if request.config.getoption("--target") != "double":
        pytest.skip("the driver double counts launches")
    script = Path(__file__).with_name("pointwise_launches.py")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUDA_")}
    double = {"RUDA_TARGET": "cuda", "RUDA_CUDA_DRIVER": "double", "RUDA_DOUBLE_RECORD_ONLY": "1"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**kept, **double}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

"""The route of the hot operators: the CPU's results bit for bit, whatever the form of the call."""

# ruff: noqa: B023 - every lambda here is called where it is made

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ruda_torch

D = "ruda"
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
OTHERS = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64]


def sample(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3
    return x.abs().to(dtype) if dtype == torch.uint8 else x.to(dtype)


def outcome(call: Callable[[], torch.Tensor]) -> torch.Tensor | tuple[type, str]:
    try:
        return call()
    except Exception as error:
        return type(error), str(error).splitlines()[0].replace("ruda:0", "cpu")


def same(ours: torch.Tensor | tuple, theirs: torch.Tensor | tuple) -> None:
    if isinstance(ours, tuple) or isinstance(theirs, tuple):
        assert ours == theirs
        return
    assert ours.device.type == D
    assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
    back = ours.cpu()
    torch.testing.assert_close(back, theirs, rtol=0, atol=0, equal_nan=True)


UNARY = [
    "ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "log2", "neg", "reciprocal",
    "round", "rsqrt", "sigmoid", "sin", "sqrt", "tanh", "bitwise_not",
]  # fmt: skip
BINARY = ["add", "sub", "mul", "div", "pow", "bitwise_and", "bitwise_or", "bitwise_xor"]
PURE = ["maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"]


def layouts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "contiguous": x,
        "transposed": x.mT,
        "strided": x[:, ::2],
        "expanded": x[:, :1].expand(x.shape),
        "empty": x[:0],
        "scalar": x[0, 0],
    }


@pytest.mark.parametrize("dtype", FLOATS + OTHERS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: torch.dtype) -> None:
    x = sample((7, 10), dtype)
    for theirs, ours in zip(layouts(x).values(), layouts(x.to(D)).values(), strict=True):
        operation = getattr(torch, name)
        same(outcome(lambda: operation(ours)), outcome(lambda: operation(theirs)))
        a, b = torch.empty(0, dtype=dtype, device=D), torch.empty(0, dtype=dtype)
        same(outcome(lambda: operation(ours, out=a)), outcome(lambda: operation(theirs, out=b)))
    a, b = x.to(D), x.clone()
    in_place = f"{name}_"
    same(outcome(lambda: getattr(a, in_place)()), outcome(lambda: getattr(b, in_place)()))


def pairs(x: torch.Tensor, y: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (x, y),
        (x, y[:1]),
        (x[:, :1], y[:1]),
        (x.mT, y.mT),
        (x[:, ::2], y[:, 1::2]),
        (x, y[0, 0]),
        (x[:0], y[:0]),
        (x, y[:3]),
    ]


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("dtype", FLOATS + OTHERS, ids=str)
@pytest.mark.parametrize("name", BINARY + PURE)
def test_binary(name: str, dtype: torch.dtype) -> None:
    operation = getattr(torch, name)
    x, y = sample((7, 10), dtype), sample((7, 10), dtype, seed=1)
    if dtype == torch.int64:
        y = y.abs() + 1
    for ours, theirs in zip(pairs(x.to(D), y.to(D)), pairs(x, y), strict=True):
        got, wanted = outcome(lambda: operation(*ours)), outcome(lambda: operation(*theirs))
        same(got, wanted)
        if isinstance(wanted, torch.Tensor):
            for made in (wanted.dtype, torch.float64):
                p = torch.empty(0, dtype=made, device=D)
                q = torch.empty(0, dtype=made)
                same(
                    outcome(lambda: operation(*ours, out=p)),
                    outcome(lambda: operation(*theirs, out=q)),
                )
    if name in BINARY:
        a, b = x.to(D), x.clone()
        other = y[:1].to(D)
        same(
            outcome(lambda: getattr(a, f"{name}_")(other)),
            outcome(lambda: getattr(b, f"{name}_")(y[:1])),
        )


NUMBERS = [2, -1, 0.3, True, 300, 1e300, float("nan"), 1j, torch.tensor(0.3), torch.tensor(2)]
NUMBERS.append(torch.tensor(0.3, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("dtype", FLOATS + OTHERS, ids=str)
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "pow", "maximum", "eq", "lt", "where"]
)
def test_numbers_beside_tensors(name: str, dtype: torch.dtype) -> None:
    x = sample((3, 5), dtype)
    for number in NUMBERS:
        if name == "where":
            calls = [lambda t, n=number: torch.where(t > 0, t, n)]
        elif name == "maximum":
            calls = [lambda t, n=number: torch.maximum(t, torch.as_tensor(n))]
        else:
            operation = getattr(torch, name)
            calls = [lambda t, n=number: operation(t, n)]
            if isinstance(number, torch.Tensor) and name != "pow":
                calls.append(lambda t, n=number: operation(n, t))
            if name not in ("eq", "lt"):
                calls.append(lambda t, n=number: getattr(t.clone(), f"{name}_")(n))
        for call in calls:
            ours, theirs = outcome(lambda: call(x.to(D))), outcome(lambda: call(x))
            if isinstance(theirs, tuple) and isinstance(ours, tuple):
                assert ours[0] is theirs[0]
            else:
                same(ours, theirs)


def test_the_same_number_twice_in_one_expression() -> None:
    x = torch.ones(3, device=D)
    assert ((x * 2.0) + (x * 3.0) * 2.0).tolist() == [8.0] * 3


TERNARY: dict[str, Callable[..., torch.Tensor]] = {
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=0.5),
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, z, value=0.5),
    "addcmul_": lambda x, y, z: x.clone().addcmul_(y, z[:1], value=2),
    "addcdiv_": lambda x, y, z: x.clone().addcdiv_(y, z, value=-2),
    "addcmul.out": lambda x, y, z: torch.addcmul(x, y, z, out=torch.empty_like(x)),
    "lerp": lambda x, y, z: torch.lerp(x, y, 0.3),
    "lerp_": lambda x, y, z: x.clone().lerp_(y, 0.7),
    "lerp tensor": lambda x, y, z: torch.lerp(x, y, z),
    "where": lambda x, y, z: torch.where(x > 0, y, z),
    "where broadcast": lambda x, y, z: torch.where(x[:1] > 0, y, z[:, :1]),
    "where transposed": lambda x, y, z: torch.where(x.mT > 0, y.mT, z.mT),
    "where bytes": lambda x, y, z: torch.where((x > 0).to(torch.uint8), y, z),
    "clamp": lambda x, y, z: torch.clamp(x, -1, 1.5),
    "clamp_min": lambda x, y, z: torch.clamp(x, min=0.25),
    "clamp nan": lambda x, y, z: torch.clamp(x, float("nan"), 1),
    "clamp_": lambda x, y, z: x.clone().clamp_(-1, 1),
    "relu": lambda x, y, z: torch.relu(x),
    "relu_": lambda x, y, z: x.clone().relu_(),
    "pow 2": lambda x, y, z: x.pow(2),
    "pow 0": lambda x, y, z: x**0,
    "pow 1": lambda x, y, z: x**1.0,
    "pow -0.5": lambda x, y, z: x.abs() ** -0.5,
    "pow_": lambda x, y, z: x.clone().pow_(3),
    "silu": lambda x, y, z: torch.nn.functional.silu(x),
    "gelu": lambda x, y, z: torch.nn.functional.gelu(x),
    "gelu tanh": lambda x, y, z: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu_backward": lambda x, y, z: torch.ops.aten.gelu_backward(x, y, approximate="tanh"),
    "threshold_backward": lambda x, y, z: torch.ops.aten.threshold_backward(x, y, 0),
    "sigmoid_backward": lambda x, y, z: torch.ops.aten.sigmoid_backward(x, y),
    "tanh_backward": lambda x, y, z: torch.ops.aten.tanh_backward(x, y),
    "sum": lambda x, y, z: x.sum(),
    "sum dim": lambda x, y, z: x.sum(0),
    "sum dims": lambda x, y, z: x.sum((0, -1), keepdim=True),
    "sum transposed": lambda x, y, z: x.mT.sum(1),
    "sum dtype": lambda x, y, z: x.sum(1, dtype=torch.float64),
    "sum out": lambda x, y, z: torch.sum(x, 0, out=x.new_empty(0)),
    "mean": lambda x, y, z: x.mean(),
    "mean dim": lambda x, y, z: x.mean(-1, keepdim=True),
    "mean nothing": lambda x, y, z: x[:0].mean(),
    "amax": lambda x, y, z: x.amax((0, 1)),
    "amin": lambda x, y, z: x.amin(-1, keepdim=True),
    "amax nothing": lambda x, y, z: x[:0].amax(0),
    "any": lambda x, y, z: (x > 4).any(),
    "all": lambda x, y, z: (x > -4).all(1),
    "any numbers": lambda x, y, z: x.any(0),
    "all of one": lambda x, y, z: (x[:1, :1] > 0).all(),
    "any of none": lambda x, y, z: (x[:0] > 0).any(),
    "cat": lambda x, y, z: torch.cat([x, y, z]),
    "cat dim": lambda x, y, z: torch.cat([x, y[:, :2]], -1),
    "cat strided": lambda x, y, z: torch.cat([x.mT, y.mT], 1),
    "cat empty": lambda x, y, z: torch.cat([x.new_empty(0), y]),
    "cat dtypes": lambda x, y, z: torch.cat([x.double(), y]),
    "cat nothing": lambda x, y, z: torch.cat([]),
    "cat wrong sizes": lambda x, y, z: torch.cat([x, y[:, :2]]),
    "fill_": lambda x, y, z: x.clone().fill_(2.5),
    "fill_ strided": lambda x, y, z: x.clone()[:, ::2].fill_(True),
    "zero_": lambda x, y, z: x.clone().zero_(),
    "zero_ strided": lambda x, y, z: x.clone()[:, ::2].zero_(),
    "zeros": lambda x, y, z: torch.zeros(300, 400, device=x.device),
    "mixed": lambda x, y, z: x + y.double(),
    "mixed_": lambda x, y, z: x.clone().mul_(y.double()),
    "mixed int": lambda x, y, z: x.to(torch.int64) / 2,
    "int_ by float": lambda x, y, z: x.to(torch.int64).mul_(y),
    "wrong size_": lambda x, y, z: x[:1].clone().add_(y),
    "itself": lambda x, y, z: torch.add(x, y, out=x),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64], ids=str)
@pytest.mark.parametrize("name", TERNARY)
def test_cases(name: str, dtype: torch.dtype) -> None:
    inputs = [sample((6, 9), dtype, seed) for seed in range(3)]
    ours = outcome(lambda: TERNARY[name](*(x.to(D) for x in inputs)))
    theirs = outcome(lambda: TERNARY[name](*(x.clone() for x in inputs)))
    if name == "cat nothing" or (isinstance(ours, tuple) and isinstance(theirs, tuple)):
        assert type(ours) is type(theirs)
        return
    same(ours, theirs)


def test_overlapping_memory_is_refused() -> None:
    x = torch.ones(5, device=D)
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.add(x[:-1], x[:-1], out=x[1:])
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.ones(1, device=D).expand(3).add_(1.0)
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.exp(x[:-1], out=x[1:])


def test_wrong_devices_are_refused() -> None:
    x, cpu = torch.ones(3, device=D), torch.ones(3)
    for call in (
        lambda: x + cpu,
        lambda: cpu + x,
        lambda: x.mul_(cpu),
        lambda: cpu.mul_(x),
        lambda: torch.ones(()).mul_(x),
        lambda: torch.exp(x, out=cpu),
        lambda: torch.addcmul(x, x, cpu),
        lambda: torch.where(cpu > 0, x, x),
        lambda: torch.cat([x, cpu]),
        lambda: torch.sum(x, 0, out=torch.empty(())),
        lambda: torch.ops.aten.tanh_backward(x, torch.ones(())),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            call()


def test_gradients_and_versions() -> None:
    values = sample((4, 6), torch.float32)
    grads = []
    for device in (D, "cpu"):
        x = values.to(device).requires_grad_()
        y = (x.exp() * 0.1 + x.sigmoid() - x / 3.0).pow(2).mean(-1, keepdim=True)
        z = torch.cat([y, x.tanh(), torch.where(x > 0, x, 0.0)], -1).sum()
        z.backward()
        grads.append(x.grad.cpu())
    assert torch.equal(grads[0], grads[1])
    x = torch.ones(3, device=D)
    for change in (lambda: x.add_(1), lambda: x.zero_(), lambda: torch.exp(x, out=x)):
        version = x._version
        change()
        assert x._version == version + 1
    w = torch.ones(3, device=D, requires_grad=True)
    y = w.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_results_are_of_the_pool_and_counted() -> None:
    x = torch.ones(1000, device=D)
    calls = ruda_torch.execution_stats()["library_calls"]
    y = x + x
    assert ruda_torch._native.testing.is_pool_memory(y)
    assert ruda_torch.execution_stats()["library_calls"] == calls + 1


def test_lazy_negative_and_conjugate_views() -> None:
    z = torch.complex(sample((4,), torch.float32), sample((4,), torch.float32, seed=1))
    for call in (lambda t: t.conj() * t, lambda t: t.conj().imag.exp(), lambda t: t.conj() + 1):
        same(call(z.to(D)), call(z))


LONG = (
    [lambda x, y, name=name: getattr(torch, name)(x) for name in UNARY if name != "bitwise_not"]
    + [lambda x, y, name=name: getattr(torch, name)(x, y) for name in ["add", "sub", "mul", *PURE]]
    + [
        lambda x, y: torch.div(x, y),
        lambda x, y: torch.pow(x.abs(), y),
        lambda x, y: torch.pow(x, 3),
        lambda x, y: torch.nn.functional.silu(x),
        lambda x, y: torch.nn.functional.threshold(x, 0.5, -1.0),
        lambda x, y: torch.addcmul(x, y, y, value=0.5),
        lambda x, y: torch.addcdiv(x, y, y.abs() + 1, value=0.5),
        lambda x, y: torch.lerp(x, y.expand_as(x), 0.3),
        lambda x, y: torch.clamp(x, -0.5, 0.5),
        lambda x, y: torch.clamp(x, min=-0.5),
        lambda x, y: torch.clamp(x, max=0.5),
        lambda x, y: x.clone().fill_(1.5),
        lambda x, y: x.clone().mul_(y),
        lambda x, y: x.clone(memory_format=torch.contiguous_format),
        lambda x, y: torch.empty_like(x).copy_(y),
        lambda x, y: x.to(torch.float64),
        lambda x, y: x.to(torch.bfloat16).to(torch.float16),
        lambda x, y: x.to(torch.int32) | 3,
        lambda x, y: x > 0.1,
        lambda x, y: torch.nn.functional.pad(x, (3, 5)),
    ]
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", ["contiguous", "transposed", "strided", "rows", "broadcast"])
@pytest.mark.parametrize("threads", [1, 3])
def test_long_tensors_in_parts(threads: int, form: str, dtype: torch.dtype) -> None:
    """Parts on the pool are the CPU's one thread bit for bit."""
    before = torch.get_num_threads()

    def operands(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = sample((401, 1003), dtype).to(device)
        y = sample((401, 1003), dtype, seed=1).to(device)
        if form == "transposed":
            return x.mT, y.mT
        if form == "strided":
            return x[:, ::2], y[:, 1::2].contiguous()[:, :1].expand(401, 502)
        if form == "rows":
            return x[::2, 1:], y[1::2].contiguous()[:1, 1:]
        return (x, y[:, :1]) if form == "broadcast" else (x, y)

    try:
        for index, operation in enumerate(LONG):
            torch.set_num_threads(1)
            wanted = operation(*operands("cpu"))
            torch.set_num_threads(threads)
            got = operation(*operands(D))
            assert torch.equal(got.cpu().nan_to_num(7.0), wanted.nan_to_num(7.0)), index
            assert got.stride() == wanted.stride()
    finally:
        torch.set_num_threads(before)

"""torch.autocast("ruda"): the dtype each operator of PyTorch's own lists runs in."""

from __future__ import annotations

import warnings

import pytest
import torch

D = "ruda"


def lists():
    from torch.testing._internal.autocast_test_lists import AutocastTestLists

    return AutocastTestLists(torch.device(D))


def cases(attribute: str, module) -> list:
    names = [entry[0] for entry in getattr(lists(), attribute)]
    return [
        pytest.param(i, module, id=f"{name}-{i}")
        for i, name in enumerate(names)
        # The equation's operands do not fit it; the result has no dtype.
        if not name.startswith("cudnn_") and name not in ("einsum", "equal")
    ]


def called(name: str, module, args: tuple, options: dict):
    """The function of that name, or the tensor's method."""
    function = getattr(module, name, None)
    if function is None:
        return getattr(args[0], name)(*args[1:], **options)
    return function(*args, **options)


def dtypes_of(result) -> set:
    if isinstance(result, torch.Tensor):
        return {result.dtype}
    return {dtype for item in result for dtype in dtypes_of(item)}


def run(
    attribute: str, index: int, module, dtype: torch.dtype, expected: torch.dtype | None
) -> None:
    entry = getattr(lists(), attribute)[index]
    name, args = entry[0], entry[1]
    options = entry[2] if len(entry) > 2 and isinstance(entry[2], dict) else {}
    if len(entry) > 2 and isinstance(entry[2], (torch.dtype, type)):
        expected = entry[2]
    with warnings.catch_warnings(), torch.autocast(D, dtype=dtype):
        warnings.simplefilter("ignore")
        result = called(name, module, args, options)
    assert dtypes_of(result) == {expected}, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("index", "module"),
    [*cases("torch_fp16", torch)],
)
def test_lower_precision(index: int, module, dtype: torch.dtype) -> None:
    run("torch_fp16", index, module, dtype, dtype)


@pytest.mark.parametrize(("index", "module"), cases("nn_fp16", torch._C._nn))
def test_lower_precision_nn(index: int, module) -> None:
    run("nn_fp16", index, module, torch.bfloat16, torch.bfloat16)


@pytest.mark.parametrize(("index", "module"), cases("torch_fp32", torch))
def test_float32(index: int, module) -> None:
    run("torch_fp32", index, module, torch.bfloat16, torch.float32)


@pytest.mark.parametrize(("index", "module"), cases("nn_fp32", torch._C._nn))
def test_float32_nn(index: int, module) -> None:
    run("nn_fp32", index, module, torch.bfloat16, torch.float32)


@pytest.mark.parametrize(("index", "module"), cases("torch_need_autocast_promote", torch))
def test_promotion(index: int, module) -> None:
    # The lists hold float16 tensors, which PyTorch promotes in a float16 region only.
    run("torch_need_autocast_promote", index, module, torch.float16, torch.float32)


@pytest.mark.parametrize(("index", "module"), cases("torch_expect_builtin_promote", torch))
def test_builtin_promotion(index: int, module) -> None:
    run("torch_expect_builtin_promote", index, module, torch.bfloat16, None)


def test_einsum() -> None:
    x = torch.ones(2, 3, 4, 5, device=D)
    with torch.autocast(D):
        assert torch.einsum("bkhd,bqhd->bqkh", x, x).dtype == torch.bfloat16


def test_banned_loss_says_what_to_use() -> None:
    p = torch.full((3,), 0.5, device=D)
    with torch.autocast(D), pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
        torch.nn.functional.binary_cross_entropy(p, p)
    torch.nn.functional.binary_cross_entropy(p, p)


def test_default_dtype_is_bfloat16() -> None:
    assert torch.get_autocast_dtype(D) == torch.bfloat16
    x = torch.ones(2, 2, device=D)
    with torch.autocast(D):
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast(D, enabled=False):
            assert (x @ x).dtype == torch.float32
        with torch.autocast(D, dtype=torch.float16):
            assert (x @ x).dtype == torch.float16
        assert (x @ x).dtype == torch.bfloat16
    assert (x @ x).dtype == torch.float32


def test_unsupported_dtype_turns_autocast_off_with_a_warning() -> None:
    x = torch.ones(2, 2, device=D)
    with pytest.warns(UserWarning, match="not supported"), torch.autocast(D, dtype=torch.int32):
        assert (x @ x).dtype == torch.float32


def test_weights_are_cast_once() -> None:
    linear = torch.nn.Linear(64, 64, device=D)
    x = torch.ones(2, 64, device=D, dtype=torch.bfloat16)
    with torch.autocast(D):
        linear(x)
        before = torch.ruda.memory_allocated()
        y = linear(x)
        del y
        assert torch.ruda.memory_allocated() == before
        torch.clear_autocast_cache()
        assert torch.ruda.memory_allocated() < before


def test_backward_gives_float32_gradients() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4)
    ).to(D)
    x, target = torch.randn(5, 8, device=D), torch.tensor([0, 1, 2, 3, 0], device=D)
    plain = torch.nn.functional.cross_entropy(model(x), target)
    with torch.autocast(D):
        loss = torch.nn.functional.cross_entropy(model(x), target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, plain, rtol=2e-2, atol=1e-2)
    for ours, theirs in zip(
        torch.autograd.grad(loss, list(model.parameters())),
        torch.autograd.grad(plain, list(model.parameters())),
        strict=True,
    ):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=3e-3)
        assert (ours - theirs).norm() <= 1e-2 * theirs.norm()


def test_custom_functions() -> None:
    seen = {}

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=D)
        def forward(ctx, a, b):
            seen["forward"] = torch.is_autocast_enabled(D), a.dtype
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type=D)
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            seen["backward"] = torch.is_autocast_enabled(D)
            return grad @ b.t().to(grad.dtype), a.t().to(grad.dtype) @ grad

    class Cast(Product):
        forward = staticmethod(
            torch.amp.custom_fwd(device_type=D, cast_inputs=torch.float32)(
                lambda ctx, a, b: (
                    seen.update(cast=(torch.is_autocast_enabled(D), a.dtype)),
                    ctx.save_for_backward(a, b),
                    a @ b,
                )[-1]
            )
        )

    a, b = (torch.ones(2, 2, device=D, requires_grad=True) for _ in range(2))
    with torch.autocast(D):
        out = Product.apply(a, b)
        low = Cast.apply(a.bfloat16(), b)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16 and low.dtype == torch.float32
    assert seen["forward"] == (True, torch.float32)
    assert seen["backward"] is True
    assert seen["cast"] == (False, torch.float32)
    assert a.grad.tolist() == [[2, 2], [2, 2]]


def test_grad_scaler() -> None:
    weight = torch.nn.Parameter(torch.ones(3, device=D))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler(D, init_scale=8.0, growth_interval=1)
    scaler.scale((weight * 2).sum()).backward()
    assert weight.grad.tolist() == [16, 16, 16]
    scaler.unscale_(optimizer)
    assert weight.grad.tolist() == [2, 2, 2]
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0, 0, 0] and scaler.get_scale() == 16.0
    weight.grad = torch.tensor([1.0, torch.inf, 1.0], device=D)
    scaler.scale(torch.ones((), device=D))
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0, 0, 0] and scaler.get_scale() == 8.0

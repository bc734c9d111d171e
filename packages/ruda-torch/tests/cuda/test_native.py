"""Products, softmax, losses and the native training operators: the cuda target's results are the
host target's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from .host_process import on_host
from .native_cases import CASES, FLOATING, D, run

TOLERANCE = {
    torch.float32: 1e-5,
    torch.float64: 1e-6,  # the norm of float32 squares
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


@pytest.fixture(scope="module")
def host() -> dict[str, list[Tensor]]:
    return on_host(Path(__file__).with_name("native_cases.py"), "compute")


@pytest.mark.parametrize("dtype", list(FLOATING))
@pytest.mark.parametrize("name", list(CASES))
def test_results_are_the_hosts(host, name: str, dtype: str) -> None:
    got, wanted = run(name, dtype), host[f"{name}-{dtype}"]
    assert len(got) == len(wanted)
    for here, there in zip(got, wanted):
        assert (here.dtype, here.shape) == (there.dtype, there.shape)
        if not here.is_floating_point():
            assert torch.equal(here, there)
            continue
        # of a result that was summed from larger ones, in the dtype of the inputs
        tolerance = max(TOLERANCE[here.dtype], TOLERANCE[FLOATING[dtype]])
        finite = there[there.isfinite()].double().abs()
        size = finite.max().item() if finite.numel() else 0.0
        torch.testing.assert_close(
            here, there, rtol=tolerance, atol=tolerance * size, equal_nan=True
        )


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype).to(D)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ones(3, 2) @ ones(4, 5), RuntimeError, r"\(3x2 and 4x5\)"),
        (lambda: torch.bmm(ones(2, 3, 4), ones(3, 4, 5)), RuntimeError, "batch"),
        (lambda: torch.mv(ones(2, 3), ones(2)), RuntimeError, "size mismatch"),
        (lambda: torch.dot(ones(2), ones(3)), RuntimeError, "size mismatch"),
        (lambda: torch.mm(ones(2, 2), ones(2, 2).half()), RuntimeError, "same dtype"),
        (lambda: torch.mm(ones(2, 2), torch.ones(2, 2)), RuntimeError, "same device"),
        (lambda: ones(2, 2).addmm_(ones(3, 2), ones(2, 2)), RuntimeError, "size|shape"),
        (lambda: torch.softmax(ones(2, 2), 2), IndexError, "Dimension out of range"),
        (
            lambda: F.cross_entropy(ones(3, 4), torch.tensor([0, 4, 1]).to(D)),
            IndexError,
            "Target 4 is out of bounds",
        ),
        (
            lambda: F.cross_entropy(ones(3, 4), torch.tensor([0, 1]).to(D)),
            ValueError,
            "batch_size",
        ),
        (lambda: F.layer_norm(ones(2, 3), (4,)), RuntimeError, "normalized_shape"),
    ],
)
def test_errors_are_those_of_the_host(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: ones(2, 2, dtype=torch.float64) @ ones(2, 2, dtype=torch.float64),
        lambda: ones(2, 2, dtype=torch.int64) @ ones(2, 2, dtype=torch.int64),
        lambda: torch.softmax(ones(2, 2, dtype=torch.float64), 1),
        lambda: F.layer_norm(ones(2, 2, dtype=torch.float64), (2,)),
    ],
)
def test_dtypes_without_kernels_are_refused(call) -> None:
    with pytest.raises(NotImplementedError, match="target cuda"):
        call()


def test_products_into_given_tensors() -> None:
    a, b = ones(3, 4), ones(4, 5)
    out = torch.empty(0, device=D)
    assert torch.equal(torch.mm(a, b, out=out).cpu(), torch.full((3, 5), 4.0))
    assert out.shape == (3, 5)
    columns = torch.empty(5, 3, device=D).t()
    torch.mm(a, b, out=columns)
    assert torch.equal(columns.cpu(), torch.full((3, 5), 4.0))
    square = ones(4, 4)
    torch.mm(square, square, out=square)  # the operands are read before the result is written
    assert torch.equal(square.cpu(), torch.full((4, 4), 4.0))
    total = ones(3, 5)
    total.addmm_(a, b, beta=2, alpha=0.5)
    assert torch.equal(total.cpu(), torch.full((3, 5), 4.0))
    negative = torch._neg_view(a) @ b
    assert torch.equal(negative.cpu(), torch.full((3, 5), -4.0))

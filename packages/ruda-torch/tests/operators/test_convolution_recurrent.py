"""Convolutions and recurrent cells: values and gradients against float64 on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from .support import check, normal

D = "ruda"

CONVOLUTIONS = {
    "conv1d": (F.conv1d, (2, 4, 9), (6, 4, 3), {"padding": 1}),
    "conv2d": (F.conv2d, (2, 4, 8, 7), (6, 4, 3, 3), {"stride": 2, "padding": (1, 0)}),
    "conv2d dilated": (F.conv2d, (1, 3, 9, 9), (5, 3, 3, 3), {"dilation": 2}),
    "conv2d groups": (F.conv2d, (2, 4, 6, 6), (8, 2, 3, 3), {"groups": 2}),
    "conv2d depthwise": (F.conv2d, (2, 4, 6, 6), (4, 1, 3, 3), {"groups": 4}),
    "conv3d": (F.conv3d, (1, 2, 5, 5, 5), (3, 2, 2, 2, 2), {}),
    "transposed 1d": (F.conv_transpose1d, (2, 4, 5), (4, 3, 3), {"stride": 2}),
    "transposed 2d": (
        F.conv_transpose2d, (2, 4, 5, 5), (4, 3, 3, 3),
        {"stride": 2, "padding": 1, "output_padding": 1},
    ),
    "transposed groups": (F.conv_transpose2d, (2, 4, 5, 5), (4, 3, 2, 2), {"groups": 2}),
    "unbatched": (F.conv2d, (4, 6, 6), (3, 4, 3, 3), {}),
}  # fmt: skip


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, bias: bool) -> None:
    function, x_shape, w_shape, options = CONVOLUTIONS[name]
    inputs = [normal(*x_shape, seed=1), normal(*w_shape, seed=2)]
    if bias:
        transposed = "transposed" in name
        channels = w_shape[1] * options.get("groups", 1) if transposed else w_shape[0]
        inputs.append(normal(channels, seed=3))
    leaves = [t.to(D).requires_grad_() for t in inputs]
    twins = [t.double().requires_grad_() for t in inputs]
    out, wanted = function(*leaves, **options), function(*twins, **options)
    check(out, wanted)
    grad = normal(*wanted.shape, seed=4)
    for ours, theirs in zip(
        torch.autograd.grad(out, leaves, grad.to(D)),
        torch.autograd.grad(wanted, twins, grad.double()),
        strict=True,
    ):
        check(ours, theirs, long=True)


def test_only_the_wanted_gradients() -> None:
    x, w = normal(1, 2, 5, 5).to(D), normal(3, 2, 3, 3).to(D).requires_grad_()
    (grad,) = torch.autograd.grad(F.conv2d(x, w).sum(), w)
    twin = w.detach().cpu().double().requires_grad_()
    check(grad, torch.autograd.grad(F.conv2d(x.cpu().double(), twin).sum(), twin)[0], long=True)


def test_convolution_errors_are_torchs() -> None:
    with pytest.raises(RuntimeError, match="to have 3 channels"):
        F.conv2d(torch.ones(1, 2, 5, 5, device=D), torch.ones(1, 3, 3, 3, device=D))


def test_convolution_result_is_counted_memory() -> None:
    x, w = torch.ones(1, 2, 64, 64, device=D), torch.ones(4, 2, 3, 3, device=D)
    before = torch.ruda.memory_allocated()
    y = F.conv2d(x, w)
    assert torch.ruda.memory_allocated() - before >= y.nbytes


CELLS = {
    "LSTM": lambda: torch.nn.LSTM(5, 6, num_layers=2, batch_first=True),
    "LSTM without bias": lambda: torch.nn.LSTM(5, 6, bias=False),
    "LSTM bidirectional": lambda: torch.nn.LSTM(5, 6, bidirectional=True),
    "LSTM projected": lambda: torch.nn.LSTM(5, 6, proj_size=3),
    "GRU": lambda: torch.nn.GRU(5, 6, num_layers=2),
    "GRU without bias": lambda: torch.nn.GRU(5, 6, bias=False, bidirectional=True),
    "RNN": lambda: torch.nn.RNN(5, 6, nonlinearity="relu"),
    "LSTMCell": lambda: torch.nn.LSTMCell(5, 6),
    "GRUCell": lambda: torch.nn.GRUCell(5, 6),
}


@pytest.mark.parametrize("name", CELLS)
def test_recurrent(name: str) -> None:
    torch.manual_seed(0)
    module = CELLS[name]()
    twin = copy.deepcopy(module).double()
    module.to(D)
    x = normal(3, 5, seed=1) if "Cell" in name else normal(4, 3, 5, seed=1)
    leaf, other = x.to(D).requires_grad_(), x.double().requires_grad_()

    def flat(result):
        return (
            [result] if isinstance(result, torch.Tensor) else [t for r in result for t in flat(r)]
        )

    ours, theirs = flat(module(leaf)), flat(twin(other))
    for one, wanted in zip(ours, theirs, strict=True):
        check(one, wanted)
    grads = [normal(*t.shape, seed=i) for i, t in enumerate(theirs)]
    inputs = zip(
        torch.autograd.grad(ours, [leaf, *module.parameters()], [g.to(D) for g in grads]),
        torch.autograd.grad(theirs, [other, *twin.parameters()], [g.double() for g in grads]),
        strict=True,
    )
    for one, wanted in inputs:
        check(one, wanted, long=True)


def test_packed_sequences() -> None:
    torch.manual_seed(0)
    module = torch.nn.LSTM(5, 6, batch_first=True)
    twin = copy.deepcopy(module).double()
    module.to(D)
    x, lengths = normal(3, 4, 5), torch.tensor([4, 2, 1])
    pack, unpack = torch.nn.utils.rnn.pack_padded_sequence, torch.nn.utils.rnn.pad_packed_sequence
    ours, sizes = unpack(module(pack(x.to(D), lengths, batch_first=True))[0], batch_first=True)
    theirs, _ = unpack(twin(pack(x.double(), lengths, batch_first=True))[0], batch_first=True)
    check(ours, theirs)
    assert sizes.tolist() == [4, 2, 1]


def test_second_derivative_of_an_lstm_cell() -> None:
    torch.manual_seed(0)
    cell = torch.nn.LSTMCell(3, 4)
    twin = copy.deepcopy(cell).double()
    cell.to(D)
    results = []
    for module, x in ((cell, normal(2, 3).to(D)), (twin, normal(2, 3).double())):
        x.requires_grad_()
        (first,) = torch.autograd.grad(module(x)[0].sum(), x, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), x)[0])
    check(results[0], results[1], long=True)


def test_cell_on_mixed_devices() -> None:
    cell = torch.nn.LSTMCell(3, 4).to(D)
    with pytest.raises(RuntimeError, match="device"):
        cell(torch.ones(2, 3, device=D), (torch.ones(2, 4), torch.ones(2, 4)))

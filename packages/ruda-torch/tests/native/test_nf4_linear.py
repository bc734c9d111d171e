"""ruda_torch.nf4_linear against float64 on the decoded weight, with F.linear as peer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ruda_blas
import ruda_torch
from ruda_runtime import Tensor as RudaTensor

from .support import DTYPES, check, normal, on_ruda, values

OUT, IN, BLOCK = 50, 96, 64


def quantized() -> tuple[dict[str, Tensor], Tensor]:
    """The operator's frozen arguments on ruda, and the weight they decode to (float32, CPU)."""
    weight = normal(OUT, IN, dtype=torch.float32, seed=42)
    packed, scales = ruda_blas.nf4.quantize(RudaTensor.from_numpy(weight.numpy()), BLOCK)
    dense = ruda_blas.nf4.dequantize(packed, scales, None, ruda_blas.nf4.Nf4Layout(OUT, IN, BLOCK))
    arrays = {
        "packed": packed.numpy(),
        "scales": scales.numpy(),
        "codebook": np.asarray(ruda_blas.nf4.CODEBOOK),
    }
    frozen = {key: torch.from_numpy(np.array(array)).to("ruda") for key, array in arrays.items()}
    return frozen, torch.from_numpy(np.array(dense.numpy()))


SIZES = {"out_features": OUT, "in_features": IN, "block_size": BLOCK, "tile_rows": 16}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [(), (1,), (5,), (2, 3, 11)])
def test_values_and_gradient(rows: tuple[int, ...], dtype: torch.dtype) -> None:
    frozen, dense = quantized()
    x, bias = normal(*rows, IN, dtype=dtype, seed=1), normal(OUT, dtype=dtype, seed=2)
    grad = normal(*rows, OUT, dtype=dtype, seed=3)
    device_x = on_ruda(x)
    y = ruda_torch.nf4_linear(device_x, **frozen, bias=bias.to("ruda"), **SIZES)
    y.backward(grad.to("ruda"))
    peer_x = x.clone().requires_grad_()
    peer = F.linear(peer_x, dense.to(dtype), bias)
    peer.backward(grad)
    weight = dense.double().numpy()
    check(y, values(x) @ weight.T + values(bias), dtype, peer=peer, name="y")
    check(device_x.grad, values(grad) @ weight, dtype, peer=peer_x.grad, name="dx")


def test_no_bias_no_rows_and_strides() -> None:
    frozen, dense = quantized()
    x = normal(IN, 6, dtype=torch.float32, seed=1).t()
    y = ruda_torch.nf4_linear(on_ruda(x), **frozen, **SIZES)
    check(y, values(x) @ dense.double().numpy().T, torch.float32)
    empty = on_ruda(torch.empty(2, 0, IN))
    y = ruda_torch.nf4_linear(empty, **frozen, **SIZES)
    assert y.shape == (2, 0, OUT)
    y.sum().backward()
    assert empty.grad.shape == (2, 0, IN)


def test_activation_is_not_kept_for_backward() -> None:
    """Only the frozen weight is saved: the input's gradient does not depend on the input."""
    frozen, _ = quantized()
    x = on_ruda(normal(3, IN, dtype=torch.float32, seed=1))
    y = ruda_torch.nf4_linear(x, **frozen, **SIZES)
    with torch.no_grad():
        x.zero_()  # would raise in backward if x had been saved
    y.sum().backward()
    assert x.grad.abs().sum().item() > 0


def test_trainable_bias_or_scales_are_refused() -> None:
    frozen, _ = quantized()
    x = on_ruda(normal(3, IN, dtype=torch.float32, seed=1))
    bias = torch.zeros(OUT, device="ruda", requires_grad=True)
    with pytest.raises(NotImplementedError, match="requires a gradient, wanted frozen ones"):
        ruda_torch.nf4_linear(x, **frozen, bias=bias, **SIZES)
    with torch.no_grad():
        ruda_torch.nf4_linear(x, **frozen, bias=bias, **SIZES)
    trainable = {**frozen, "scales": frozen["scales"].clone().requires_grad_()}
    with pytest.raises(NotImplementedError, match="requires a gradient"):
        ruda_torch.nf4_linear(x, **trainable, **SIZES)


def test_errors() -> None:
    frozen, _ = quantized()
    with pytest.raises(ValueError, match=rf"x: got shape \[3, 5\], wanted \[\.\.\., {IN}\]"):
        ruda_torch.nf4_linear(torch.ones(3, 5, device="ruda"), **frozen, **SIZES)
    x = torch.ones(3, IN, device="ruda")
    with pytest.raises(ValueError, match="packed"):
        ruda_torch.nf4_linear(x, **{**frozen, "packed": frozen["packed"][:-1]}, **SIZES)
    with pytest.raises(RuntimeError, match="same device: got packed on cpu"):
        ruda_torch.nf4_linear(x, **{**frozen, "packed": frozen["packed"].cpu()}, **SIZES)

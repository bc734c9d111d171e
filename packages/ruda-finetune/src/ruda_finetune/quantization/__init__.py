"""NF4 weights: packing, the linear layer over packed weights, and conversion of a model."""

from __future__ import annotations

from .. import _device as _device
from .convert import quantize_nf4
from .linear import NF4Linear
from .pack import pack_nf4

__all__ = ["NF4Linear", "pack_nf4", "quantize_nf4"]

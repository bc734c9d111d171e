"""Normalisation, gated activation, cross entropy and optimiser kernels over RUDA tensors.

Every function takes and returns ``ruda_runtime.Tensor``. Storage is float32, float16 or bfloat16,
arithmetic float32 with one rounding at the end; results do not depend on the number of threads.
Importing this package registers its kernels with ruda-runtime and starts no thread.
"""

from __future__ import annotations

from pathlib import Path

from ruda_runtime import check_abi

from ._abi import PROVIDES, REQUIRES
from ._version import __version__

# The packages below come first: the native module itself can only say that something is wrong.
check_abi("ruda-dnn", __version__, PROVIDES, REQUIRES)

from . import _native  # noqa: E402

check_abi("ruda-dnn", __version__, PROVIDES, REQUIRES, _native.abi_version)

from .activation import silu_mul, silu_mul_backward  # noqa: E402
from .attention import (  # noqa: E402
    attention,
    attention_backward,
    attention_with_stats,
    varlen_attention,
    varlen_attention_backward,
    varlen_attention_with_stats,
)
from .errors import (  # noqa: E402
    ActivationError,
    AttentionError,
    DnnError,
    LossError,
    NormalizationError,
    OptimizerError,
    RotaryError,
    SoftmaxError,
)
from .loss import LinearCrossEntropy, linear_cross_entropy  # noqa: E402
from .normalization import (  # noqa: E402
    layer_norm,
    layer_norm_backward,
    layer_norm_with_stats,
    rms_norm,
    rms_norm_backward,
    rms_norm_backward_select,
    rms_norm_with_stats,
)
from .optim import adamw_step, gradient_norm, unscale_gradients  # noqa: E402
from .rotary import rotary, rotary_backward  # noqa: E402
from .softmax import (  # noqa: E402
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
)


def get_include() -> str:
    """The folder of the C++ header ``<ruda/dnn.h>``."""
    return str(Path(__file__).resolve().parent / "include")


__all__ = [
    "__version__",
    "get_include",
    # normalization
    "rms_norm", "rms_norm_with_stats", "rms_norm_backward", "rms_norm_backward_select",
    "layer_norm", "layer_norm_with_stats", "layer_norm_backward",
    # softmax
    "softmax", "softmax_backward", "log_softmax", "log_softmax_backward",
    # attention
    "attention", "attention_with_stats", "attention_backward",
    "varlen_attention", "varlen_attention_with_stats", "varlen_attention_backward",
    # activation
    "silu_mul", "silu_mul_backward",
    # loss
    "LinearCrossEntropy", "linear_cross_entropy",
    # rotary
    "rotary", "rotary_backward",
    # optim
    "adamw_step", "unscale_gradients", "gradient_norm",
    # errors
    "DnnError", "NormalizationError", "ActivationError", "AttentionError", "LossError",
    "OptimizerError", "RotaryError", "SoftmaxError",
]  # fmt: skip

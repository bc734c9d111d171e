from collections.abc import Sequence

from ruda_runtime import Tensor

abi_version: int

def rms_norm_forward(
    x: Tensor, weight: Tensor | None, y: Tensor, rstd: Tensor | None, epsilon: float
) -> None: ...
def rms_norm_backward(
    x: Tensor,
    weight: Tensor | None,
    grad: Tensor,
    rstd: Tensor,
    dx: Tensor | None,
    dweight: Tensor | None,
    parts: int,
) -> None: ...
def layer_norm_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    y: Tensor,
    mean: Tensor | None,
    rstd: Tensor | None,
    epsilon: float,
) -> None: ...
def layer_norm_backward(
    x: Tensor,
    weight: Tensor | None,
    grad: Tensor,
    mean: Tensor,
    rstd: Tensor,
    dx: Tensor | None,
    dweight: Tensor | None,
    dbias: Tensor | None,
    parts: int,
) -> None: ...
def softmax_forward(x: Tensor, y: Tensor, axis: int, logarithm: bool) -> None: ...
def softmax_backward(grad: Tensor, y: Tensor, dx: Tensor, axis: int, logarithm: bool) -> None: ...
def silu_mul_forward(gate: Tensor, up: Tensor, out: Tensor) -> None: ...
def silu_mul_backward(
    gate: Tensor, up: Tensor, grad: Tensor, dgate: Tensor | None, dup: Tensor | None
) -> None: ...
def linear_cross_entropy(
    hidden: Tensor,
    head: Tensor,
    bias: Tensor | None,
    target: Tensor,
    loss: Tensor,
    count: Tensor,
    dhidden: Tensor | None,
    dhead: Tensor | None,
    dbias: Tensor | None,
    token_chunk: int,
    ignore_index: int,
) -> None: ...
def rotary_forward(x: Tensor, cos: Tensor, sin: Tensor, y: Tensor) -> None: ...
def rotary_backward(grad: Tensor, cos: Tensor, sin: Tensor, dx: Tensor) -> None: ...
def adamw_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    masters: Sequence[Tensor | None],
    first_moments: Sequence[Tensor],
    second_moments: Sequence[Tensor],
    step: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    gradient_scale: float,
) -> None: ...
def unscale_gradients(gradients: Sequence[Tensor], scale: float) -> bool: ...
def gradient_norm(gradients: Sequence[Tensor], scale: float) -> tuple[float, bool]: ...
def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    out: Tensor,
    lse: Tensor | None,
    scale: float,
    window_left: int,
    window_right: int,
    bottom_right: bool,
) -> None: ...
def attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    scale: float,
    window_left: int,
    window_right: int,
    bottom_right: bool,
) -> None: ...

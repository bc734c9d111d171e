from ruda_runtime import Tensor

abi_version: int
nf4_codebook: tuple[float, ...]

def library_description() -> str: ...
def choose_engine(engine: int) -> None: ...
def gemm_matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    out: Tensor,
    alpha: float,
    beta: float,
    strategy: int,
) -> None: ...
def gemm_product(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    out: Tensor,
    alpha: float,
    beta: float,
    strategy: int,
) -> None: ...
def nf4_quantize(weight: Tensor, packed: Tensor, scales: Tensor, block_size: int) -> None: ...
def nf4_dequantize(
    packed: Tensor, scales: Tensor, codebook: Tensor, weight: Tensor, block_size: int
) -> None: ...
def nf4_product(
    name: str,
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    codebook: Tensor,
    bias: Tensor | None,
    y: Tensor,
    out_features: int,
    in_features: int,
    block_size: int,
    tile_rows: int,
    update_x: Tensor | None,
    update_w: Tensor | None,
) -> None: ...

/* Argument structs of the operations that ruda-blas registers with ruda-runtime.
 * Every output is allocated by the caller. `[in]`/`[out]` say who writes. */
#ifndef RUDA_BLAS_H
#define RUDA_BLAS_H

#include <ruda/abi.h>

namespace ruda {

/* "gemm.matmul" and "gemm.product": out[..., M, N] = alpha * a[..., M, K] @ b[..., K, N] + beta * out (+ bias[N]).
 * Any strides (a transposed operand is not copied), broadcast batch dimensions, float32
 * accumulation, one rounding. a and b share a dtype in "gemm.matmul"; in "gemm.product" they may differ,
 * and multiply in float32 then. out and bias may have any of the three. beta == 0 never reads `out`;
 * alpha == 0 leaves the product out, as in BLAS. `bias` may be null. Rank 2 to 8. `out` must not overlap
 * an operand. */
enum gemm_strategy {
  GEMM_AUTO = 0,    /* chosen by shapes, strides, dtypes and the processor */
  GEMM_LIBRARY = 1, /* the library (OpenBLAS); unsupported on cuda */
  GEMM_TILED = 2    /* our own product of packed panels; on cuda our kernels, as with GEMM_AUTO */
};

RUDA_ARGUMENTS(gemm_args,
  const ruda_view* a;
  const ruda_view* b;
  const ruda_view* bias;
  const ruda_view* out;
  double alpha;
  double beta;
  int64_t strategy;)

/* "nf4.quantize": weight[out, in] -> packed uint8[ceil(out*in/2)], scales float32[blocks].
 * Two codes a byte, the first value in the high nibble; blocks run over the flat row-major weight.
 * Any strides of `weight`: the result is that of its contiguous copy. NaN and infinity are refused
 * before anything is written. block_size is positive and even. */
RUDA_ARGUMENTS(nf4_quantize_args,
  const ruda_view* weight;
  const ruda_view* packed;
  const ruda_view* scales;
  int64_t block_size;)

/* "nf4.dequantize": the dense weight[out, in] in its own dtype (float32, float16, bfloat16).
 * `codebook` is float32[16]; `packed` and `scales` are contiguous, of any shape. */
RUDA_ARGUMENTS(nf4_dequantize_args,
  const ruda_view* packed;
  const ruda_view* scales;
  const ruda_view* codebook;
  const ruda_view* weight;
  int64_t block_size;)

/* "nf4.matmul": y[M, out] = x[M, in] @ W[out, in]^T (+ bias[out]).
 * "nf4.input_grad": y[M, in] = x[M, out] @ W[out, in] (x is the output's gradient; no bias).
 * With update_x[M, r] and update_w[r, N] (both or neither; N is y's width) their product is added: the
 * low-rank update of LoRA, summed in float32 together with the rest and rounded once.
 * W is never materialised: decoded parts take at most threads * tile_rows * in_features * 4 bytes of
 * scratch, whatever the dtypes; float32 copies of x at most 10 MB, sums 400 KB a thread.
 * x, y, update_x and update_w may have any strides and different dtypes. */
RUDA_ARGUMENTS(nf4_matmul_args,
  const ruda_view* x;
  const ruda_view* packed;
  const ruda_view* scales;
  const ruda_view* codebook;
  const ruda_view* bias;
  const ruda_view* y;
  int64_t out_features;
  int64_t in_features;
  int64_t block_size;
  int64_t tile_rows;
  const ruda_view* update_x;
  const ruda_view* update_w;)

} /* namespace ruda */

#endif /* RUDA_BLAS_H */

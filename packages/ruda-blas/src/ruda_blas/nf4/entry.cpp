/* "nf4.quantize", "nf4.dequantize": checks and launch. The products are in product.cpp. */
#include "../native/blocked.hpp"
#include "checks.hpp"
#include "device.hpp"

namespace ruda {
namespace {

constexpr int64_t part_values = 32768; /* about as many values as one part of a loop handles */

int32_t quantize(const void* raw, ruda_error* error) {
  const char* operation = "nf4.quantize";
  return guard(operation, error, [&]() -> int32_t {
    const auto& args = *static_cast<const nf4_quantize_args*>(raw);
    RUDA_TRY(check_weight(args.weight, operation, error));
    RUDA_TRY(check_block_size(args.block_size, operation, error));
    const int64_t rows = args.weight->sizes[0], cols = args.weight->sizes[1];
    RUDA_TRY(check_payload(args.packed, args.scales, rows, cols, args.block_size, operation, error));
    for (const ruda_view* out : {args.packed, args.scales})
      RUDA_TRY(check_no_overlap(*out, args.weight, operation, "weight", error));
    const int64_t count = rows * cols;
    if (count == 0) return RUDA_OK;
    if (on_device(*args.weight)) return nf4_quantize_cuda(args, operation, error);

    // All values are looked at before the first code is written: nothing is lost on an error.
    const blas::matrix weight = matrix_of(*args.weight);
    const auto find = RUDA_HOST(nf4_find_nonfinite);
    std::atomic<int64_t> bad{INT64_MAX};
    parallel_for(0, count, part_values, [&](int64_t begin, int64_t end, int32_t) {
      const int64_t found = find(weight, cols, begin, end);
      int64_t least = bad.load();
      while (found >= 0 && found < least && !bad.compare_exchange_weak(least, found)) {
      }
    });
    if (const int64_t at = bad.load(); at != INT64_MAX) {
      float value;
      RUDA_HOST(load_block)(weight.at(at / cols, at % cols), 1, 1, &value, 1);
      return fail_nonfinite(value, at, cols, operation, error);
    }

    const auto run = RUDA_HOST(nf4_quantize_blocks);
    parallel_for(0, blas::ceil_div(count, args.block_size), grain_for(args.block_size, part_values),
                 [&](int64_t begin, int64_t end, int32_t) {
      run(weight, cols, count, args.block_size, begin, end, data<uint8_t>(*args.packed),
          data<float>(*args.scales));
    });
    return RUDA_OK;
  });
}

int32_t dequantize(const void* raw, ruda_error* error) {
  const char* operation = "nf4.dequantize";
  return guard(operation, error, [&]() -> int32_t {
    const auto& args = *static_cast<const nf4_dequantize_args*>(raw);
    RUDA_TRY(check_weight(args.weight, operation, error));
    RUDA_TRY(check_result_memory(*args.weight, operation, error));
    blas::nf4_weight source{};
    RUDA_TRY(check_quantized(args.packed, args.scales, args.codebook, args.weight->sizes[0],
                             args.weight->sizes[1], args.block_size, operation, &source, error));
    for (const ruda_view* operand : {args.packed, args.scales, args.codebook})
      RUDA_TRY(check_no_overlap(*args.weight, operand, operation, "an operand", error));
    const int64_t count = source.rows * source.cols;
    if (count == 0) return RUDA_OK;
    if (on_device(*args.weight)) return nf4_dequantize_cuda(args, operation, error);
    const blas::matrix target = matrix_of(*args.weight);
    const auto decode = RUDA_HOST(nf4_decode_run);
    const auto store = RUDA_HOST(store_block);
    const bool dense = is_contiguous(*args.weight);
    parallel_for(0, count, part_values, [&](int64_t begin, int64_t end, int32_t) {
      if (dense && target.dtype == RUDA_FLOAT32) {
        decode(source, begin, end - begin, data<float>(*args.weight) + begin);
        return;
      }
      constexpr int64_t piece = 2048;
      float values[piece];
      for (int64_t at = begin; at < end;) {
        // Row by row where rows do not follow each other.
        const int64_t row = dense ? 0 : at / source.cols, col = at - row * source.cols;
        const int64_t row_rest = dense ? piece : source.cols - col;
        const int64_t part = std::min({piece, end - at, row_rest});
        decode(source, at, part, values);
        blas::matrix to = target;
        if (dense) to.col_stride = 1;
        store(values, part, 1, part, to.at(row, col), {});
        at += part;
      }
    });
    return RUDA_OK;
  });
}

}  // namespace

int32_t register_nf4_products(ruda_error* error);

int32_t register_nf4(ruda_error* error) {
  RUDA_TRY(register_kernel("nf4.quantize", "ruda-blas", nf4_quantize_args_layout, quantize, error));
  RUDA_TRY(register_kernel("nf4.dequantize", "ruda-blas", nf4_dequantize_args_layout, dequantize,
                           error));
  return register_nf4_products(error);
}

}  // namespace ruda

#include "checks.hpp"

namespace ruda {
namespace {

int32_t check_vector(const ruda_view* view, int32_t dtype, int64_t count, const char* meaning,
                     const char* operation, const char* name, ruda_error* error) {
  RUDA_TRY(check_target(view, operation, name, error));
  RUDA_TRY(check_dtype(view, {dtype}, operation, name, error));
  RUDA_CHECK(element_count(*view) == count, error, RUDA_ERROR_VALUE,
             "[%s] %s: got shape %s with %lld elements, wanted %lld (%s)", operation, name,
             shape_text(*view).c_str(), static_cast<long long>(element_count(*view)),
             static_cast<long long>(count), meaning);
  return check_contiguous(view, operation, name, error);
}

}  // namespace

int32_t check_weight(const ruda_view* weight, const char* operation, ruda_error* error) {
  RUDA_TRY(check_operand(weight, operation, "weight", error));
  RUDA_CHECK(weight->ndim == 2, error, RUDA_ERROR_VALUE,
             "[%s] weight: got shape %s, wanted [out_features, in_features]", operation,
             shape_text(*weight).c_str());
  return RUDA_OK;
}

int32_t check_block_size(int64_t block_size, const char* operation, ruda_error* error) {
  RUDA_CHECK(block_size > 0 && block_size % 2 == 0 && block_size <= (int64_t{1} << 40), error,
             RUDA_ERROR_VALUE, "[%s] block_size: got %lld, wanted a positive even number", operation,
             static_cast<long long>(block_size));
  return RUDA_OK;
}

int32_t check_payload(const ruda_view* packed, const ruda_view* scales, int64_t rows, int64_t cols,
                      int64_t block_size, const char* operation, ruda_error* error) {
  const int64_t count = rows * cols;
  RUDA_TRY(check_vector(packed, RUDA_UINT8, (count + 1) / 2, "two codes a byte", operation, "packed",
                        error));
  return check_vector(scales, RUDA_FLOAT32, (count + block_size - 1) / block_size,
                      "one a block of the flat weight", operation, "scales", error);
}

int32_t check_quantized(const ruda_view* packed, const ruda_view* scales, const ruda_view* codebook,
                        int64_t rows, int64_t cols, int64_t block_size, const char* operation,
                        blas::nf4_weight* weight, ruda_error* error) {
  RUDA_CHECK(rows >= 0 && cols >= 0 && (cols == 0 || rows <= INT64_MAX / 2 / cols), error,
             RUDA_ERROR_VALUE,
             "[%s] weight: got out_features %lld and in_features %lld, wanted sizes of a matrix",
             operation, static_cast<long long>(rows), static_cast<long long>(cols));
  RUDA_TRY(check_block_size(block_size, operation, error));
  RUDA_TRY(check_payload(packed, scales, rows, cols, block_size, operation, error));
  RUDA_TRY(check_vector(codebook, RUDA_FLOAT32, 16, "one a code", operation, "codebook", error));
  *weight = {data<const uint8_t>(*packed), data<const float>(*scales), data<const float>(*codebook),
             rows, cols, block_size};
  return RUDA_OK;
}

int32_t fail_nonfinite(float value, int64_t at, int64_t cols, const char* operation,
                       ruda_error* error) {
  return fail(error, RUDA_ERROR_VALUE,
              "[%s] weight: got %s at [%lld, %lld], wanted finite values; a scale cannot be taken "
              "from it",
              operation, value != value ? "NaN" : "infinity", static_cast<long long>(at / cols),
              static_cast<long long>(at % cols));
}

}  // namespace ruda

/* What the entries of this family ask of the host arithmetic. Rows are contiguous. */
#ifndef RUDA_DNN_NORMALIZATION_HOST_HPP
#define RUDA_DNN_NORMALIZATION_HOST_HPP

#include <cstdint>

#include <ruda/variants.hpp>

namespace ruda {

struct rms_forward_rows {
  const void* x;        // [rows, width]
  const float* weight;  // [width] or null
  void* y;              // [rows, width]
  float* rstd;          // [rows] or null
  int64_t width;
  double epsilon;
  int32_t dtype;
  bool streamed;        // y past the caches
};

struct rms_backward_rows {
  const void* x;        // [rows, width]
  const float* weight;  // [width] or null
  const void* grad;     // [rows, width]
  const float* rstd;    // [rows]
  void* dx;             // [rows, width] or null
  int64_t width;
  int32_t dtype;
  bool streamed;        // dx past the caches
};

struct layer_forward_rows {
  const void* x;        // [rows, width]
  const float* weight;  // [width] or null
  const float* bias;    // [width] or null
  void* y;              // [rows, width]
  float* mean;          // [rows] or null
  float* rstd;          // [rows] or null
  int64_t width;
  double epsilon;
  int32_t dtype;
  bool streamed;        // y past the caches
};

struct layer_backward_rows {
  const void* x;        // [rows, width]
  const float* weight;  // [width] or null
  const void* grad;     // [rows, width]
  const float* mean;    // [rows]
  const float* rstd;    // [rows]
  void* dx;             // [rows, width] or null
  int64_t width;
  int32_t dtype;
  bool streamed;        // dx past the caches
};

RUDA_HOST_VARIANTS(
    void rms_norm_forward(const rms_forward_rows& args, int64_t begin, int64_t end);
    /* Adds the rows' weight gradient to partial[width] where it is not null. */
    void rms_norm_backward(const rms_backward_rows& args, float* partial, int64_t begin,
                           int64_t end);
    void layer_norm_forward(const layer_forward_rows& args, int64_t begin, int64_t end);
    /* Adds the rows' weight and bias gradients to partial[2 * width] where it is not null. */
    void layer_norm_backward(const layer_backward_rows& args, float* partial, int64_t begin,
                             int64_t end);
    /* target[column] = sum over the parts in order, for columns begin..end; `stride` floats between
     * two parts. */
    void sum_partials(const float* partials, int64_t parts, int64_t stride, void* target,
                      int32_t dtype, int64_t begin, int64_t end);
    void widen_to_float(const void* source, int32_t dtype, float* target, int64_t count);)

}  // namespace ruda

#endif

/* What the linear cross entropy entry asks of the host arithmetic besides GEMM. */
#ifndef RUDA_DNN_LOSS_HOST_HPP
#define RUDA_DNN_LOSS_HOST_HPP

#include <cstdint>

#include <ruda/variants.hpp>

namespace ruda {

struct cross_entropy_rows {
  float* logits;         // [rows, classes]; overwritten by softmax - onehot when `gradient`
  const float* bias;     // [classes] or null, added to the logits first
  const int64_t* target; // [rows], each in 0..classes-1
  double* losses;        // [rows]
  int64_t classes;
  bool gradient;
};

RUDA_HOST_VARIANTS(
    /* target[i, :] = float(source[index[i], :]) for i in begin..end. */
    void gather_to_float(const void* source, int32_t dtype, const int64_t* index, int64_t width,
                         float* target, int64_t begin, int64_t end);
    void cross_entropy(const cross_entropy_rows& args, int64_t begin, int64_t end);
    /* sums[column] += sum over the rows in order, for columns begin..end. */
    void add_columns(const float* values, int64_t rows, int64_t width, float* sums, int64_t begin,
                     int64_t end);)

}  // namespace ruda

#endif

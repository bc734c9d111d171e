/* Which rows of logits exist at a time, and the error of a wrong target: the same on every target. */
#ifndef RUDA_DNN_LOSS_ROWS_HPP
#define RUDA_DNN_LOSS_ROWS_HPP

#include <algorithm>
#include <cstdint>

#include <ruda/entry.hpp>

namespace ruda {

constexpr int64_t logits_budget = int64_t{48} << 20;  // bytes of one chunk's logits by default

/* Rows of logits at a time: as asked, or equal parts within the budget. A short last part would read
 * the whole head for a few rows. */
inline int64_t chunk_rows(int64_t valid, int64_t classes, int64_t asked) {
  if (asked != 0) return std::min(valid, asked);
  const int64_t row_bytes = classes * static_cast<int64_t>(sizeof(float));
  const int64_t fitting = std::max<int64_t>(1, logits_budget / row_bytes);
  const int64_t parts = (valid + fitting - 1) / fitting;
  return (valid + parts - 1) / parts;
}

/* Fills the error of a target that is outside of the vocabulary. */
inline int32_t fail_target(int64_t row, int64_t target, int64_t classes, int64_t ignore_index,
                           ruda_error* error) {
  return fail(error, RUDA_ERROR_VALUE,
              "[linear_cross_entropy] target[%lld]: got %lld, wanted 0..%lld or ignore_index = %lld",
              static_cast<long long>(row), static_cast<long long>(target),
              static_cast<long long>(classes - 1), static_cast<long long>(ignore_index));
}

}  // namespace ruda

#endif

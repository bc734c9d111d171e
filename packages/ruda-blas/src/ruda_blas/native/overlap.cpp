/* Whether two views share memory: cheap tests that settle every layout a program really uses. */
#include <algorithm>
#include <numeric>

#include "entries.hpp"

namespace ruda {
namespace {

struct extent {
  intptr_t begin, end;  // bytes [begin, end)
};

extent extent_of(const ruda_view& view, int32_t skipped_dim = -1) {
  const int64_t item = item_size(view.dtype);
  intptr_t low = reinterpret_cast<intptr_t>(view.data);
  intptr_t high = low + item;
  for (int32_t d = 0; d < view.ndim; ++d) {
    if (d == skipped_dim) continue;
    const intptr_t reach = (view.sizes[d] - 1) * view.strides[d] * item;
    (reach < 0 ? low : high) += reach;
  }
  return {low, high};
}

int32_t widest_dim(const ruda_view& view) {
  int32_t widest = -1;
  for (int32_t d = 0; d < view.ndim; ++d)
    if (view.sizes[d] > 1 &&
        (widest < 0 || std::abs(view.strides[d]) > std::abs(view.strides[widest])))
      widest = d;
  return widest;
}

int64_t positive_remainder(intptr_t value, int64_t modulus) {
  return ((value % modulus) + modulus) % modulus;
}

/* Whether [0, a) and offset + [0, b) meet on a circle of `period` bytes. */
bool meet_on_circle(int64_t a, int64_t offset, int64_t b, int64_t period) {
  return a + b > period || offset < a || offset + b > period;
}

bool may_share(const ruda_view& a, const ruda_view& b) {
  if (element_count(a) == 0 || element_count(b) == 0) return false;
  const extent ea = extent_of(a), eb = extent_of(b);
  if (ea.end <= eb.begin || eb.end <= ea.begin) return false;

  // Interleaved elements: every address is base + a multiple of the strides' common divisor.
  int64_t divisor = 0;
  for (const ruda_view* view : {&a, &b})
    for (int32_t d = 0; d < view->ndim; ++d)
      if (view->sizes[d] > 1)
        divisor = std::gcd(divisor, view->strides[d] * item_size(view->dtype));
  const intptr_t distance =
      reinterpret_cast<intptr_t>(b.data) - reinterpret_cast<intptr_t>(a.data);
  if (divisor > 0 && !meet_on_circle(item_size(a.dtype), positive_remainder(distance, divisor),
                                     item_size(b.dtype), divisor))
    return false;

  // Column slices of one buffer: rows of the same pitch at different columns.
  const int32_t da = widest_dim(a), db = widest_dim(b);
  if (da >= 0 && db >= 0) {
    const int64_t pitch = std::abs(a.strides[da]) * item_size(a.dtype);
    if (pitch > 0 && pitch == std::abs(b.strides[db]) * item_size(b.dtype)) {
      const extent ra = extent_of(a, da), rb = extent_of(b, db);
      if (!meet_on_circle(ra.end - ra.begin, positive_remainder(rb.begin - ra.begin, pitch),
                          rb.end - rb.begin, pitch))
        return false;
    }
  }
  return true;
}

}  // namespace

int32_t check_result_memory(const ruda_view& out, const char* operation, ruda_error* error) {
  for (int32_t d = 0; d < out.ndim; ++d)
    RUDA_CHECK(out.sizes[d] <= 1 || out.strides[d] != 0, error, RUDA_ERROR_VALUE,
               "[%s] out: got stride 0 in dimension %d of shape %s, wanted an element of its own for "
               "every result",
               operation, d, shape_text(out).c_str());
  return RUDA_OK;
}

int32_t check_no_overlap(const ruda_view& out, const ruda_view* operand, const char* operation,
                         const char* name, ruda_error* error) {
  RUDA_CHECK(operand == nullptr || !may_share(out, *operand), error, RUDA_ERROR_VALUE,
             "[%s] out: got memory that overlaps %s, wanted memory of its own; pass a copy",
             operation, name);
  return RUDA_OK;
}

}  // namespace ruda

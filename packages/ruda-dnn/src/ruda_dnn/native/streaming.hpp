/* When a result is written past the caches. */
#ifndef RUDA_DNN_STREAMING_HPP
#define RUDA_DNN_STREAMING_HPP

#include <cstdint>

#include <ruda/entry.hpp>

namespace ruda {

/* A result larger than this has left the caches before anybody reads it; writing it past them saves
 * reading each line first. */
constexpr int64_t stream_from_bytes = int64_t{16} << 20;

/* Rows of `width` elements of `view` can be written past the caches, and are worth it. That is so for
 * float32 alone: half a vector at a time is no faster than a common store, and neither are two results
 * side by side. */
inline bool writes_past_caches(const ruda_view& view, int64_t width) noexcept {
  return view.dtype == RUDA_FLOAT32 && element_count(view) * 4 >= stream_from_bytes &&
         width % 8 == 0 && reinterpret_cast<uintptr_t>(view.data) % 32 == 0;
}

}  // namespace ruda

#endif

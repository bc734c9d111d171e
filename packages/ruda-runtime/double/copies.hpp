// Copies and fills as work of a stream.
#pragma once

#include "memory.hpp"

namespace driver_double {

// `rows` rows of `width` bytes; the pitches are the distances between rows. One row is a plain
// copy.
struct copy_shape {
  uint64_t to = 0, from = 0;
  uint64_t width = 0, rows = 1, to_pitch = 0, from_pitch = 0;
  uint64_t slices = 1, to_slice = 0, from_slice = 0;

  uint64_t span(uint64_t pitch, uint64_t slice) const {
    return rows == 0 || slices == 0 ? 0 : (slices - 1) * slice + (rows - 1) * pitch + width;
  }
  uint64_t to_span() const { return span(to_pitch, to_slice); }
  uint64_t from_span() const { return span(from_pitch, from_slice); }
};

struct copy_operation final : operation {
  copy_operation(const char* caller, const copy_shape& what)
      : operation(type::copy), call(caller), shape(what) {}
  CUresult run(stream&) override;
  void addresses(const std::function<void(uint64_t)>& each) const override {
    each(shape.to);
    each(shape.from);
  }
  const char* call;
  copy_shape shape;
  std::vector<char> staged;  // not empty: the source, copied from pageable memory at submission
};

struct set_operation final : operation {
  set_operation(const char* caller, uint64_t where, unsigned what, unsigned bytes_each,
                uint64_t elements, uint64_t row_count, uint64_t row_pitch)
      : operation(type::set),
        call(caller),
        to(where),
        value(what),
        element(bytes_each),
        width(elements),
        rows(row_count),
        pitch(row_pitch) {}
  CUresult run(stream&) override;
  void addresses(const std::function<void(uint64_t)>& each) const override { each(to); }
  CUresult check(moment when) const;
  const char* call;
  uint64_t to;
  unsigned value, element;  // element: 1, 2 or 4 bytes
  uint64_t width, rows, pitch;
};

CUresult check_copy(moment when, const char* call, const copy_shape& shape);

}  // namespace driver_double

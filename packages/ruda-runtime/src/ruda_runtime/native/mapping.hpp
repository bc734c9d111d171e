// Memory from the system, counted and limited. Not thread-safe: the allocator's lock protects it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ruda::native {

constexpr size_t page_bytes = 4096;
constexpr size_t huge_page_bytes = size_t{2} << 20;

constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct mapping_stats {
  int64_t reserved = 0;
  int64_t peak_reserved = 0;
  int64_t calls = 0;
};

class mapping {
 public:
  // Fresh zeroed memory aligned to `alignment` (a power of two), or null when the limit or the system
  // does not allow it. `huge` asks for huge pages: a large result otherwise costs a fault every 4 KiB.
  void* map(size_t bytes, size_t alignment, bool huge);
  void unmap(void* pointer, size_t bytes);

  // What map() could still give: the rest of RUDA_MEMORY_LIMIT, or what the system has free.
  int64_t free_bytes() const;

  mapping_stats stats;
};

}  // namespace ruda::native

#include "mapping.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "environment.hpp"
#include "system.hpp"

namespace ruda::native {
namespace {

// Below this a request is not compared with the system's free memory: reading it costs more than the
// request is worth, and the kernel keeps a reserve.
constexpr size_t checked_bytes = size_t{1} << 20;

}  // namespace

int64_t mapping::free_bytes() const {
  const int64_t system = system_memory_free();
  const int64_t limit = settings().memory_limit;
  if (limit == 0) return system;
  const int64_t rest = std::max<int64_t>(0, limit - stats.reserved);
  return system < 0 ? rest : std::min(rest, system);
}

void* mapping::map(size_t bytes, size_t alignment, bool huge) {
  const int64_t limit = settings().memory_limit;
  if (limit != 0 && static_cast<int64_t>(bytes) > limit - stats.reserved) return nullptr;
  if (bytes >= checked_bytes) {
    // The kernel promises more memory than there is and ends a process that uses it.
    const int64_t available = system_memory_free();
    if (available >= 0 && static_cast<int64_t>(bytes) > available) return nullptr;
  }
  const size_t extra = alignment > page_bytes ? alignment : 0;
  void* raw = mmap(nullptr, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  char* start = static_cast<char*>(raw);
  if (extra != 0) {
    char* aligned =
        reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(start), alignment));
    const size_t before = static_cast<size_t>(aligned - start);
    if (before != 0) munmap(start, before);
    if (extra != before) munmap(aligned + bytes, extra - before);
    start = aligned;
  }
  if (huge) madvise(start, bytes, MADV_HUGEPAGE);
  stats.reserved += static_cast<int64_t>(bytes);
  stats.peak_reserved = std::max(stats.peak_reserved, stats.reserved);
  ++stats.calls;
  return start;
}

void mapping::unmap(void* pointer, size_t bytes) {
  munmap(pointer, bytes);
  stats.reserved -= static_cast<int64_t>(bytes);
}

}  // namespace ruda::native

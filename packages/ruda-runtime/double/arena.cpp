#include "arena.hpp"

#include "reports.hpp"
#include "settings.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace driver_double {

arena& arena::get() {
  static arena& made = *new arena;
  return made;
}

bool arena::open() {
  // Addresses are used again as late as possible: the range is four times what can be allocated.
  const settings& values = settings::get();
  const uint64_t granule = 1ull << 21;
  base_ = values.arena & ~(granule - 1);
  device_size_ = (4 * values.memory * values.devices + granule - 1) & ~(granule - 1);
  host_size_ = 32ull << 30;
  auto fail = [](const char* what) {
    report(CUDA_ERROR_OPERATING_SYSTEM, "[driver double] %s: %s", what, std::strerror(errno));
    return false;
  };
  descriptor_ = memfd_create("ruda-driver-double", MFD_CLOEXEC);
  if (descriptor_ < 0) return fail("no memory file");
  if (ftruncate(descriptor_, static_cast<off_t>(device_size_ + host_size_)) != 0) {
    return fail("the memory file cannot have its size");
  }
  void* wanted = reinterpret_cast<void*>(base_);
  void* reserved = mmap(wanted, device_size_, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (reserved != wanted) return fail("the arena's address is taken (RUDA_DOUBLE_ARENA moves it)");
  void* host = reinterpret_cast<void*>(base_ + device_size_);
  if (mmap(host, host_size_, PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, descriptor_,
           static_cast<off_t>(device_size_)) != host) {
    return fail("the arena's address is taken (RUDA_DOUBLE_ARENA moves it)");
  }
  void* alias = mmap(nullptr, device_size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                     descriptor_, 0);
  if (alias == MAP_FAILED) return fail("device memory cannot be mapped");
  madvise(alias, device_size_, MADV_DONTDUMP);
  madvise(host, host_size_, MADV_DONTDUMP);
  alias_ = static_cast<char*>(alias);
  return true;
}

void arena::discard(uint64_t address, uint64_t bytes) const {
  const uint64_t page = 4096;
  uint64_t begin = (address - base_ + page - 1) & ~(page - 1);
  uint64_t end = (address - base_ + bytes) & ~(page - 1);
  if (begin < end) {
    fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
              static_cast<off_t>(end - begin));
  }
}

}  // namespace driver_double

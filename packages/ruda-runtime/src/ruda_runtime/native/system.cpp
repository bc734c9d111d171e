#include "system.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "environment.hpp"

namespace ruda::native {
namespace {

// Values of /proc/meminfo in bytes; negative when the file cannot be read.
struct meminfo {
  int64_t total = -1;
  int64_t available = -1;
  int64_t swap_free = 0;
};

meminfo read_meminfo() {
  meminfo result;
  std::FILE* file = std::fopen("/proc/meminfo", "re");
  if (file == nullptr) return result;
  char line[128];
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    long long kib = 0;
    if (std::sscanf(line, "MemTotal: %lld kB", &kib) == 1) result.total = kib * 1024;
    if (std::sscanf(line, "MemAvailable: %lld kB", &kib) == 1) result.available = kib * 1024;
    if (std::sscanf(line, "SwapFree: %lld kB", &kib) == 1) result.swap_free = kib * 1024;
  }
  std::fclose(file);
  return result;
}

// A number alone in a file; negative for "max" or when it cannot be read.
int64_t read_number(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return -1;
  long long value = -1;
  if (std::fscanf(file, "%lld", &value) != 1) value = -1;
  std::fclose(file);
  return value;
}

// The page cache that a control group would drop before it refuses memory.
int64_t read_inactive_file(const std::string& path, const char* key) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return 0;
  char name[64];
  long long value = 0, result = 0;
  while (std::fscanf(file, "%63s %lld", name, &value) == 2)
    if (std::strcmp(name, key) == 0) result = value;
  std::fclose(file);
  return result;
}

struct control_group {
  int64_t limit = -1;
  int64_t free = -1;
};

// Inside a container the group's own files are at the mount point; a version 1 limit near 2^63 means
// "none".
control_group read_control_group() {
  struct layout {
    const char *directory, *limit, *usage, *inactive;
  };
  static constexpr layout layouts[] = {
      {"/sys/fs/cgroup/", "memory.max", "memory.current", "inactive_file"},
      {"/sys/fs/cgroup/memory/", "memory.limit_in_bytes", "memory.usage_in_bytes",
       "total_inactive_file"}};
  for (const layout& each : layouts) {
    const std::string directory = each.directory;
    const int64_t limit = read_number(directory + each.limit);
    if (limit < 0 || limit > (int64_t{1} << 60)) continue;
    const int64_t usage = std::max<int64_t>(0, read_number(directory + each.usage));
    const int64_t inactive = read_inactive_file(directory + "memory.stat", each.inactive);
    return {limit, std::max<int64_t>(0, limit - std::max<int64_t>(0, usage - inactive))};
  }
  return {};
}

}  // namespace

int64_t system_memory_free() {
  const meminfo info = read_meminfo();
  const control_group group = read_control_group();
  int64_t result = info.available < 0 ? -1 : info.available + info.swap_free;
  if (group.free >= 0) result = result < 0 ? group.free : std::min(result, group.free);
  return result;
}

int64_t system_memory_total() {
  const int64_t total = read_meminfo().total;
  const int64_t limit = read_control_group().limit;
  return limit >= 0 && (total < 0 || limit < total) ? limit : total;
}

int32_t cpu_count() {
  // The mask grows until the kernel accepts it: machines with more than 1024 CPUs exist.
  for (int capacity = 1024; capacity <= (1 << 16); capacity *= 2) {
    cpu_set_t* set = CPU_ALLOC(capacity);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(capacity);
    const bool read = sched_getaffinity(0, bytes, set) == 0;
    const int count = read ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (read) return std::clamp(count, 1, 1024);
  }
  return 1;
}

int32_t detected_cpu_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                 __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c")
             ? 1
             : 0;
#else
  return 0;
#endif
}

int32_t cpu_level() {
  static const int32_t detected = detected_cpu_level();
  return settings().baseline ? 0 : detected;
}

}  // namespace ruda::native

#include "allocator_text.hpp"

#include <algorithm>
#include <cstdio>
#include <string>

#include <ruda/entry.hpp>

#include "environment.hpp"

namespace ruda::native {
namespace {

constexpr size_t reported_holders = 5;

std::string bytes_text(int64_t bytes) {
  static constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f %s", value, units[unit]);
  return text;
}

}  // namespace

int32_t fail_out_of_memory(const shortage& found, std::vector<holder> holders, ruda_error* error) {
  std::string text = "[allocate] out of memory: asked for " +
                     bytes_text(static_cast<int64_t>(std::min<size_t>(found.asked, INT64_MAX))) +
                     " (" + std::to_string(found.asked) + " bytes); free: ";
  text += found.free < 0 ? "unknown" : bytes_text(found.free);
  if (settings().memory_limit != 0)
    text += " of RUDA_MEMORY_LIMIT=" + bytes_text(settings().memory_limit);
  text += "; allocated: " + bytes_text(found.allocated) + " in " + std::to_string(found.blocks) +
          " blocks; reserved: " + bytes_text(found.reserved);
  const size_t named = std::min(holders.size(), reported_holders);
  std::partial_sort(holders.begin(), holders.begin() + static_cast<std::ptrdiff_t>(named),
                    holders.end(),
                    [](const holder& a, const holder& b) { return a.bytes > b.bytes; });
  for (size_t i = 0; i < named; ++i) {
    text += i == 0 ? "; largest holders: " : ", ";
    text += bytes_text(static_cast<int64_t>(holders[i].bytes)) + " (" +
            (holders[i].kernel != nullptr ? holders[i].kernel : "tensor") + ")";
  }
  text += ". Free tensors you do not need, or use a smaller batch or sequence length";
  return fail(error, RUDA_ERROR_MEMORY, "%s", text.c_str());
}

}  // namespace ruda::native

// Launches of example.scale_add from C++, without Python: seconds for each, and the result's status.
#include <chrono>

#include <ruda/device.hpp>

extern "C" __attribute__((visibility("default"))) double time_launches(
    const void* table, const ruda_view* x, const ruda_view* y, const ruda_view* out, int64_t count,
    int64_t repeats, ruda_error* error) {
  static ruda::device_kernel kernel{"example.scale_add"};
  if (ruda::attach(table, "launch_time", error) != RUDA_OK) return -1;
  const auto programs = static_cast<uint32_t>((count + 255) / 256);
  const auto started = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < repeats; ++i)
    if (kernel.launch({programs}, {}, error, x, y, out, ruda::integer(count), ruda::real(2.0),
                      ruda::integer(256), ruda::integer(1)) != RUDA_OK)
      return -1;
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - started;
  return spent.count() / static_cast<double>(repeats);
}

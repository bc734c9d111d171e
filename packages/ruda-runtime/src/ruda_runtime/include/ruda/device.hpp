// What an entry launches device kernels with, on the cuda target.
//
//   static ruda::device_kernel kernel{"rms_norm.forward"};
//   return kernel.launch({rows}, {}, error, x, weight, out, ruda::integer(columns),
//                        ruda::real(eps), ruda::integer(block));
//
// Arguments come in the order of the kernel's parameters, constants included; a null view is an absent
// tensor.
#ifndef RUDA_DEVICE_HPP
#define RUDA_DEVICE_HPP

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>

#include <ruda/entry.hpp>

namespace ruda {

inline ruda_argument argument(const ruda_view* view) noexcept {
  ruda_argument result{};
  if (view == nullptr) return result;
  result.kind = RUDA_ARGUMENT_POINTER;
  result.dtype = view->dtype;
  result.value.pointer = view->data;
  return result;
}
inline ruda_argument argument(const ruda_argument& given) noexcept { return given; }

inline ruda_argument pointer(const void* data, int32_t dtype) noexcept {
  ruda_argument result{};
  result.kind = RUDA_ARGUMENT_POINTER;
  result.dtype = dtype;
  result.value.pointer = data;
  return result;
}
inline ruda_argument integer(int64_t value) noexcept {
  ruda_argument result{};
  result.kind = RUDA_ARGUMENT_INTEGER;
  result.value.integer = value;
  return result;
}
inline ruda_argument real(double value) noexcept {
  ruda_argument result{};
  result.kind = RUDA_ARGUMENT_REAL;
  result.value.real = value;
  return result;
}
inline ruda_argument boolean(bool value) noexcept {
  ruda_argument result{};
  result.kind = RUDA_ARGUMENT_BOOLEAN;
  result.value.integer = value ? 1 : 0;
  return result;
}
inline ruda_argument text(const char* value) noexcept {
  ruda_argument result{};
  result.kind = RUDA_ARGUMENT_TEXT;
  result.value.text = value;
  return result;
}
inline ruda_argument nothing() noexcept { return ruda_argument{}; }

// Up to three dimensions; those left out are 1.
struct grid {
  uint32_t x = 1, y = 1, z = 1;
};

inline int64_t ceil_div(int64_t value, int64_t by) noexcept { return (value + by - 1) / by; }

// A number that the kernels take as 32 bits, or that is a grid's extent (65535 in y and z).
inline int32_t check_device_limit(int64_t value, const char* operation, const char* what,
                                  ruda_error* error,
                                  int64_t limit = std::numeric_limits<int32_t>::max()) {
  RUDA_CHECK(value <= limit, error, RUDA_ERROR_UNSUPPORTED,
             "[%s] %s: got %lld, wanted at most %lld on the cuda target", operation, what,
             static_cast<long long>(value), static_cast<long long>(limit));
  return RUDA_OK;
}

constexpr int64_t largest_grid_y = 65535;

// Programs that check_device_limit has seen.
inline grid programs(int64_t x, int64_t y = 1) noexcept {
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(y), 1};
}

// A kernel by name, found at its first launch.
class device_kernel {
 public:
  explicit constexpr device_kernel(const char* name) : name_(name) {}

  // On the current stream.
  template <class... Arguments>
  int32_t launch(const grid& programs, const ruda_launch_options& options, ruda_error* error,
                 const Arguments&... arguments) {
    const std::array<ruda_argument, sizeof...(arguments)> list{argument(arguments)...};
    return launch_list(programs, options, error, list.data(), static_cast<int32_t>(list.size()));
  }

  int32_t launch_list(const grid& programs, const ruda_launch_options& options, ruda_error* error,
                      const ruda_argument* arguments, int32_t count) {
    const ruda_device_kernel* found = found_.load(std::memory_order_acquire);
    if (found == nullptr) [[unlikely]] {
      ruda_error failure{};
      found = api()->find_device_kernel(name_, &failure);
      if (found == nullptr) {
        if (error != nullptr) *error = failure;
        return failure.code;
      }
      found_.store(found, std::memory_order_release);
    }
    const uint32_t extent[3] = {programs.x, programs.y, programs.z};
    return api()->launch_device(found, arguments, count, &options, extent, nullptr, error);
  }

 private:
  const char* name_;
  std::atomic<const ruda_device_kernel*> found_{nullptr};
};

}  // namespace ruda

#endif  // RUDA_DEVICE_HPP

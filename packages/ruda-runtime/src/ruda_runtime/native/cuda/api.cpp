#include "api.hpp"

#include "streams.hpp"
#include "target.hpp"

namespace ruda::native::cuda {

int32_t target() noexcept { return chosen() ? RUDA_CUDA : RUDA_HOST; }

int32_t driver_stream_handle(int32_t stream, void** handle, ruda_error* error) noexcept {
  ruda_error failure{};
  *handle = driver_stream(stream, "driver_stream", &failure);
  if (*handle != nullptr) return RUDA_OK;
  if (error != nullptr) *error = failure;
  return failure.code;
}

}  // namespace ruda::native::cuda

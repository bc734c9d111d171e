// The functions of ruda_api that name the target and use the driver.
#pragma once

#include <ruda/abi.h>

#include <cstdint>

namespace ruda::native::cuda {

int32_t target() noexcept;
int32_t driver_stream_handle(int32_t stream, void** handle, ruda_error* error) noexcept;

}  // namespace ruda::native::cuda

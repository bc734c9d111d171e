// Events: points in the work of a stream. The functions of ruda_api.
#pragma once

#include <ruda/abi.h>

#include <cstdint>

namespace ruda::native {

ruda_event create_event(int32_t timing) noexcept;
void destroy_event(ruda_event handle) noexcept;
int32_t record_event(ruda_event handle, int32_t id, ruda_error* error) noexcept;
int32_t wait_event(int32_t id, ruda_event handle, ruda_error* error) noexcept;
int32_t query_event(ruda_event handle) noexcept;
int32_t synchronize_event(ruda_event handle, ruda_error* error) noexcept;
int32_t elapsed_time(ruda_event begin, ruda_event end, double* milliseconds,
                     ruda_error* error) noexcept;

}  // namespace ruda::native

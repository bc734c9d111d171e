// Streams of the host target: synchronous, so that they carry an identity and nothing else. Work has
// finished when the call that submits it returns.
#pragma once

#include <ruda/abi.h>

#include <cstdint>

namespace ruda::native {

// Stream 0 is the default stream and always exists; the others come from a pool of RUDA_MAX_STREAMS.
int32_t open_stream(int32_t* id, ruda_error* error) noexcept;
int32_t close_stream(int32_t id, ruda_error* error) noexcept;
int32_t open_streams() noexcept;

// The handle that ruda_api::launch takes; null when there is no such stream.
ruda_stream stream_handle(int32_t id) noexcept;

// The current stream of the calling thread.
int32_t current_stream() noexcept;
int32_t set_current_stream(int32_t id, ruda_error* error) noexcept;

// Whether work can be submitted to `stream` (null: the current stream).
int32_t check_submission(ruda_stream stream, const char* operation, ruda_error* error) noexcept;

// The functions of ruda_api.
int32_t asynchronous() noexcept;
int32_t set_asynchronous(int32_t on, ruda_error* error) noexcept;
int32_t query_stream(int32_t id) noexcept;
int32_t synchronize(int32_t id, ruda_error* error) noexcept;
int32_t wait_stream(int32_t id, int32_t other, ruda_error* error) noexcept;
ruda_event create_event(int32_t timing) noexcept;
void destroy_event(ruda_event handle) noexcept;
int32_t record_event(ruda_event handle, int32_t id, ruda_error* error) noexcept;
int32_t wait_event(int32_t id, ruda_event handle, ruda_error* error) noexcept;
int32_t query_event(ruda_event handle) noexcept;
int32_t synchronize_event(ruda_event handle, ruda_error* error) noexcept;
int32_t elapsed_time(ruda_event begin, ruda_event end, double* milliseconds,
                     ruda_error* error) noexcept;
int32_t record_stream(const void* pointer, int32_t id, ruda_error* error) noexcept;

}  // namespace ruda::native

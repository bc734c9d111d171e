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

}  // namespace ruda::native

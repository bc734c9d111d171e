// Streams and events of the cuda target. A stream's number is the one of native/streams.hpp; its driver
// stream is made at its first use and kept for later owners of the number.
#pragma once

#include <ruda/abi.h>

#include <cstdint>
#include <string>

#include "types.hpp"

namespace ruda::native::cuda {

// The driver's stream; null with `error` filled.
CUstream driver_stream(int32_t id, const char* operation, ruda_error* error) noexcept;

int32_t query_stream(int32_t id) noexcept;
int32_t synchronize(int32_t id, ruda_error* error) noexcept;  // -1: all streams
int32_t wait_stream(int32_t id, int32_t other, ruda_error* error) noexcept;
// Work submitted to the driver's stream so far precedes later work of a stream that is not ours
// (DLPack consumers).
int32_t order_foreign_stream(int32_t id, CUstream foreign, ruda_error* error) noexcept;

// A kernel was launched: errors that surface later name it. `kernel` lives as long as the process.
void note_launch(int32_t id, const char* kernel, const uint32_t grid[3]) noexcept;

// Text for an error found after the fact: the driver does not say which of the queued kernels failed.
std::string last_launch_text(int32_t id);

// Fills `error` for a call on a stream that failed: by itself, or because earlier work had failed.
[[gnu::cold]] int32_t fail_work(const char* operation, const char* call, CUresult code, int32_t id,
                                ruda_error* error);

// Events: the part of an event that the driver knows. Null until the first record.
int32_t record_event(CUevent* event, bool timing, int32_t id, ruda_error* error) noexcept;
int32_t wait_event(int32_t id, CUevent event, ruda_error* error) noexcept;
int32_t query_event(CUevent event) noexcept;
int32_t synchronize_event(CUevent event, int32_t id, ruda_error* error) noexcept;
int32_t elapsed_time(CUevent begin, CUevent end, double* milliseconds, ruda_error* error) noexcept;
void destroy_event(CUevent event) noexcept;

// The process ends: waits for the work of all streams and prints the error it ended with.
void finish_streams() noexcept;
void destroy_streams() noexcept;  // and events

}  // namespace ruda::native::cuda

// Streams by number on every target; target cuda: each is a stream of the driver (cuda/streams.hpp), and
// dispatch is synchronous when a launch waits for its kernel. Host target: synchronous dispatch: work has finished when the call that
// submits it returns, and a stream is an identity. Asynchronous dispatch (RUDA_ASYNC=1): each stream is
// a queue with a worker (queue.hpp).
#pragma once

#include <ruda/abi.h>

#include <cstdint>

#include "queue.hpp"

namespace ruda::native {

// Registers the fork handlers: a fork waits for the queued work, and the child starts its own workers.
void prepare_streams();

// Settles how work is dispatched, at the first submission; true: asynchronously. False in the worker
// of a stream's own work and while the process ends, where work runs in its caller.
bool queues_work() noexcept;

// Stream 0 is the default stream and always exists; the others come from a pool of RUDA_MAX_STREAMS.
int32_t open_stream(int32_t* id, ruda_error* error) noexcept;
int32_t close_stream(int32_t id, ruda_error* error) noexcept;
int32_t open_streams() noexcept;

// Whether the pool has such a stream, open or closed: autograd, for one, remembers streams longer than
// their owners. A closed one is still a queue, perhaps another owner's.
int32_t check_stream(int32_t id, const char* operation, ruda_error* error) noexcept;

// The handle that ruda_api::launch takes; null when there is no such stream.
ruda_stream stream_handle(int32_t id) noexcept;

// The current stream of the calling thread; a stream's worker is always in its own.
int32_t current_stream() noexcept;
int32_t set_current_stream(int32_t id, ruda_error* error) noexcept;
void enter_stream(int32_t id) noexcept;

// The stream of a handle (null: the current one), or an error.
int32_t stream_of_handle(ruda_stream stream, const char* operation, int32_t* id,
                         ruda_error* error) noexcept;

// Queues a task; see queue::submit.
int32_t submit(int32_t id, task* added, uint64_t* number, ruda_error* error) noexcept;

// How far a stream is, for the allocator. They take no lock.
uint64_t submitted_work(int32_t id) noexcept;
uint64_t completed_work(int32_t id) noexcept;

// Waits for the work submitted to all streams so far; errors stay where they are.
void wait_for_all() noexcept;

// The process ends: waits for the queued work, prints the errors nobody asked for, and runs what is
// submitted later in its caller.
void shut_down_streams() noexcept;

// The functions of ruda_api.
int32_t asynchronous() noexcept;
int32_t set_asynchronous(int32_t on, ruda_error* error) noexcept;
int32_t query_stream(int32_t id) noexcept;
int32_t synchronize(int32_t id, ruda_error* error) noexcept;
int32_t wait_stream(int32_t id, int32_t other, ruda_error* error) noexcept;

}  // namespace ruda::native

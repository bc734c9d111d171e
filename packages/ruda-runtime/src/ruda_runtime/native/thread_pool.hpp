// One pool of worker threads for the process. Started by the first loop that has more than one part;
// importing the module starts nothing.
#pragma once

#include <ruda/abi.h>

#include <cstdint>

namespace ruda::native {

// Registers the fork handler: a child process begins with a pool of its own that has not started.
void prepare_thread_pool();

int32_t num_threads() noexcept;
// The same, and the calling thread's next loop has no worker at or above it: it runs serially when
// another thread raises the count before.
int32_t promise_threads() noexcept;
int32_t set_num_threads(int32_t count, ruda_error* error) noexcept;
int32_t in_parallel() noexcept;

// Called by a stream's worker: num_threads() of the thread that submitted the work it runs next.
void set_submitted_threads(int32_t count) noexcept;

// Calls fn for parts [begin, begin + grain), [begin + grain, ...), ...: which parts there are depends
// on the range and the grain only. Returns when all have run. One part, a call from inside a part and
// a call while another thread has the pool run serially in the calling thread, as worker 0. `fn` must
// not throw: an exception that reaches the pool ends the process.
void parallel_for(int64_t begin, int64_t end, int64_t grain, ruda_range_fn fn,
                  void* context) noexcept;

// Later loops have as many threads as another library says; null goes back to the pool's own number.
int32_t follow_threads(const ruda_thread_setting* setting, ruda_error* error) noexcept;

// Worker threads alive now (0 before the first parallel loop).
int32_t started_workers() noexcept;

}  // namespace ruda::native

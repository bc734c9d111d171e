// Streams of the host target: ruda-runtime's, under their numbers. Synchronous dispatch: work is done
// when the call that submits it returns. Asynchronous dispatch (RUDA_TORCH_ASYNC=1): our own kernels are
// queued on the current stream, and whatever runs on the calling thread waits for it first.
#pragma once

#include <c10/core/Stream.h>

namespace ruda_torch {

namespace detail {
extern bool g_queued;  // asynchronous dispatch; settled at import
void wait_slow();
}  // namespace detail

// Before the calling thread reads or writes memory of ruda: the work that was submitted to its current
// stream is done. Throws the error it ended with. Costs nothing in synchronous dispatch.
inline void wait_for_current_stream() {
  if (detail::g_queued) [[unlikely]] detail::wait_slow();
}

// Before ATen computes on ruda memory: a graph that captures the current stream would not see it.
void refuse_capture();

// Chooses how work is dispatched, before the first of it.
void set_asynchronous(bool on);

// The calling thread's current stream.
c10::Stream current_stream();

// Makes `stream` current for the calling thread and gives the one before it. It may have gone back to
// the pool: autograd remembers streams longer than their owners.
c10::Stream exchange_stream(c10::Stream stream);

// A stream of the bounded pool (RUDA_MAX_STREAMS, 32 by default); an error when all are taken.
c10::Stream acquire_stream(int priority);

// Gives a stream back to the pool; the default stream is not of the pool.
void release_stream(c10::StreamId id);

// Some stream of the pool, shared with whoever else got it; it stays open.
c10::Stream shared_stream();

}  // namespace ruda_torch

// Streams and events of the host target. Work is done when the call that submits it returns, so a
// stream is an identity and an order; an event is a moment.
#pragma once

#include <c10/core/Stream.h>

namespace ruda_torch {

// The calling thread's current stream.
c10::Stream current_stream();

// Makes `stream` current for the calling thread and gives the one before it.
c10::Stream exchange_stream(c10::Stream stream);

// A stream of the bounded pool (RUDA_MAX_STREAMS, 32 by default); an error when all are taken.
c10::Stream acquire_stream(int priority);

// Gives a stream back to the pool; the default stream is not of the pool.
void release_stream(c10::StreamId id);

// Some stream of the pool, shared with whoever else got it.
c10::Stream shared_stream();

}  // namespace ruda_torch

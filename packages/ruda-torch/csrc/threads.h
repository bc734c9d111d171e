// Loops on the runtime's pool, and ATen's OpenMP threads kept out of their way. Idle OpenMP threads
// spin for milliseconds before they sleep, and an OpenMP loop ends when the last thread has come: on
// a machine with other work to do, each loop then waits for a thread that is not running. The pool's
// loops end when their work is done. A training step therefore starts no OpenMP team.
#pragma once

#include "runtime.h"
#include "streams.h"

#include <atomic>
#include <cstdint>
#include <exception>

namespace ruda_torch {

// ruda-runtime's loops have as many threads as torch.set_num_threads says.
void follow_aten_threads();

// Loops of ATen and of its MKL in the calling thread stay in it while this lives.
class OneThread {
 public:
  OneThread();
  ~OneThread() { end(); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

  void end();  // ATen's team may work again

 private:
  int32_t before_ = 0;  // 0: nothing was changed
  int32_t mkl_before_ = 0;
};

// ATen runs a loop over so many elements on one thread; so many are not worth its team.
constexpr int64_t kAtenGrain = 32768;
constexpr int64_t kFewElements = 1 << 17;

// body(begin, end) over [0, count) in parts of `grain`; an exception of a body is thrown here.
template <class Body>
void parallel_parts(int64_t count, int64_t grain, const Body& body) {
  struct Shared {
    const Body* body;
    std::atomic_flag failed;
    std::exception_ptr exception;
  } shared{&body, {}, nullptr};
  wait_for_current_stream();
  api()->parallel_for(
      0, count, grain,
      [](void* context, int64_t begin, int64_t end, int32_t) {
        auto& state = *static_cast<Shared*>(context);
        try {
          (*state.body)(begin, end);
        } catch (...) {
          if (!state.failed.test_and_set()) state.exception = std::current_exception();
        }
      },
      &shared);
  if (shared.exception) std::rethrow_exception(shared.exception);
}

}  // namespace ruda_torch

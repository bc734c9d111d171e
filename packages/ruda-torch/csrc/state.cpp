#include "state.h"

#include <c10/util/Exception.h>
#include <pthread.h>

namespace ruda_torch {

std::atomic<bool> g_initialized{false};
std::atomic<bool> g_bad_fork{false};

void initialize_slow() {
  // Threads do not survive a fork: the child has the memory but neither the pool's workers nor
  // OpenMP's, and waits for them for ever.
  TORCH_CHECK(!in_bad_fork(), "[ruda] the device was used before this process was forked: got a "
              "use in the forked child, wanted one in a fresh process; start workers with the "
              "'spawn' method (multiprocessing.set_start_method('spawn')) or use the device only "
              "in the child");
  g_initialized.store(true, std::memory_order_relaxed);
}

void watch_forks() {
  pthread_atfork(nullptr, nullptr, [] {
    if (is_initialized()) g_bad_fork.store(true, std::memory_order_relaxed);
  });
}

}  // namespace ruda_torch

#include "state.h"

#include "cuda/target.h"
#include "runtime.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <utility>

namespace ruda_torch {

std::atomic<bool> g_initialized{false};
std::atomic<bool> g_bad_fork{false};

namespace {

std::function<void()> g_first_use;

}  // namespace

void initialize_slow() {
  // Threads do not survive a fork: the child has the memory but neither the pool's workers nor
  // OpenMP's, and waits for them for ever.
  TORCH_CHECK(!in_bad_fork(), "[ruda] the device was used before this process was forked: got a "
              "use in the forked child, wanted one in a fresh process; start workers with the "
              "'spawn' method (multiprocessing.set_start_method('spawn')) or use the device only "
              "in the child");
  // Without a lock: the action takes the interpreter's lock, which a waiting thread may hold. Threads
  // that come here together run it each.
  if (g_first_use) g_first_use();
  detail::g_on_cuda.store(api()->target() == RUDA_CUDA, std::memory_order_relaxed);
  g_initialized.store(true, std::memory_order_release);
}

void on_first_use(std::function<void()> action) { g_first_use = std::move(action); }

void watch_forks() {
  pthread_atfork(nullptr, nullptr, [] {
    if (is_initialized()) g_bad_fork.store(true, std::memory_order_relaxed);
  });
}

}  // namespace ruda_torch

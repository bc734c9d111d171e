#include "thread_pool.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <ruda/entry.hpp>

#include "environment.hpp"
#include "system.hpp"
#include "waiting.hpp"

namespace ruda::native {
namespace {

thread_local int32_t parallel_depth = 0;

// The count that this thread's caller has read to size its scratch for the next loop; 0: none.
thread_local int32_t promised_threads = 0;

// In the worker of a stream: how many threads the submission's caller may use; 0: not such a worker.
thread_local int32_t submitted_threads = 0;

// The library that decides the number of threads, if any.
std::atomic<const ruda_thread_setting*> followed{nullptr};

// A loop is open while it has parts to give out. `state` is the open bit, a bit that says the caller
// sleeps until the last worker leaves, and the number of workers inside. A worker that wakes up late
// finds the loop closed and never delays the caller; the loop's fields change only while it is closed
// and nobody is inside.
class pool {
 public:
  explicit pool(int32_t count) : count_(count) {}

  int32_t count() const { return count_.load(std::memory_order_relaxed); }
  int32_t started() const { return started_.load(std::memory_order_relaxed); }

  bool try_acquire() { return !busy_.exchange(true, std::memory_order_acquire); }
  void release() { busy_.store(false, std::memory_order_release); }

  // Needs the pool acquired. Threads above the new count would take wake-ups meant for others, so all
  // are stopped and the next loop starts the right number.
  void resize(int32_t count) {
    stopping_.store(true, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(epoch_, INT_MAX);
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    started_.store(0, std::memory_order_relaxed);
    stopping_.store(false, std::memory_order_relaxed);
    count_.store(count, std::memory_order_relaxed);
  }

  // Needs the pool acquired. At most `members` threads take part.
  void run(int64_t begin, int64_t end, int64_t grain, int64_t parts, ruda_range_fn fn, void* context,
           int32_t members) {
    start(members);
    limit_ = members;
    begin_ = begin;
    end_ = end;
    grain_ = grain;
    parts_ = parts;
    // Parts are taken several at a time when there are many of them; each is still its own call.
    batch_ = std::max<int64_t>(1, parts / (int64_t{members} * 16));
    fn_ = fn;
    context_ = context;
    next_.store(0, std::memory_order_relaxed);
    state_.store(open_bit, std::memory_order_release);
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    // A thread above the limit would take a wake-up meant for another: then all are woken.
    if (const int32_t parked = parked_.load(std::memory_order_seq_cst); parked > 0)
      futex_wake(epoch_, members <= started()
                             ? INT_MAX
                             : static_cast<int>(std::min<int64_t>(parked, parts - 1)));

    run_parts(0);

    uint32_t state = state_.fetch_and(~open_bit, std::memory_order_acq_rel) & ~open_bit;
    if (state == 0) return;
    if (spin_until([&] { return state_.load(std::memory_order_acquire) == 0; })) return;
    state = state_.fetch_or(sleeper_bit, std::memory_order_acq_rel) | sleeper_bit;
    while ((state & count_mask) != 0) {
      futex_wait(state_, state);
      state = state_.load(std::memory_order_acquire);
    }
  }

 private:
  static constexpr uint32_t open_bit = 1u << 31;
  static constexpr uint32_t sleeper_bit = 1u << 30;
  static constexpr uint32_t count_mask = 0xffff;

  // Queued work may want more threads than the present count: it was submitted before that changed.
  void start(int32_t members) {
    if (started() >= members - 1 || start_failed_) return;
    // Signals are for the threads of the program, not for workers.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (int32_t i = static_cast<int32_t>(workers_.size()); i < members - 1; ++i) {
        workers_.emplace_back([this, worker = i + 1] { work(worker); });
        pthread_setname_np(workers_.back().native_handle(), "ruda-worker");
      }
    } catch (const std::exception& caught) {
      start_failed_ = true;
      std::fprintf(stderr, "ruda_runtime: only %zu of %d worker threads could be started: %s\n",
                   workers_.size(), members - 1, caught.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    started_.store(static_cast<int32_t>(workers_.size()), std::memory_order_relaxed);
  }

  void run_parts(int32_t worker) {
    ++parallel_depth;
    for (;;) {
      const int64_t first = next_.fetch_add(batch_, std::memory_order_relaxed);
      if (first >= parts_) break;
      const int64_t last = std::min(first + batch_, parts_);
      for (int64_t part = first; part < last; ++part) {
        const int64_t part_begin = begin_ + part * grain_;
        fn_(context_, part_begin, end_ - part_begin <= grain_ ? end_ : part_begin + grain_, worker);
      }
    }
    --parallel_depth;
  }

  bool enter() {
    uint32_t state = state_.load(std::memory_order_acquire);
    while ((state & open_bit) != 0)
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) return true;
    return false;
  }

  void leave() {
    const uint32_t before = state_.fetch_sub(1, std::memory_order_acq_rel);
    if ((before & sleeper_bit) != 0 && (before & count_mask) == 1) futex_wake(state_, 1);
  }

  void work(int32_t worker) noexcept {
    uint32_t seen = 0;
    while (!stopping_.load(std::memory_order_relaxed)) {
      if (enter()) {
        if (worker < limit_) run_parts(worker);
        leave();
      }
      const auto changed = [&] { return epoch_.load(std::memory_order_seq_cst) != seen; };
      if (!spin_until(changed)) {
        parked_.fetch_add(1, std::memory_order_seq_cst);
        while (!changed()) futex_wait(epoch_, seen);
        parked_.fetch_sub(1, std::memory_order_seq_cst);
      }
      seen = epoch_.load(std::memory_order_seq_cst);
    }
  }

  std::atomic<bool> busy_{false};
  std::atomic<bool> stopping_{false};
  bool start_failed_ = false;
  std::atomic<int32_t> count_;
  std::atomic<int32_t> started_{0};
  std::vector<std::thread> workers_;

  int32_t limit_ = 0;
  int64_t begin_ = 0, end_ = 0, grain_ = 1, parts_ = 0, batch_ = 1;
  ruda_range_fn fn_ = nullptr;
  void* context_ = nullptr;

  // On lines of their own: workers poll the first, everybody writes the others.
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<int32_t> parked_{0};
  alignas(64) std::atomic<uint32_t> state_{0};
  alignas(64) std::atomic<int64_t> next_{0};
};

alignas(pool) unsigned char pool_memory[sizeof(pool)];
std::atomic<pool*> instance{nullptr};

// Made in place and never destroyed: at exit workers may still be parked in it.
pool& the_pool() { return *instance.load(std::memory_order_acquire); }

void make_pool(int32_t count) {
  instance.store(new (pool_memory) pool(count), std::memory_order_release);
}

// The threads do not exist in a forked child; whatever state they left is overwritten.
void after_fork_in_child() { make_pool(num_threads()); }

int32_t check_outside(const char* operation, ruda_error* error) {
  RUDA_CHECK(parallel_depth == 0, error, RUDA_ERROR_RUNTIME,
             "[%s] called from inside a parallel loop: call it between operations", operation);
  return RUDA_OK;
}

}  // namespace

void prepare_thread_pool() {
  if (instance.load(std::memory_order_acquire) != nullptr) return;
  const int32_t asked = settings().threads;
  make_pool(asked > 0 ? asked : cpu_count());
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
}

int32_t num_threads() noexcept {
  if (submitted_threads != 0) return submitted_threads;
  if (const ruda_thread_setting* setting = followed.load(std::memory_order_acquire);
      setting != nullptr)
    return std::max<int32_t>(1, setting->count());
  return the_pool().count();
}

void set_submitted_threads(int32_t count) noexcept { submitted_threads = count; }

int32_t promise_threads() noexcept { return promised_threads = num_threads(); }

int32_t started_workers() noexcept { return the_pool().started(); }

int32_t in_parallel() noexcept { return parallel_depth > 0 ? 1 : 0; }

int32_t set_num_threads(int32_t count, ruda_error* error) noexcept {
  RUDA_CHECK(count >= 1 && count <= 1024, error, RUDA_ERROR_VALUE,
             "[set_num_threads] count: got %d, wanted 1 to 1024", count);
  RUDA_TRY(check_outside("set_num_threads", error));
  promised_threads = 0;
  if (const ruda_thread_setting* setting = followed.load(std::memory_order_acquire);
      setting != nullptr) {
    setting->set(count);
    return RUDA_OK;
  }
  pool& shared = the_pool();
  while (!shared.try_acquire()) sched_yield();
  if (shared.count() != count) shared.resize(count);
  shared.release();
  return RUDA_OK;
}

int32_t follow_threads(const ruda_thread_setting* setting, ruda_error* error) noexcept {
  RUDA_TRY(check_outside("follow_threads", error));
  followed.store(setting, std::memory_order_release);
  return RUDA_OK;
}

void parallel_for(int64_t begin, int64_t end, int64_t grain, ruda_range_fn fn,
                  void* context) noexcept {
  const int32_t promised = std::exchange(promised_threads, 0);
  if (end <= begin) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t parts = (end - begin - 1) / grain + 1;
  if (parts == 1) {
    fn(context, begin, end, 0);
    return;
  }
  if (pool& shared = the_pool();
      parallel_depth == 0 && num_threads() > 1 && shared.try_acquire()) {
    // Another thread may have raised the count since; it cannot while the pool is acquired.
    const int32_t members = num_threads();
    const bool kept = members > 1 && (promised == 0 || members <= promised);
    if (kept) shared.run(begin, end, grain, parts, fn, context, members);
    shared.release();
    if (kept) return;
  }
  ++parallel_depth;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t part_begin = begin + part * grain;
    fn(context, part_begin, end - part_begin <= grain ? end : part_begin + grain, 0);
  }
  --parallel_depth;
}

}  // namespace ruda::native

// The work of one stream in order, and the thread that does it.
#pragma once

#include <ruda/abi.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace ruda::native {

// One piece of queued work. Ended by `destroy`, in the worker.
struct task {
  task* next = nullptr;
  uint64_t number = 0;        // in the stream's order, from 1
  const char* name = nullptr;  // of the kernel; null for work that cannot fail
  int32_t threads = 0;        // that the caller's loops may have
  int32_t (*run)(task& self, ruda_error* error) = nullptr;
  void (*destroy)(task& self) = nullptr;
};

class queue {
 public:
  // The work of a stream is counted on when a forked child replaces its queue.
  queue(int32_t stream, uint64_t done, queue* before)
      : stream_(stream), replaced_(before), submitted_(done), completed_(done) {}

  // Takes the task over, unless the worker cannot be started. Returns at once, except that a queue
  // of max_length waits for its head.
  int32_t submit(task* added, uint64_t* number, ruda_error* error) noexcept;

  uint64_t submitted() const noexcept { return submitted_.load(std::memory_order_acquire); }
  uint64_t completed() const noexcept { return completed_.load(std::memory_order_acquire); }
  bool idle() const noexcept { return completed() == submitted(); }

  // Returns when the task of that number is done: a spin, then sleep.
  void wait(uint64_t number) noexcept;

  // Hands over the first error of tasks (after, until], once, and forgets the others of that range.
  int32_t take_failure(uint64_t after, uint64_t until, ruda_error* error) noexcept;

  // For a fork: the queue is idle while it is held, and nobody may submit.
  void hold() noexcept;
  void let_go() noexcept { mutex_.unlock(); }

 private:
  static constexpr uint64_t max_length = 4096;

  struct failure {
    uint64_t number;
    ruda_error error;
  };

  bool start() noexcept;
  void work() noexcept;
  task* pop() noexcept;
  void run(task& each) noexcept;
  void complete(uint64_t number) noexcept;

  const int32_t stream_;
  queue* const replaced_;  // kept reachable; never used
  std::mutex mutex_;
  task* head_ = nullptr;
  task* tail_ = nullptr;
  bool started_ = false;
  std::vector<failure> failures_;

  // Lines of their own: the worker polls the first, callers the second.
  alignas(64) std::atomic<uint64_t> submitted_;
  std::atomic<uint32_t> arrivals_{0};
  std::atomic<uint32_t> asleep_{0};
  alignas(64) std::atomic<uint64_t> completed_;
  std::atomic<uint32_t> departures_{0};
  std::atomic<uint32_t> waiting_{0};
};

}  // namespace ruda::native

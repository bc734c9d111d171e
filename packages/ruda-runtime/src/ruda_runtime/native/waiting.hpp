// How this module's threads wait: a short spin, then the kernel's futex.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ruda::native {

constexpr auto spin_time = std::chrono::microseconds(50);

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps while `word` is `expected`; may return early. Wakes `count` sleepers of `word`.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected);
void futex_wake(std::atomic<uint32_t>& word, int count);

// Spins until `done` holds or the time is up; returns whether it holds.
template <class Predicate>
bool spin_until(Predicate&& done) {
  const auto deadline = std::chrono::steady_clock::now() + spin_time;
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      pause_cpu();
    }
    if (std::chrono::steady_clock::now() > deadline) return done();
  }
}

// The same for one of two threads that take turns: the system may have put the one that was woken on
// the waker's processor, where it runs only when that one yields.
template <class Predicate>
bool spin_and_yield_until(Predicate&& done) {
  const auto deadline = std::chrono::steady_clock::now() + spin_time;
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      pause_cpu();
    }
    if (std::chrono::steady_clock::now() > deadline) return done();
    sched_yield();
  }
}

}  // namespace ruda::native

// Process state of the device: first use, and use after a fork.
#pragma once

#include <atomic>
#include <functional>

namespace ruda_torch {

extern std::atomic<bool> g_initialized;
extern std::atomic<bool> g_bad_fork;

// True once the device was used in this process.
inline bool is_initialized() { return g_initialized.load(std::memory_order_acquire); }

// True in a child that was forked from a process that had used the device.
inline bool in_bad_fork() { return g_bad_fork.load(std::memory_order_relaxed); }

// Marks the device as used; throws in a child forked after the first use. Cheap enough for every
// allocation and every operator: two relaxed loads.
void initialize_slow();
inline void ensure_usable() {
  if (!is_initialized() || in_bad_fork()) initialize_slow();
}

// What to do before the first use; harmless when repeated. An exception of it leaves the device
// unused.
void on_first_use(std::function<void()> action);

// Installs the fork handler. Once, at import.
void watch_forks();

}  // namespace ruda_torch

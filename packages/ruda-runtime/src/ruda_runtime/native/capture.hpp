// Capturing: work submitted to a stream becomes the steps of a graph instead of being done. One stream at
// a time by one thread; what capture cannot keep (waiting, reading back, work elsewhere) is refused.
#pragma once

#include <ruda/abi.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "tensor.hpp"

namespace ruda::native {

// One piece of captured work. On a GPU the driver's graph has the work, and the steps say what it is.
struct step {
  const char* name;  // of the kernel, or "copy" and the like
  const void* what;  // the kernel; steps are the same work when it is
  int32_t (*run)(const void* args, ruda_error* error) = nullptr;
  const void* args = nullptr;
};

// The memory that captured work refers to: blocks of the pool and other owners' memory stay valid until
// this ends.
class held_memory {
 public:
  held_memory() = default;
  held_memory(const held_memory&) = delete;
  ~held_memory();
  void hold(const void* pointer);
  // A block that the pool has marked as held.
  void adopt(void* block);

 private:
  std::mutex mutex_;  // other threads may release a block of a captured stream
  std::unordered_set<void*> blocks_;
  std::vector<std::shared_ptr<storage>> foreign_;
};

// What a capture recorded. It does not change when the capture has ended; graphs share it.
struct recording {
  std::vector<step> steps;
  held_memory memory;
  void* device_graph = nullptr;  // target cuda: the driver's CUgraph

  recording() = default;
  recording(const recording&) = delete;
  ~recording();

  // Memory for argument structs, aligned to 16.
  void* take(size_t bytes);

 private:
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::byte* chunk_end_ = nullptr;
  size_t left_ = 0;
};

namespace detail {
extern std::atomic<int32_t> live_captures;
}

// One load; everything below may be skipped when it is false.
inline bool captures_live() noexcept {
  return detail::live_captures.load(std::memory_order_relaxed) != 0;
}

// The calling thread captures stream `id` from now on, into `into`.
int32_t begin_capture(int32_t id, recording* into, ruda_error* error) noexcept;
// Ends it, from any thread.
void end_capture(int32_t id) noexcept;

bool is_captured(int32_t id) noexcept;
int32_t is_capturing(int32_t id) noexcept;  // the same, as ruda_api has it

// While one lives, no capture begins: what is_captured() says does not become true. For calls on streams
// of other threads, which a driver would take into a capture that begins there.
class no_new_captures {
 public:
  no_new_captures();
  ~no_new_captures();
  no_new_captures(const no_new_captures&) = delete;
};

// The stream that the calling thread captures, or -1.
int32_t captured_here() noexcept;

// Where work for stream `id` goes: into a recording, or (null) to the stream. An error when another
// thread captures the stream, or the calling thread captures another one.
int32_t place_work(int32_t id, const char* operation, recording** into, ruda_error* error) noexcept;

// An error when stream `id` is captured (negative: when the calling thread captures any).
int32_t refuse_captured(int32_t id, const char* operation, ruda_error* error) noexcept;

// A block that is released while `stream` is captured, whose work may use it later: the capture keeps
// it. False: the stream is not captured.
bool keep_for_capture(int32_t stream, void* block) noexcept;

// Records a launch of a host kernel with a deep copy of its arguments.
int32_t record_launch(recording& into, const ruda_kernel& kernel, const void* args,
                      ruda_error* error) noexcept;
// Records a copy of elements to row-major memory.
int32_t record_copy(recording& into, const ruda_view& from, void* to, ruda_error* error) noexcept;
// Records work that the driver's graph has; the pointers (null ones too) are what it uses.
int32_t record_device_work(recording& into, const char* name, const void* what,
                           const void* const* pointers, size_t count, ruda_error* error) noexcept;

}  // namespace ruda::native

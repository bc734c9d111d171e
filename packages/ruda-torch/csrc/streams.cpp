#include "streams.h"

#include "runtime.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

namespace ruda_torch {

namespace {

thread_local c10::StreamId t_current = 0;

c10::Stream stream_of(c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kRuda, 0), id);
}

size_t pool_size() {
  // The variable and its rules are ruda-runtime's, which has checked it when it was imported.
  const char* text = std::getenv("RUDA_MAX_STREAMS");
  if (text == nullptr || *text == '\0') return 32;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  TORCH_CHECK_VALUE(end != text && *end == '\0' && value >= 1 && value <= 1024,
                    "[stream] RUDA_MAX_STREAMS: got '", text, "', wanted a whole number from 1 to 1024");
  return static_cast<size_t>(value);
}

// Stream ids 1..n; entry i says whether id i + 1 is taken.
struct Pool {
  std::mutex mutex;
  std::vector<bool> taken;
  size_t next_shared = 0;

  std::unique_lock<std::mutex> open() {
    std::unique_lock<std::mutex> lock(mutex);
    if (taken.empty()) taken.resize(pool_size(), false);
    return lock;
  }
};

Pool& pool() {
  static auto* instance = new Pool();  // used by finalizers at exit
  return *instance;
}

}  // namespace

c10::Stream current_stream() { return stream_of(t_current); }

c10::Stream exchange_stream(c10::Stream stream) {
  TORCH_CHECK_VALUE(stream.device_type() == kRuda, "[stream] device: got ", stream.device(),
                    ", wanted ruda");
  const c10::StreamId before = t_current;
  t_current = stream.id();
  return stream_of(before);
}

c10::Stream acquire_stream(int priority) {
  TORCH_CHECK_VALUE(priority == 0, "[stream] priority: got ", priority,
                    ", wanted 0 (the only one there is)");
  const auto lock = pool().open();
  auto& taken = pool().taken;
  for (size_t i = 0; i < taken.size(); ++i) {
    if (taken[i]) continue;
    taken[i] = true;
    return stream_of(static_cast<c10::StreamId>(i + 1));
  }
  TORCH_CHECK(false, "[stream] all ", taken.size(), " streams are in use: reuse streams, drop the "
              "ones no longer needed, or set RUDA_MAX_STREAMS before the first one is made");
}

void release_stream(c10::StreamId id) {
  const auto lock = pool().open();
  auto& taken = pool().taken;
  if (id >= 1 && id <= static_cast<c10::StreamId>(taken.size())) taken[id - 1] = false;
}

c10::Stream shared_stream() {
  const auto lock = pool().open();
  Pool& streams = pool();
  const size_t index = streams.next_shared;
  streams.next_shared = (index + 1) % streams.taken.size();
  return stream_of(static_cast<c10::StreamId>(index + 1));
}

}  // namespace ruda_torch

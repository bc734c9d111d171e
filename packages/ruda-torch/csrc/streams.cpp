#include "streams.h"

#include "cuda/target.h"
#include "runtime.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <vector>

namespace ruda_torch {

bool detail::g_queued = false;

namespace {

constexpr size_t kShared = 4;  // streams for callers who do not want one of their own

struct Shared {
  std::mutex mutex;
  std::vector<int32_t> streams;
  size_t next = 0;
};

Shared& shared() {
  static auto* instance = new Shared();  // used by finalizers at exit
  return *instance;
}

c10::Stream stream_of(int32_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kRuda, 0), id);
}

}  // namespace

void detail::wait_slow() {
  if (on_cuda()) return;  // nothing reads device memory on the host
  ruda_error error{};
  check(api()->synchronize(api()->current_stream(), &error), error);
}

void refuse_capture() {
  TORCH_CHECK(api()->is_capturing(api()->current_stream()) == 0, "[ruda] got an ATen operator or a "
              "copy on a stream that a graph is capturing, wanted RUDA's own operations "
              "(ruda_torch.*); run it before or after the capture, or on another stream");
}

void set_asynchronous(bool on) {
  ruda_error error{};
  check(api()->set_asynchronous(on ? 1 : 0, &error), error);
  detail::g_queued = on;
}

c10::Stream current_stream() { return stream_of(api()->current_stream()); }

c10::Stream exchange_stream(c10::Stream stream) {
  TORCH_CHECK_VALUE(stream.device_type() == kRuda, "[stream] device: got ", stream.device(),
                    ", wanted ruda");
  const int32_t before = api()->current_stream();
  ruda_error error{};
  check(api()->set_current_stream(static_cast<int32_t>(stream.id()), &error), error);
  return stream_of(before);
}

c10::Stream acquire_stream(int priority) {
  TORCH_CHECK_VALUE(priority == 0, "[stream] priority: got ", priority,
                    ", wanted 0 (the only one there is)");
  ruda_error error{};
  int32_t id = 0;
  check(api()->open_stream(&id, &error), error);
  return stream_of(id);
}

void release_stream(c10::StreamId id) {
  if (id < 1) return;
  ruda_error error{};
  check(api()->close_stream(static_cast<int32_t>(id), &error), error);
}

c10::Stream shared_stream() {
  Shared& all = shared();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.streams.size() < kShared) {
    int32_t id = 0;
    if (api()->open_stream(&id, nullptr) == RUDA_OK) all.streams.push_back(id);
  }
  if (all.streams.empty()) return stream_of(0);  // every other one is somebody's own
  return stream_of(all.streams[all.next++ % all.streams.size()]);
}

}  // namespace ruda_torch

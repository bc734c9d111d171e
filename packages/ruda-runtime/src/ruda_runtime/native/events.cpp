#include "events.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>

#include <ruda/entry.hpp>

#include "capture.hpp"
#include "cuda/streams.hpp"
#include "cuda/target.hpp"
#include "stream_wait.hpp"
#include "streams.hpp"

namespace ruda::native {
namespace {

using moment = std::atomic<int64_t>;  // nanoseconds; 0: the work before it is not done yet

// Threads may share an event. The mutex is never held while waiting.
struct event {
  const bool timing;
  std::mutex mutex;
  int32_t stream = -1;  // never recorded
  uint64_t number = 0;  // the last task before the event
  std::shared_ptr<moment> when;
  cuda::CUevent device = nullptr;  // target cuda
};

struct point {
  int32_t stream;
  uint64_t number;
};

event& of(ruda_event handle) { return *static_cast<event*>(handle); }

point point_of(ruda_event handle) {
  const std::lock_guard lock(of(handle).mutex);
  return {of(handle).stream, of(handle).number};
}

// Target cuda: the driver's event (null before the first record) and its stream.
struct device_point {
  cuda::CUevent event;
  int32_t stream;
};

device_point device_point_of(ruda_event handle) {
  const std::lock_guard lock(of(handle).mutex);
  return {of(handle).device, of(handle).stream};
}

int32_t record_on_device(event& self, int32_t id, ruda_error* error) {
  const std::lock_guard lock(self.mutex);
  RUDA_TRY(cuda::record_event(&self.device, self.timing, id, error));
  self.stream = id;
  // Without RUDA_ASYNC=1 an event is done when it is recorded, as all work is.
  return asynchronous() != 0 ? RUDA_OK : cuda::synchronize_event(self.device, id, error);
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct mark_task : task {
  std::shared_ptr<moment> when;
};

int32_t mark(int32_t id, std::shared_ptr<moment> when, uint64_t* number, ruda_error* error) {
  auto added = std::make_unique<mark_task>();
  added->when = std::move(when);
  added->run = [](task& self, ruda_error*) -> int32_t {
    static_cast<mark_task&>(self).when->store(now_ns(), std::memory_order_release);
    return RUDA_OK;
  };
  added->destroy = [](task& self) { delete static_cast<mark_task*>(&self); };
  RUDA_TRY(submit(id, added.get(), number, error));
  added.release();
  return RUDA_OK;
}

}  // namespace

ruda_event create_event(int32_t timing) noexcept {
  return new (std::nothrow) event{timing != 0, {}, -1, 0, nullptr, nullptr};
}

void destroy_event(ruda_event handle) noexcept {
  if (handle == nullptr) return;
  cuda::destroy_event(of(handle).device);
  delete static_cast<event*>(handle);
}

int32_t record_event(ruda_event handle, int32_t id, ruda_error* error) noexcept {
  RUDA_TRY(check_stream(id, "record_event", error));
  RUDA_TRY(refuse_captured(id, "record_event", error));
  return guard("record_event", error, [&]() -> int32_t {
    event& self = of(handle);
    if (cuda::chosen()) return record_on_device(self, id, error);
    const bool queued = queues_work();
    uint64_t number = submitted_work(id);
    std::shared_ptr<moment> when;
    if (self.timing) {
      when = std::make_shared<moment>(0);
      if (queued) {
        RUDA_TRY(mark(id, when, &number, error));
      } else {
        when->store(now_ns(), std::memory_order_relaxed);
      }
    }
    const std::lock_guard lock(self.mutex);
    self.stream = id;
    self.number = number;
    self.when = std::move(when);
    return RUDA_OK;
  });
}

int32_t wait_event(int32_t id, ruda_event handle, ruda_error* error) noexcept {
  RUDA_TRY(check_stream(id, "wait_event", error));
  RUDA_TRY(refuse_captured(id, "wait_event", error));
  if (cuda::chosen()) {
    const device_point at = device_point_of(handle);
    return at.event == nullptr ? RUDA_OK : cuda::wait_event(id, at.event, error);
  }
  const point at = point_of(handle);
  return at.stream < 0 ? RUDA_OK : wait_for_work(id, at.stream, at.number, error);
}

int32_t query_event(ruda_event handle) noexcept {
  if (cuda::chosen()) {
    const device_point at = device_point_of(handle);
    return at.event == nullptr ? 1 : cuda::query_event(at.event);
  }
  const point at = point_of(handle);
  return at.stream < 0 || completed_work(at.stream) >= at.number ? 1 : 0;
}

int32_t synchronize_event(ruda_event handle, ruda_error* error) noexcept {
  if (cuda::chosen()) {
    const device_point at = device_point_of(handle);
    return at.event == nullptr ? RUDA_OK : cuda::synchronize_event(at.event, at.stream, error);
  }
  const point at = point_of(handle);
  return at.stream < 0 ? RUDA_OK : wait_until(at.stream, at.number, error);
}

int32_t elapsed_time(ruda_event begin, ruda_event end, double* milliseconds,
                     ruda_error* error) noexcept {
  int64_t times[2];
  for (const auto& [handle, time] : {std::pair{begin, &times[0]}, std::pair{end, &times[1]}}) {
    event& self = of(handle);
    const std::lock_guard lock(self.mutex);
    RUDA_CHECK(self.timing, error, RUDA_ERROR_RUNTIME,
               "[elapsed_time] got an event without timing, wanted one made with it");
    RUDA_CHECK(self.when != nullptr || self.device != nullptr, error, RUDA_ERROR_RUNTIME,
               "[elapsed_time] got an event that was never recorded");
    if (self.device != nullptr) continue;
    *time = self.when->load(std::memory_order_acquire);
    RUDA_CHECK(*time != 0, error, RUDA_ERROR_RUNTIME,
               "[elapsed_time] the work before an event is not done yet; synchronize() it first");
  }
  if (cuda::chosen())
    return cuda::elapsed_time(of(begin).device, of(end).device, milliseconds, error);
  *milliseconds = static_cast<double>(times[1] - times[0]) / 1e6;
  return RUDA_OK;
}

}  // namespace ruda::native

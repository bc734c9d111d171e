#include "streams.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <new>

#include <ruda/entry.hpp>

#include "environment.hpp"

namespace ruda::native {
namespace {

constexpr int32_t capacity = 1025;  // the default stream and as many as RUDA_MAX_STREAMS allows

struct stream_record {
  std::atomic<bool> live{false};
};

std::array<stream_record, capacity> records;
std::mutex mutex;
thread_local int32_t current = 0;

bool is_live(int32_t id) {
  return id == 0 ||
         (id > 0 && id < capacity && records[id].live.load(std::memory_order_acquire));
}

}  // namespace

int32_t open_streams() noexcept {
  int32_t count = 0;
  for (const stream_record& each : records) count += each.live.load(std::memory_order_relaxed);
  return count;
}

int32_t open_stream(int32_t* id, ruda_error* error) noexcept {
  RUDA_TRY(check_submission(nullptr, "Stream", error));
  const std::lock_guard lock(mutex);
  for (int32_t candidate = 1; candidate <= settings().max_streams; ++candidate) {
    if (!records[candidate].live.load(std::memory_order_relaxed)) {
      records[candidate].live.store(true, std::memory_order_release);
      *id = candidate;
      return RUDA_OK;
    }
  }
  return fail(error, RUDA_ERROR_RUNTIME,
              "[Stream] all %d streams of the pool are in use: reuse streams that exist, or raise "
              "RUDA_MAX_STREAMS",
              settings().max_streams);
}

int32_t close_stream(int32_t id, ruda_error* error) noexcept {
  const std::lock_guard lock(mutex);
  RUDA_CHECK(id > 0 && is_live(id), error, RUDA_ERROR_VALUE,
             "[Stream] stream %d is not an open stream of the pool", id);
  records[id].live.store(false, std::memory_order_release);
  return RUDA_OK;
}

ruda_stream stream_handle(int32_t id) noexcept { return is_live(id) ? &records[id] : nullptr; }

int32_t current_stream() noexcept { return current; }

int32_t set_current_stream(int32_t id, ruda_error* error) noexcept {
  RUDA_CHECK(is_live(id), error, RUDA_ERROR_VALUE, "[stream] stream %d is not open", id);
  current = id;
  return RUDA_OK;
}

int32_t check_submission(ruda_stream stream, const char* operation, ruda_error* error) noexcept {
  RUDA_CHECK(!settings().async, error, RUDA_ERROR_UNSUPPORTED,
             "[%s] RUDA_ASYNC=1: asynchronous streams are not built for the host target; unset "
             "RUDA_ASYNC or set it to 0",
             operation);
  if (stream == nullptr) return RUDA_OK;
  // Compared as addresses: a foreign pointer must not be followed.
  const auto address = reinterpret_cast<uintptr_t>(stream);
  const auto first = reinterpret_cast<uintptr_t>(records.data());
  const uintptr_t offset = address - first;
  const bool known = address >= first && offset < sizeof(records) &&
                     offset % sizeof(stream_record) == 0 &&
                     is_live(static_cast<int32_t>(offset / sizeof(stream_record)));
  RUDA_CHECK(known, error, RUDA_ERROR_VALUE, "[%s] the stream is not an open stream of the runtime",
             operation);
  return RUDA_OK;
}

namespace {

struct event {
  bool timing;
  std::atomic<int64_t> ns{0};
};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int32_t check_stream(int32_t id, const char* operation, ruda_error* error) {
  RUDA_CHECK(is_live(id), error, RUDA_ERROR_VALUE, "[%s] stream %d is not open", operation, id);
  return RUDA_OK;
}

}  // namespace

int32_t asynchronous() noexcept { return 0; }

int32_t set_asynchronous(int32_t on, ruda_error* error) noexcept {
  RUDA_CHECK(on == 0, error, RUDA_ERROR_UNSUPPORTED,
             "[set_asynchronous] asynchronous streams are not built for the host target");
  return RUDA_OK;
}

int32_t query_stream(int32_t) noexcept { return 1; }

int32_t synchronize(int32_t id, ruda_error* error) noexcept {
  return id == -1 ? RUDA_OK : check_stream(id, "synchronize", error);
}

int32_t wait_stream(int32_t id, int32_t other, ruda_error* error) noexcept {
  RUDA_TRY(check_stream(id, "wait_stream", error));
  return check_stream(other, "wait_stream", error);
}

ruda_event create_event(int32_t timing) noexcept {
  return new (std::nothrow) event{timing != 0, {}};
}

void destroy_event(ruda_event handle) noexcept { delete static_cast<event*>(handle); }

int32_t record_event(ruda_event handle, int32_t id, ruda_error* error) noexcept {
  RUDA_TRY(check_stream(id, "record_event", error));
  static_cast<event*>(handle)->ns.store(now_ns());
  return RUDA_OK;
}

int32_t wait_event(int32_t id, ruda_event, ruda_error* error) noexcept {
  return check_stream(id, "wait_event", error);
}

int32_t query_event(ruda_event) noexcept { return 1; }

int32_t synchronize_event(ruda_event, ruda_error*) noexcept { return RUDA_OK; }

int32_t elapsed_time(ruda_event begin, ruda_event end, double* milliseconds,
                     ruda_error* error) noexcept {
  const auto* first = static_cast<event*>(begin);
  const auto* last = static_cast<event*>(end);
  RUDA_CHECK(first->timing && last->timing, error, RUDA_ERROR_RUNTIME,
             "[elapsed_time] got an event without timing, wanted two made with it");
  RUDA_CHECK(first->ns != 0 && last->ns != 0, error, RUDA_ERROR_RUNTIME,
             "[elapsed_time] got an event that was never recorded");
  *milliseconds = static_cast<double>(last->ns - first->ns) / 1e6;
  return RUDA_OK;
}

int32_t record_stream(const void*, int32_t id, ruda_error* error) noexcept {
  return check_stream(id, "record_stream", error);
}

}  // namespace ruda::native

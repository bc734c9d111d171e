#include "streams.hpp"

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <unordered_set>

#include <ruda/entry.hpp>

#include "../capture.hpp"
#include "target.hpp"

namespace ruda::native::cuda {
namespace {

constexpr size_t capacity = 1025;

struct stream_record {
  std::atomic<CUstream> handle{nullptr};
  std::atomic<const char*> kernel{nullptr};
  std::atomic<uint64_t> grid_xy{0};
  std::atomic<uint32_t> grid_z{0};
};

std::array<stream_record, capacity> records;
std::mutex mutex;

// Events that outlive the target, in global variables, are destroyed with it.
struct event_table {
  std::mutex mutex;
  std::unordered_set<CUevent> alive;
};

event_table& the_events() {
  static event_table* shared = new event_table;
  return *shared;
}

CUstream existing(int32_t id) noexcept {
  return id >= 0 && static_cast<size_t>(id) < capacity
             ? records[id].handle.load(std::memory_order_acquire)
             : nullptr;
}

// An event without timing, for one wait.
template <class Use>
int32_t with_event(int32_t id, const char* operation, ruda_error* error, Use&& use) {
  CUevent event = nullptr;
  RUDA_CUDA(operation, error, cuEventCreate, &event, event_disable_timing);
  const CUresult recorded = api().cuEventRecord(event, existing(id));
  int32_t status = RUDA_OK;
  if (recorded != success) {
    status = fail_call(api(), operation, "cuEventRecord", recorded, error);
  } else {
    status = use(event);
  }
  api().cuEventDestroy(event);  // the driver keeps it until the wait is over
  return status;
}

int32_t create_event(CUevent* event, bool timing, ruda_error* error) {
  return guard("record_event", error, [&]() -> int32_t {
    RUDA_CUDA("record_event", error, cuEventCreate, event, timing ? 0 : event_disable_timing);
    const std::lock_guard lock(the_events().mutex);
    the_events().alive.insert(*event);
    return RUDA_OK;
  });
}

int32_t wait_on(CUstream stream, CUevent event, const char* operation, ruda_error* error) {
  RUDA_CUDA(operation, error, cuStreamWaitEvent, stream, event, 0);
  return RUDA_OK;
}

}  // namespace

int32_t fail_work(const char* operation, const char* call, CUresult code, int32_t id,
                  ruda_error* error) {
  if (!context_is_lost(code)) return fail_call(api(), operation, call, code, error);
  return fail(error, RUDA_ERROR_RUNTIME, "[%s] work on cuda:0 (%s) failed; %s; %s; %s", operation,
              device().name.c_str(), last_launch_text(id).c_str(),
              call_text(api(), call, code).c_str(), advice(code));
}

CUstream driver_stream(int32_t id, const char* operation, ruda_error* error) noexcept {
  if (enter(operation, error) != RUDA_OK) return nullptr;
  if (CUstream found = existing(id)) return found;
  const std::lock_guard lock(mutex);
  if (CUstream found = existing(id)) return found;
  CUstream made = nullptr;
  if (const CUresult code = api().cuStreamCreate(&made, stream_non_blocking); code != success) {
    fail_call(api(), operation, "cuStreamCreate", code, error);
    return nullptr;
  }
  records[id].handle.store(made, std::memory_order_release);
  return made;
}

int32_t query_stream(int32_t id) noexcept {
  const CUstream stream = existing(id);
  if (stream == nullptr || !usable() || enter("query", nullptr) != RUDA_OK) return 1;
  // An error counts as done: the next wait raises it.
  return api().cuStreamQuery(stream) == error_not_ready ? 0 : 1;
}

int32_t synchronize(int32_t id, ruda_error* error) noexcept {
  RUDA_TRY(enter("synchronize", error));
  if (id >= 0) {
    const CUstream stream = existing(id);
    if (stream == nullptr) return RUDA_OK;
    const CUresult code = api().cuStreamSynchronize(stream);
    return code == success ? RUDA_OK
                           : fail_work("synchronize", "cuStreamSynchronize", code, id, error);
  }
  int32_t status = RUDA_OK;
  for (size_t each = 0; each < capacity; ++each) {
    if (existing(static_cast<int32_t>(each)) == nullptr) continue;
    const no_new_captures held;
    if (is_captured(static_cast<int32_t>(each))) continue;  // none of its work is done now
    ruda_error unheard;
    const int32_t found =
        synchronize(static_cast<int32_t>(each), status == RUDA_OK ? error : &unheard);
    if (status == RUDA_OK) status = found;
  }
  return status;
}

int32_t wait_stream(int32_t id, int32_t other, ruda_error* error) noexcept {
  if (id == other || existing(other) == nullptr) return enter("wait_stream", error);
  const CUstream stream = driver_stream(id, "wait_stream", error);
  if (stream == nullptr) return error != nullptr ? error->code : RUDA_ERROR_RUNTIME;
  return with_event(other, "wait_stream", error,
                    [&](CUevent event) { return wait_on(stream, event, "wait_stream", error); });
}

int32_t order_foreign_stream(int32_t id, CUstream foreign, ruda_error* error) noexcept {
  RUDA_TRY(enter("dlpack", error));
  if (existing(id) == nullptr || existing(id) == foreign) return RUDA_OK;
  return with_event(id, "dlpack", error,
                    [&](CUevent event) { return wait_on(foreign, event, "dlpack", error); });
}

void note_launch(int32_t id, const char* kernel, const uint32_t grid[3]) noexcept {
  stream_record& self = records[id];
  self.kernel.store(kernel, std::memory_order_relaxed);
  self.grid_xy.store(uint64_t{grid[0]} << 32 | grid[1], std::memory_order_relaxed);
  self.grid_z.store(grid[2], std::memory_order_relaxed);
}

std::string last_launch_text(int32_t id) {
  const stream_record& self = records[id];
  const char* kernel = self.kernel.load(std::memory_order_relaxed);
  if (kernel == nullptr)
    return "the failing work is another stream's: no kernel was launched on stream " +
           std::to_string(id);
  const uint64_t xy = self.grid_xy.load(std::memory_order_relaxed);
  return "the failing work is [" + std::string(kernel) + "] with grid (" +
         std::to_string(xy >> 32) + ", " + std::to_string(xy & 0xffffffff) + ", " +
         std::to_string(self.grid_z.load(std::memory_order_relaxed)) +
         "), the last kernel launched on stream " + std::to_string(id) + ", or work before it";
}

int32_t record_event(CUevent* event, bool timing, int32_t id, ruda_error* error) noexcept {
  const CUstream stream = driver_stream(id, "record_event", error);
  if (stream == nullptr) return error != nullptr ? error->code : RUDA_ERROR_RUNTIME;
  if (*event == nullptr) RUDA_TRY(create_event(event, timing, error));
  RUDA_CUDA("record_event", error, cuEventRecord, *event, stream);
  return RUDA_OK;
}

int32_t wait_event(int32_t id, CUevent event, ruda_error* error) noexcept {
  const CUstream stream = driver_stream(id, "wait_event", error);
  if (stream == nullptr) return error != nullptr ? error->code : RUDA_ERROR_RUNTIME;
  return wait_on(stream, event, "wait_event", error);
}

int32_t query_event(CUevent event) noexcept {
  if (!usable() || enter("query", nullptr) != RUDA_OK) return 1;
  return api().cuEventQuery(event) == error_not_ready ? 0 : 1;
}

int32_t synchronize_event(CUevent event, int32_t id, ruda_error* error) noexcept {
  RUDA_TRY(enter("synchronize", error));
  const CUresult code = api().cuEventSynchronize(event);
  return code == success ? RUDA_OK
                         : fail_work("synchronize", "cuEventSynchronize", code, id, error);
}

int32_t elapsed_time(CUevent begin, CUevent end, double* milliseconds, ruda_error* error) noexcept {
  RUDA_TRY(enter("elapsed_time", error));
  float value = 0;
  const CUresult code = api().cuEventElapsedTime(&value, begin, end);
  RUDA_CHECK(code != error_not_ready, error, RUDA_ERROR_RUNTIME,
             "[elapsed_time] the work before an event is not done yet; synchronize() it first");
  if (code != success) return fail_call(api(), "elapsed_time", "cuEventElapsedTime", code, error);
  *milliseconds = value;
  return RUDA_OK;
}

void destroy_event(CUevent event) noexcept {
  if (event == nullptr || !usable() || enter("destroy_event", nullptr) != RUDA_OK) return;
  {
    const std::lock_guard lock(the_events().mutex);
    if (the_events().alive.erase(event) == 0) return;
  }
  api().cuEventDestroy(event);
}

void finish_streams() noexcept {
  ruda_error error{};
  if (synchronize(-1, &error) != RUDA_OK)
    std::fprintf(stderr, "ruda_runtime: an error that nobody asked for: %s\n", error.message);
}

void destroy_streams() noexcept {
  {
    const std::lock_guard lock(the_events().mutex);
    for (const CUevent each : the_events().alive) api().cuEventDestroy(each);
    the_events().alive.clear();
  }
  for (stream_record& each : records)
    if (const CUstream handle = each.handle.exchange(nullptr)) api().cuStreamDestroy(handle);
}

}  // namespace ruda::native::cuda

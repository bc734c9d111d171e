#include "streams.hpp"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <new>

#include <ruda/entry.hpp>

#include "capture.hpp"
#include "cuda/shutdown.hpp"
#include "cuda/streams.hpp"
#include "cuda/target.hpp"
#include "environment.hpp"
#include "graph.hpp"
#include "kernels.hpp"
#include "stream_wait.hpp"

namespace ruda::native {
namespace {

constexpr int32_t capacity = 1025;  // the default stream and as many as RUDA_MAX_STREAMS allows

struct stream_record {
  std::atomic<bool> live{false};
  std::atomic<queue*> work{nullptr};   // made by the first queued task, never destroyed
  std::atomic<uint64_t> opened_at{0};  // tasks of owners before the present one
};

std::array<stream_record, capacity> records;
std::mutex mutex;
thread_local int32_t current = 0;

enum class dispatch { open, synchronous, asynchronous };
std::atomic<dispatch> chosen{dispatch::open};
std::atomic<int32_t> asked{-1};  // by set_asynchronous; -1: nobody did
std::atomic<bool> ending{false};

bool is_live(int32_t id) {
  return id == 0 ||
         (id > 0 && id < capacity && records[id].live.load(std::memory_order_acquire));
}

// Null when the stream never had work queued.
queue* queue_of(int32_t id) { return records[id].work.load(std::memory_order_acquire); }

queue* make_queue(int32_t id) noexcept {
  if (queue* made = queue_of(id)) return made;
  const std::lock_guard lock(mutex);
  if (queue* made = queue_of(id)) return made;
  queue* made = new (std::nothrow) queue(id, 0, nullptr);
  if (made != nullptr) records[id].work.store(made, std::memory_order_release);
  return made;
}

template <class Visit>
void each_queue(Visit&& visit) {
  for (int32_t id = 0; id < capacity; ++id)
    if (queue* found = queue_of(id)) visit(id, *found);
}

// Settles the choice and returns it.
bool dispatches_asynchronously() noexcept {
  dispatch now = chosen.load(std::memory_order_acquire);
  if (now == dispatch::open) {
    const auto wanted = asynchronous() != 0 ? dispatch::asynchronous : dispatch::synchronous;
    if (chosen.compare_exchange_strong(now, wanted)) now = wanted;
  }
  return now == dispatch::asynchronous;
}

void before_fork() {
  mutex.lock();
  each_queue([](int32_t, queue& each) { each.hold(); });
}

void after_fork_in_parent() {
  each_queue([](int32_t, queue& each) { each.let_go(); });
  mutex.unlock();
}

// The workers do not exist in the child.
void after_fork_in_child() {
  new (&mutex) std::mutex;
  each_queue([](int32_t id, queue& each) {
    records[id].work.store(new queue(id, each.submitted(), &each), std::memory_order_release);
  });
}

}  // namespace

void prepare_streams() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  });
}

bool queues_work() noexcept {
  if (cuda::chosen()) return false;  // the driver's streams are the queues
  return dispatches_asynchronously() && running_kernel() == nullptr &&
         !ending.load(std::memory_order_acquire);
}

int32_t asynchronous() noexcept {
  switch (chosen.load(std::memory_order_acquire)) {
    case dispatch::synchronous: return 0;
    case dispatch::asynchronous: return 1;
    default: break;
  }
  const int32_t wanted = asked.load(std::memory_order_relaxed);
  return wanted >= 0 ? wanted : (settings().async ? 1 : 0);
}

int32_t set_asynchronous(int32_t on, ruda_error* error) noexcept {
  const int32_t wanted = on != 0 ? 1 : 0;
  RUDA_CHECK(chosen.load(std::memory_order_acquire) == dispatch::open || asynchronous() == wanted,
             error, RUDA_ERROR_RUNTIME,
             "[set_asynchronous] got %d after work was submitted with %d: choose before the first "
             "submission, or set RUDA_ASYNC",
             wanted, asynchronous());
  asked.store(wanted, std::memory_order_relaxed);
  return RUDA_OK;
}

int32_t open_streams() noexcept {
  int32_t count = 0;
  for (const stream_record& each : records) count += each.live.load(std::memory_order_relaxed);
  return count;
}

int32_t open_stream(int32_t* id, ruda_error* error) noexcept {
  dispatches_asynchronously();
  if (cuda::chosen()) RUDA_TRY(cuda::enter("Stream", error));
  const std::lock_guard lock(mutex);
  int32_t found = 0;
  // One that still works for its former owner is the last choice.
  for (int32_t candidate = settings().max_streams; candidate >= 1; --candidate) {
    if (records[candidate].live.load(std::memory_order_relaxed)) continue;
    if (query_stream(candidate) != 0 || found == 0) found = candidate;
  }
  RUDA_CHECK(found != 0, error, RUDA_ERROR_RUNTIME,
             "[Stream] all %d streams of the pool are in use: reuse streams that exist, or raise "
             "RUDA_MAX_STREAMS",
             settings().max_streams);
  records[found].opened_at.store(submitted_work(found), std::memory_order_relaxed);
  records[found].live.store(true, std::memory_order_release);
  *id = found;
  return RUDA_OK;
}

int32_t close_stream(int32_t id, ruda_error* error) noexcept {
  if (id >= 0) RUDA_TRY(refuse_captured(id, "close", error));
  const std::lock_guard lock(mutex);
  RUDA_CHECK(id > 0 && is_live(id), error, RUDA_ERROR_VALUE,
             "[Stream] stream %d is not an open stream of the pool", id);
  records[id].live.store(false, std::memory_order_release);
  return RUDA_OK;
}

int32_t check_stream(int32_t id, const char* operation, ruda_error* error) noexcept {
  RUDA_CHECK(id >= 0 && id <= settings().max_streams, error, RUDA_ERROR_VALUE,
             "[%s] there is no stream %d, the pool has 1 to %d", operation, id,
             settings().max_streams);
  return RUDA_OK;
}

ruda_stream stream_handle(int32_t id) noexcept { return is_live(id) ? &records[id] : nullptr; }

int32_t current_stream() noexcept { return current; }

void enter_stream(int32_t id) noexcept { current = id; }

int32_t set_current_stream(int32_t id, ruda_error* error) noexcept {
  RUDA_TRY(check_stream(id, "set_current_stream", error));
  current = id;
  return RUDA_OK;
}

int32_t stream_of_handle(ruda_stream stream, const char* operation, int32_t* id,
                         ruda_error* error) noexcept {
  *id = current;
  if (stream == nullptr) return RUDA_OK;
  // Compared as addresses: a foreign pointer must not be followed.
  const auto address = reinterpret_cast<uintptr_t>(stream);
  const auto first = reinterpret_cast<uintptr_t>(records.data());
  const uintptr_t offset = address - first;
  *id = static_cast<int32_t>(offset / sizeof(stream_record));
  const bool known = address >= first && offset < sizeof(records) &&
                     offset % sizeof(stream_record) == 0 && is_live(*id);
  RUDA_CHECK(known, error, RUDA_ERROR_VALUE, "[%s] the stream is not an open stream of the runtime",
             operation);
  return RUDA_OK;
}

int32_t submit(int32_t id, task* added, uint64_t* number, ruda_error* error) noexcept {
  queue* work = make_queue(id);
  RUDA_CHECK(work != nullptr, error, RUDA_ERROR_MEMORY, "[submit] out of memory for bookkeeping");
  return work->submit(added, number, error);
}

uint64_t submitted_work(int32_t id) noexcept {
  const queue* work = queue_of(id);
  return work == nullptr ? 0 : work->submitted();
}

uint64_t completed_work(int32_t id) noexcept {
  const queue* work = queue_of(id);
  return work == nullptr ? 0 : work->completed();
}

void wait_for_all() noexcept {
  if (cuda::usable()) {
    ruda_error unheard;  // stays with the context
    cuda::synchronize(-1, &unheard);
    return;
  }
  each_queue([](int32_t, queue& each) { each.wait(each.submitted()); });
}

void shut_down_streams() noexcept {
  ending.store(true, std::memory_order_release);
  if (cuda::usable()) close_graphs();  // the driver's handles go before its context
  if (cuda::chosen()) return cuda::shut_down();
  wait_for_all();
  each_queue([](int32_t, queue& each) {
    ruda_error error;
    while (each.take_failure(0, each.submitted(), &error) != RUDA_OK)
      std::fprintf(stderr, "ruda_runtime: an error that nobody asked for: %s\n", error.message);
  });
}

int32_t query_stream(int32_t id) noexcept {
  if (is_captured(id)) return 0;  // the driver would end the capture
  if (cuda::chosen()) return cuda::query_stream(id);
  const queue* work = id >= 0 && id < capacity ? queue_of(id) : nullptr;
  return work == nullptr || work->idle() ? 1 : 0;
}

int32_t wait_until(int32_t id, uint64_t number, ruda_error* error) noexcept {
  if (cuda::chosen()) return cuda::synchronize(id, error);
  queue* work = queue_of(id);
  if (work == nullptr) return RUDA_OK;
  work->wait(number);
  return work->take_failure(records[id].opened_at.load(std::memory_order_relaxed), number, error);
}

void wait_for_completion(int32_t id, uint64_t number) noexcept {
  if (queue* work = queue_of(id)) work->wait(number);
}

int32_t synchronize(int32_t id, ruda_error* error) noexcept {
  RUDA_TRY(refuse_captured(id, "synchronize", error));
  if (id >= 0) RUDA_TRY(check_stream(id, "synchronize", error));
  if (cuda::chosen()) return cuda::synchronize(id, error);
  if (id >= 0) {
    return wait_until(id, submitted_work(id), error);
  }
  // Errors of streams that have been closed surface here as well.
  int32_t status = RUDA_OK;
  wait_for_all();
  each_queue([&](int32_t, queue& each) {
    if (status == RUDA_OK) status = each.take_failure(0, each.completed(), error);
  });
  return status;
}

namespace {

struct wait_task : task {
  int32_t other;
  uint64_t until;
};

}  // namespace

int32_t wait_for_work(int32_t id, int32_t other, uint64_t number, ruda_error* error) noexcept {
  if (id == other || completed_work(other) >= number) return RUDA_OK;
  if (ending.load(std::memory_order_acquire)) {
    queue_of(other)->wait(number);
    return RUDA_OK;
  }
  auto* added = new (std::nothrow) wait_task;
  RUDA_CHECK(added != nullptr, error, RUDA_ERROR_MEMORY, "[wait] out of memory for bookkeeping");
  added->other = other;
  added->until = number;
  added->run = [](task& self, ruda_error*) -> int32_t {
    const auto& wait = static_cast<wait_task&>(self);
    queue_of(wait.other)->wait(wait.until);
    return RUDA_OK;
  };
  added->destroy = [](task& self) { delete static_cast<wait_task*>(&self); };
  uint64_t ignored;
  const int32_t status = submit(id, added, &ignored, error);
  if (status != RUDA_OK) delete added;
  return status;
}

int32_t wait_stream(int32_t id, int32_t other, ruda_error* error) noexcept {
  RUDA_TRY(check_stream(id, "wait_stream", error));
  RUDA_TRY(check_stream(other, "wait_stream", error));
  for (const int32_t each : {id, other}) RUDA_TRY(refuse_captured(each, "wait_stream", error));
  if (cuda::chosen()) return cuda::wait_stream(id, other, error);
  return wait_for_work(id, other, submitted_work(other), error);
}

}  // namespace ruda::native

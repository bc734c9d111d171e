#include "streams.hpp"

#include "capture.hpp"
#include "entry.hpp"
#include "events.hpp"
#include "memory.hpp"
#include "reports.hpp"

#include <algorithm>
#include <map>

namespace driver_double {
namespace {

struct empty_operation final : operation {
  empty_operation() : operation(type::empty) {}
  CUresult run(stream&) override { return CUDA_SUCCESS; }
};

stream* per_thread_stream(context& of) {
  thread_local std::map<context*, stream*> made;
  stream*& found = made[&of];
  if (found == nullptr) {
    found = new stream(of, 0, stream::role::per_thread);
    std::lock_guard lock(of.mutex);
    of.streams.push_back(found);
  }
  return found;
}

// The default stream and the blocking streams wait for each other.
std::vector<position> default_stream_waits(stream& to) {
  std::vector<position> waits;
  if (!to.blocking()) return waits;
  context& in = to.in;
  if (&to != in.legacy) {
    if (!in.legacy->idle()) waits.push_back({in.legacy, in.legacy->submitted()});
    return waits;
  }
  std::lock_guard lock(in.mutex);
  for (stream* each : in.streams) {
    if (each != &to && each->blocking() && !each->idle()) {
      waits.push_back({each, each->submitted()});
    }
  }
  return waits;
}

}  // namespace

CUresult resolve(const char* call, CUstream handle, stream** out) {
  context* current = nullptr;
  if (CUresult code = need_context(call, &current); code != CUDA_SUCCESS) return code;
  auto value = reinterpret_cast<uintptr_t>(handle);
  if (value == 2 || (value == 0 && null_is_per_thread)) {
    *out = per_thread_stream(*current);
  } else if (value <= 1) {
    *out = current->legacy;
  } else if (!valid(handle)) [[unlikely]] {
    return report(CUDA_ERROR_INVALID_HANDLE, "[%s] %p is no stream, or a stream that was destroyed",
                  call, static_cast<void*>(handle));
  } else if (&handle->in != current) [[unlikely]] {
    return report(CUDA_ERROR_INVALID_CONTEXT,
                  "[%s] %s belongs to another context than the current one", call, handle->name());
  } else {
    *out = handle;
  }
  return CUDA_SUCCESS;
}

CUresult submit(const char* call, stream& to, std::shared_ptr<operation> work, position* where) {
  if (to.capturing != nullptr) return capture_work(call, to, std::move(work));
  if (&to == to.in.legacy) {
    if (CUresult code = refuse_implicit(call, to.in); code != CUDA_SUCCESS) return code;
  }
  std::vector<allocation_ref> used;
  work->addresses([&](uint64_t address) {
    if (allocation_ref found = find_allocation(address)) used.push_back(std::move(found));
  });
  std::vector<position> waits = default_stream_waits(to);
  uint64_t number = to.push(std::move(work), std::move(waits));
  for (const allocation_ref& each : used) each->note_use({&to, number});
  if (where != nullptr) *where = {&to, number};
  return CUDA_SUCCESS;
}

CUresult submit_wait(stream& to, position awaited) {
  std::vector<position> waits = default_stream_waits(to);
  waits.push_back(awaited);
  to.push(std::make_shared<empty_operation>(), std::move(waits));
  return CUDA_SUCCESS;
}

CUresult synchronize(stream& on) {
  if (&on == on.in.legacy) {
    for (const position& each : default_stream_waits(on)) each.on->wait(each.number);
  }
  on.wait(on.submitted());
  release_pools(on.in.device);
  return on.take_failure();
}

void wait_for_context(context& of) {
  std::vector<stream*> all;
  {
    std::lock_guard lock(of.mutex);
    all = of.streams;
  }
  for (stream* each : all) each->wait(each->submitted());
  release_pools(of.device);
}

CUresult synchronize_context(context& of) {
  if (CUresult code = refuse_any_capture("cuCtxSynchronize", of); code != CUDA_SUCCESS) return code;
  wait_for_context(of);
  std::lock_guard lock(of.mutex);
  CUresult first = CUDA_SUCCESS;
  for (stream* each : of.streams) {
    CUresult code = each->take_failure();
    if (first == CUDA_SUCCESS) first = code;
  }
  return first;
}

}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  context* current = nullptr;
  if (CUresult code = need_context("cuStreamCreate", &current); code != CUDA_SUCCESS) return code;
  if (out == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  *out = new stream(*current, flags, stream::role::made);
  (*out)->priority = std::clamp(priority, -5, 0);
  std::lock_guard lock(current->mutex);
  current->streams.push_back(*out);
  ++counters::get().live_streams;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuStreamCreate(CUstream* out, unsigned flags) {
  return cuStreamCreateWithPriority(out, flags, 0);
}

// Returns at once; the stream's work still runs.
DRIVER_API CUresult cuStreamDestroy_v2(CUstream destroyed) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  if (!valid(destroyed) || destroyed->as != stream::role::made) {
    return report(CUDA_ERROR_INVALID_HANDLE,
                  "[cuStreamDestroy] %p is no stream, or was destroyed before",
                  static_cast<void*>(destroyed));
  }
  if (destroyed->capturing != nullptr) abandon_capture(*destroyed);
  destroyed->is = handle::kind::dead;
  --counters::get().live_streams;
  context& in = destroyed->in;
  {
    std::lock_guard lock(in.mutex);
    std::erase(in.streams, destroyed);
    // What still runs there stays ordered with the default stream's later work.
    if (!destroyed->idle() && destroyed->blocking()) {
      submit_wait(*in.legacy, {destroyed, destroyed->submitted()});
    }
  }
  destroyed->finish();
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuStreamQuery(CUstream handle) {
  stream* on = nullptr;
  if (CUresult code = resolve("cuStreamQuery", handle, &on); code != CUDA_SUCCESS) return code;
  if (CUresult code = refuse_capture("cuStreamQuery", *on); code != CUDA_SUCCESS) return code;
  if (!on->idle()) return CUDA_ERROR_NOT_READY;
  return on->failure();
}

DRIVER_API CUresult cuStreamSynchronize(CUstream handle) {
  stream* on = nullptr;
  if (CUresult code = resolve("cuStreamSynchronize", handle, &on); code != CUDA_SUCCESS)
    return code;
  if (CUresult code = refuse_capture("cuStreamSynchronize", *on); code != CUDA_SUCCESS) return code;
  return synchronize(*on);
}

DRIVER_API CUresult cuStreamWaitEvent(CUstream handle, CUevent awaited, unsigned flags) {
  stream* on = nullptr;
  if (CUresult code = resolve("cuStreamWaitEvent", handle, &on); code != CUDA_SUCCESS) return code;
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  return wait_event(*on, awaited);
}

// Returns when all work of the process that was submitted before is done; takes no failure.
DRIVER_API void ruda_double_wait() {
  if (!initialised()) return;
  for (context* each : all_contexts()) wait_for_context(*each);
}

namespace {
const entry_table entries{
    entry<&cuStreamCreate>("cuStreamCreate", 2000),
    entry<&cuStreamCreateWithPriority>("cuStreamCreateWithPriority", 5050),
    entry<&cuStreamDestroy_v2>("cuStreamDestroy", 4000),
    entry<&cuStreamQuery>("cuStreamQuery", 2000),
    entry<&cuStreamSynchronize>("cuStreamSynchronize", 2000),
    entry<&cuStreamWaitEvent>("cuStreamWaitEvent", 3020),
};
}
